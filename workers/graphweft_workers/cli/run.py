"""``graphweft up`` and ``graphweft run``."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, get_args

import typer

from graphweft_contracts import InvalidSettings
from graphweft_contracts.events import DEFAULT_WORKFLOW
from graphweft_workers.cli.command_table import Role
from graphweft_workers.cli.mcp_access import McpOptions
from graphweft_workers.cli.options import Data, Rules, check_app, command, one_of
from graphweft_workers.cli.output import say, warn
from graphweft_workers.processes import run as roles
from graphweft_workers.processes.health import healthy
from graphweft_workers.settings.settings import CONFIG_FILE, Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.optional_dependencies import naming_extra

logger = get_logger("graphweft.settings")

_HOST: Final = "127.0.0.1"
_PORT: Final = 8765
_MOST_PROJECTS: Final = 100
_SERVERS: Final = ("gateway", "console")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Options of ``run gateway`` and ``run console``."""

    host: Annotated[
        str | None, typer.Option("--host", help="gateway, console: address to listen on.", show_default=_HOST)
    ] = None
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="gateway, console: port; 0 takes a free one.",
            show_default=f"{_PORT}; console 8766",
        ),
    ] = None
    insecure_app: Annotated[
        str | None,
        typer.Option(
            "--insecure-app",
            metavar="APP",
            help=f"gateway: accept requests without tokens, all for this app; only on {_HOST}.",
        ),
    ] = None
    mcp: Annotated[
        bool, typer.Option("--mcp", help="gateway: serve the tools of MCP, too, at /mcp (streamable HTTP).")
    ] = False
    listener: Annotated[
        int | None,
        typer.Option(
            "--listener", metavar="NUMBER", help="console: an open socket that listens, in place of --host and --port."
        ),
    ] = None


@command
async def up(data: Data = None, rules: Rules = None) -> None:
    """Run everything on this machine: bus, graph and services. Ctrl-C stops it.

    The services are a mutation worker and an injection responder. A memory worker runs too if the extra `local` is
    installed, or if you set GRAPHWEFT_EMBEDDER, GRAPHWEFT_EXTRACTOR, GRAPHWEFT_MEMORY_SUMMARISE_AFTER,
    GRAPHWEFT_MEMORY_KEEP_DAYS or GRAPHWEFT_MEMORY_KEEP_COUNT, and the archive role if you set GRAPHWEFT_ARCHIVE_URL or
    GRAPHWEFT_ARCHIVE_TRIM.
    """
    from graphweft_workers.processes.supervisor import Supervisor
    from graphweft_workers.support.logs import set_up_logs
    from graphweft_workers.wiring.embedder import with_default_embedder

    settings = with_default_embedder(Settings.load(data=data, rules=rules))
    set_up_logs(settings.log_level, settings.log_format)
    supervisor = Supervisor(settings, say)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, supervisor.stop)

    def ready() -> None:
        used = f"the rules of {settings.rules}"
        if supervisor.has_rule_faults:
            used += " as far as they have no errors"
        if supervisor.uses_default_rules:
            defaults = f"the default rules of the workflow {DEFAULT_WORKFLOW!r}"
            none = f"because {settings.rules} holds none"
            used = f"{used} and {defaults}, {none} of that name" if supervisor.uses_own_rules else f"{defaults}, {none}"
        say(f"graphweft is up on {settings.data} with {used}; Ctrl-C stops it")
        if "embedder" in settings.model_fields_set and settings.embedder != "none":
            say(f"memories are found by meaning, with the embedder {settings.embedder}")
        if not supervisor.uses_own_rules and (near := project_near(Path.cwd(), settings.rules)):
            warn(f"{near} has rules: to use them, stop this and start it in the folder {near.parent}")
        if supervisor.console:
            say(supervisor.console)

    await supervisor.run(ready)


def project_near(folder: Path, rules: Path) -> Path | None:
    """Return the first folder of rules in a folder below this one, relative to it, or else that around this one.

    None without one, and if ``rules`` is a path. A new project is a folder of its own, in which one easily forgets to
    start, or starts in its folder of rules or of one workflow.
    """
    from graphweft_rules.files.loader import FILE_NAME

    if rules.parts != (rules.name,):
        return None
    found = islice(folder.glob(f"*/{rules}/*/{FILE_NAME}"), _MOST_PROJECTS)
    if below := min((path.parent.parent.relative_to(folder) for path in found), default=None):
        return below
    around = (each / rules for each in folder.parents[:2])
    return next((each for each in around if any(each.glob(f"*/{FILE_NAME}"))), None)


@command
async def run(
    role: Annotated[Role, typer.Argument(parser=one_of(*get_args(Role)), help="The role of this process.")],
    gateway: GatewayOptions,
    mcp: McpOptions,
    rules: Rules = None,
    data: Data = None,
) -> None:
    """Run one role until SIGTERM. It uses the servers that GRAPHWEFT_BUS_URL and GRAPHWEFT_GRAPH_URL name."""
    from graphweft_workers.support.logs import set_up_logs

    # Containers often share their variables with other programs, so an unknown one is only a warning here.
    unknown: list[str] = []
    # A client of MCP starts its server in whatever folder it works, and that is not to say where memories go.
    cwd = role != "mcp"
    settings = Settings.load(cwd=cwd, rules=rules, data=data, unknown=unknown, through_gateway=role == "mcp")
    set_up_logs(settings.log_level, settings.log_format)
    if not cwd and Path(CONFIG_FILE).is_file():
        message = f"{CONFIG_FILE} of the working folder is not read by `run mcp`, unless GRAPHWEFT_CONFIG names it"
        logger.warning("settings_file", message=message)
    for warning in unknown:
        logger.warning("unknown_variable", message=warning)
    if role not in _SERVERS and gateway != GatewayOptions():
        raise InvalidSettings(
            "--host and --port work with `run gateway` and `run console`, --insecure-app and --mcp with `run gateway`"
        )
    if role == "console" and gateway.insecure_app is not None:
        raise InvalidSettings("--insecure-app works with `run gateway` only: the console always needs a token")
    if role == "console" and gateway.mcp:
        raise InvalidSettings("--mcp works with `run gateway` only")
    if role != "mcp" and mcp.misplaced:
        raise InvalidSettings(
            "--app, --user, --thread, --agent-id, --application, --any-of, --workflow, --agent, --chat, --var, "
            "--index-type, --budget-ms and --max-tokens work with `run mcp` only: other roles serve all apps"
        )
    match role:
        case "mutation" | "injection" | "memory" | "archive":
            await roles.run_service(role, settings)
        case "gateway":
            if gateway.insecure_app is not None:
                check_app(gateway.insecure_app)
            await roles.run_gateway(
                settings,
                host=gateway.host or _HOST,
                port=_PORT if gateway.port is None else gateway.port,
                insecure_app=gateway.insecure_app,
                ready=lambda url: say(f"the gateway answers on {url}"),
                mcp=gateway.mcp,
            )
        case "console":
            await _run_console(settings, gateway)
        case "mcp":
            await roles.run_mcp(settings, mcp.access())


async def _run_console(settings: Settings, options: GatewayOptions) -> None:
    with naming_extra("`run console`", "console", "starlette", "uvicorn"):
        from graphweft_workers.console import serving

    async with healthy("console", settings) as heartbeat:

        def listens(url: str) -> None:
            heartbeat.begin()
            if options.listener is None:
                say(f"the console answers on {url}")

        await serving.run_console(
            settings,
            host=options.host or _HOST,
            port=settings.console_port if options.port is None else options.port,
            listener=options.listener,
            ready=listens,
        )

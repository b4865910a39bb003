"""``graphweft up``, ``graphweft run`` and ``graphweft token new``."""

from __future__ import annotations

import asyncio
import json as json_module
import signal
from enum import StrEnum
from typing import Annotated, Final

import structlog
import typer

from graphweft_contracts import InvalidSettings
from graphweft_workers import services
from graphweft_workers.cli import mcp
from graphweft_workers.cli.options import App, Data, Json, Rules, check_app, command
from graphweft_workers.cli.output import print_json, say
from graphweft_workers.settings import Settings

_HOST: Final = "127.0.0.1"
_PORT: Final = 8765


class Role(StrEnum):
    """What one process does in a deployment of several."""

    MUTATION = "mutation"
    INJECTION = "injection"
    MEMORY = "memory"
    GATEWAY = "gateway"
    MCP = "mcp"


@command
async def up(data: Data = None, rules: Rules = None) -> None:
    """Run everything on this machine: bus, graph and services. Ctrl-C stops it.

    The services are a mutation worker, an injection responder and, where GRAPHWEFT_EMBEDDER, GRAPHWEFT_EXTRACTOR,
    GRAPHWEFT_MEMORY_SUMMARISE_AFTER, GRAPHWEFT_MEMORY_KEEP_DAYS or GRAPHWEFT_MEMORY_KEEP_COUNT is set, a memory worker.
    """
    from graphweft_workers.logs import set_up_logs
    from graphweft_workers.supervisor import Supervisor

    settings = Settings.load(data=data, rules=rules)
    set_up_logs(settings.log_level, settings.log_format)
    supervisor = Supervisor(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, supervisor.stop)

    def ready() -> None:
        say(f"graphweft is up on {settings.data} with the rules of {settings.rules}; Ctrl-C stops it")

    await supervisor.run(ready)


@command
async def run(
    role: Annotated[Role, typer.Argument(help="The role of this process.")],
    rules: Rules = None,
    data: Data = None,
    host: Annotated[
        str | None, typer.Option("--host", help="gateway: address to listen on.", show_default=_HOST)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="gateway: port; 0 takes a free one.", show_default=str(_PORT)),
    ] = None,
    insecure_app: Annotated[
        str | None,
        typer.Option("--insecure-app", metavar="APP", help=f"gateway: no tokens, all is of APP; only on {_HOST}."),
    ] = None,
    app: mcp.App = None,
    user: mcp.User = None,
    thread: mcp.Thread = None,
    agent_id: mcp.AgentId = None,
    application: mcp.Application = None,
    workflow: mcp.Workflow = None,
    agent: mcp.Agent = None,
    chat: mcp.Chat = None,
    var: mcp.Var = None,
    index_type: mcp.IndexType = None,
    budget_ms: mcp.BudgetMs = None,
    max_tokens: mcp.MaxTokens = None,
) -> None:
    """Run one role against the servers that GRAPHWEFT_BUS_URL and GRAPHWEFT_GRAPH_URL name, until SIGTERM."""
    from graphweft_workers.logs import set_up_logs

    # A deployment may share its variables with other programs: a role works on, and says which it does not know.
    unknown: list[str] = []
    settings = Settings.load(rules=rules, data=data, unknown=unknown)
    set_up_logs(settings.log_level, settings.log_format)
    for warning in unknown:
        structlog.get_logger("graphweft.settings").warning("unknown_variable", message=warning)
    if role is not Role.GATEWAY and (host, port, insecure_app) != (None, None, None):
        raise InvalidSettings("--host, --port and --insecure-app go with `run gateway` only")
    # Those that may also stand in the environment are passed by: it may be the environment of several roles.
    if role is not Role.MCP and any((workflow, agent, chat, var, index_type, budget_ms, max_tokens)):
        raise InvalidSettings(
            "--workflow, --agent, --chat, --var, --index-type, --budget-ms and --max-tokens go with `run mcp` only"
        )
    match role:
        case Role.MUTATION:
            await services.run_mutation(settings)
        case Role.INJECTION:
            await services.run_injection(settings)
        case Role.MEMORY:
            await services.run_memory(settings)
        case Role.GATEWAY:
            if insecure_app is not None:
                check_app(insecure_app)
            await services.run_gateway(
                settings,
                host=host or _HOST,
                port=_PORT if port is None else port,
                insecure_app=insecure_app,
                ready=lambda url: say(f"the gateway answers on {url}"),
            )
        case Role.MCP:
            access = mcp.make_access(
                app=app,
                user=user,
                thread=thread,
                agent_id=agent_id,
                application=application,
                workflow=workflow,
                agents=agent,
                chat=chat,
                variables=var,
                index_type=index_type,
                budget_ms=budget_ms,
                max_tokens=max_tokens,
            )
            await services.run_mcp(settings, access)


@command
async def token_new(
    app: App,
    name: Annotated[str, typer.Option("--name", help="What the token is for; stands in the file.")] = "",
    json: Json = False,
) -> None:
    """Make a token for one app and print it, this once, with the line for the file of GRAPHWEFT_GATEWAY_TOKENS."""
    from graphweft_workers.gateway.tokens import new_token, sha256_of

    check_app(app)
    token = new_token()
    entry = {"sha256": sha256_of(token), "app_id": app, "name": name}
    if json:
        print_json({"token": token, "entry": entry})
        return
    say(f"token: {token}")
    say("Keep it: it is shown this once. Below `tokens:` in the file that GRAPHWEFT_GATEWAY_TOKENS names add this:")
    say(f"  - {json_module.dumps(entry, ensure_ascii=False)}")

"""``graphweft hook``: a hook of a coding agent. It ends within its limit and with 0, whatever happens."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import ValidationError

from graphweft import Client
from graphweft.adapters.user_message import message_variables
from graphweft.secret_files import read_secret_file
from graphweft.settings import ClientSettings
from graphweft.transport import Outgoing, Transport
from graphweft.transports.embedded import own_embedded_url
from graphweft.transports.gateway.transport import GatewayTransport
from graphweft.transports.registry import make_transport
from graphweft_contracts import ContextReply, ContextRequest, Event, GraphweftError, InvalidSettings, wire
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.events import DEFAULT_WORKFLOW
from graphweft_contracts.plurals import counted
from graphweft_contracts.signatures import SigningKey
from graphweft_workers.cli.options import MaxTokens, check_app
from graphweft_workers.cli.output import escape_unprintable
from graphweft_workers.cli.process_user import process_user
from graphweft_workers.imports.coding_agents import HookPlan, Owner, UnreadableHook, read_hook

_MAX_BYTES: Final = 8 * 1024**2
_EMIT_S: Final = 1.0
_GRACE_S: Final = 0.5
"""Time after the limit in which the command can still say what it could not do."""
_SHOWN: Final = frozenset({"SessionStart", "UserPromptSubmit"})
"""Hooks whose output the coding agent puts before the model."""


def hook(
    call: typer.Context,
    payload: Annotated[
        str | None,
        typer.Argument(metavar="[JSON]", help="The JSON object, as Codex's notify passes it.", show_default="stdin"),
    ] = None,
    app: Annotated[str | None, typer.Option("--app", help="The app; required.", envvar="GRAPHWEFT_HOOK_APP")] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", help="The user.", envvar="GRAPHWEFT_HOOK_USER", show_default="the user of this process"),
    ] = None,
    workflow: Annotated[
        str, typer.Option("--workflow", help="The workflow, which selects the rules.", envvar="GRAPHWEFT_HOOK_WORKFLOW")
    ] = DEFAULT_WORKFLOW,
    agent: Annotated[
        str, typer.Option("--agent", help="The agent's name in events and rules.", envvar="GRAPHWEFT_HOOK_AGENT")
    ] = "coding-agent",
    context: Annotated[bool, typer.Option("--context/--no-context", help="Print context for the agent.")] = True,
    remember: Annotated[
        bool, typer.Option("--remember/--no-remember", help="Keep prompts and answers as memories.")
    ] = True,
    limit_ms: Annotated[
        int,
        typer.Option("--limit-ms", min=100, max=60_000, help="The longest that the command takes, in milliseconds."),
    ] = 3000,
    max_tokens: MaxTokens = 2000,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of the embedded server.", envvar="GRAPHWEFT_DATA")
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option("--gateway", help="URL of a gateway, in place of a bus.", show_default="GRAPHWEFT_GATEWAY_URL"),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="File with the token for --gateway.", show_default="GRAPHWEFT_GATEWAY_TOKEN"),
    ] = None,
) -> None:
    """Record what a coding agent does, and print context for it: a command for the hooks of Claude Code and Codex.

    It reads one JSON object and always exits with 0, because another code would block the agent. Problems are on
    standard error, in one line. Events go to the gateway of --gateway or the bus of --data, or else to that of
    GRAPHWEFT_GATEWAY_URL, GRAPHWEFT_BUS_URL or GRAPHWEFT_DATA: the folder in which the agent works cannot name another.
    """
    deadline_s = SYSTEM_CLOCK.monotonic() + limit_ms / 1000
    watchdog = threading.Timer(limit_ms / 1000 + _GRACE_S, _give_up, [limit_ms])
    watchdog.daemon = True
    watchdog.start()
    try:
        escape_unprintable()
        if not app:
            raise InvalidSettings("`graphweft hook` needs --app (or GRAPHWEFT_HOOK_APP)")
        check_app(app)
        source = call.get_parameter_source("data")
        own = data if source is not None and source.name == "COMMANDLINE" else None
        transport = _NotingTransport(_transport(own, data, gateway, token_file))
        owner = Owner(app_id=app, user_id=user or process_user(), workflow=workflow, agent=agent, remember=remember)
        plan = read_hook(_read(payload), owner)
        if plan.unknown:
            _say(f"nothing is recorded for the hook {plan.name!r:.100}")
        text = asyncio.run(_work(plan, owner, transport, deadline_s, max_tokens if context else None))
        if text:
            output = {"hookEventName": plan.name, "additionalContext": text}
            sys.stdout.write(json.dumps({"hookSpecificOutput": output}) + "\n")
    except ValidationError as error:
        _say(f"nothing is recorded: {wire.explain(error)}")
    except (GraphweftError, UnreadableHook) as error:
        _say(f"nothing is recorded: {error}")
    except Exception as error:  # noqa: BLE001 - the coding agent continues
        _say(f"nothing more is recorded: the hook failed with {type(error).__name__}")
    finally:
        watchdog.cancel()


class _NotingTransport:
    """A transport that remembers why events were not taken."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.failure = ""

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        try:
            return await self._transport.append(events)
        except GraphweftError as error:
            self.failure = str(error)
            raise
        except asyncio.CancelledError:  # the command's time has ended
            self.failure = self.failure or "there was no answer in time"
            raise

    async def request(self, request: ContextRequest) -> ContextReply:
        return await self._transport.request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()


async def _work(
    plan: HookPlan, owner: Owner, transport: _NotingTransport, deadline_s: float, max_tokens: int | None
) -> str:
    """Emit the events, and return the context if ``max_tokens`` allows some."""

    def left_s() -> float:
        return max(0.0, deadline_s - SYSTEM_CLOCK.monotonic())

    logging.getLogger("graphweft").addHandler(logging.NullHandler())  # what it would print is said below, in one line
    capture = ClientSettings.from_environment().capture
    client = Client(transport=transport, app_id=owner.app_id, workflow=owner.workflow)
    text = ""
    lost = 0
    problems: list[str] = []

    async def emit(events: Sequence[Event]) -> int:
        if not events or not capture:
            return 0
        return (await client.emit_all(events, wait_s=min(_EMIT_S, left_s()))).count(None)

    try:
        lost += await emit(plan.before)
        if plan.asks and plan.name in _SHOWN and max_tokens is not None:
            reply = await client.context(
                agent=plan.agent,
                chat_id=plan.chat_id,
                user_id=owner.user_id,
                context={**plan.variables, **message_variables(plan.message)},
                budget_ms=int(left_s() / 2 * 1000),
                max_tokens=max_tokens,
            )
            text = reply.text
            if reply.reason is not None and reply.reason != "disabled":
                problems.append(f"no context: {reply.reason} ({reply.detail})")
        lost += await emit(plan.after)
    finally:
        await client.aclose(drain_s=min(0.2, left_s()))
    dropped = client.stats.dropped + client.stats.rejected
    if lost and dropped:
        total = counted(len(plan.before) + len(plan.after), "event")
        reason = transport.failure or ("is the bus running?" if client.stats.dropped else "they break the contract")
        is_named = any(reason in problem for problem in problems)
        problems.append(
            f"{dropped} of {total} {'is' if dropped == 1 else 'are'} lost{'' if is_named else f': {reason}'}"
        )
    if problems:
        _say("; ".join(problems))
    return text


def _transport(own: Path | None, data: Path | None, gateway: str | None, token_file: Path | None) -> Transport:
    """Return the way to the gateway or the bus. What the command line says comes first: ``own`` is its ``--data``."""
    settings = ClientSettings.from_environment()
    if token_file is not None and gateway is None:  # a URL of the environment would get the token
        raise InvalidSettings("--token-file needs --gateway, the address that the token is for")
    if gateway is not None:
        token = settings.gateway_token if token_file is None else read_secret_file(token_file, "--token-file")
        return GatewayTransport(gateway, token=token)
    if own is None and (through := settings.gateway()) is not None:
        return through
    key = settings.signing_key
    url = _bus(data, settings) if own is None else own_embedded_url(own)
    return make_transport(url, signing_key=None if key is None else SigningKey.parse(key))


def _bus(data: Path | None, settings: ClientSettings) -> str:
    """Return the URL of the bus that the environment names; ``data`` is its folder."""
    if settings.bus_named:
        return settings.bus_url
    if data is None:
        raise InvalidSettings(
            "no bus: set GRAPHWEFT_BUS_URL, or name the folder of `graphweft up` with --data, or a gateway by --gateway"
        )
    return own_embedded_url(data)


def _read(payload: str | None) -> object:
    if payload is None:
        if sys.stdin.isatty():
            raise UnreadableHook("standard input is a terminal: a coding agent writes the JSON object of a hook to it")
        raw = sys.stdin.buffer.read(_MAX_BYTES + 1)
    else:
        raw = payload.encode(errors="surrogateescape")
    if len(raw) > _MAX_BYTES:
        raise UnreadableHook(f"the hook has more than {_MAX_BYTES:,} bytes")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise UnreadableHook("the input is not JSON in UTF-8") from None


def _say(problem: str) -> None:
    sys.stderr.write(f"graphweft hook: {problem}\n")


def _give_up(limit_ms: int) -> None:
    try:
        _say(f"gave up after {limit_ms} ms")
        sys.stderr.flush()
    finally:
        os._exit(0)

"""``graphweft context``, ``query`` and ``digest``."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any, Final

import typer

from graphweft import Client
from graphweft_contracts import Block, ContextReply, InvalidSettings, ReasonCode
from graphweft_workers.cli.options import App, Data, Json, check_app, command
from graphweft_workers.cli.output import print_json, print_table, say, say_aligned, stderr
from graphweft_workers.cli.running import running_bus, running_graph
from graphweft_workers.graph.digest import read_digest
from graphweft_workers.settings import Settings

_QUERY_TIMEOUT_S: Final = 60.0
_EVENTS: Final = 5
"""Event ids that the table shows of a block; ``--json`` has all."""
MOST_MS: Final = 3_600_000
"""Nobody waits longer for a turn's context."""
_AGAIN_LATER: Final = frozenset[ReasonCode]({"bus_unavailable", "graph_unavailable", "overloaded", "timeout"})
_NO_FAULT: Final = frozenset[ReasonCode]({"disabled", "no_rules"})


@command
async def context(
    app: App,
    workflow: Annotated[str, typer.Option("--workflow", help="Workflow whose injection rules apply.")],
    agent: Annotated[str, typer.Option("--agent", help="The agent whose turn it is.")],
    chat: Annotated[str, typer.Option("--chat", help="The chat.")],
    user: Annotated[str | None, typer.Option("--user", help="The user.")] = None,
    var: Annotated[
        list[str] | None, typer.Option("--var", help="Context variable: k=text, or k:=JSON; repeatable.")
    ] = None,
    budget_ms: Annotated[int, typer.Option("--budget-ms", min=1, max=MOST_MS, help="Time for the answer.")] = 1000,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Most tokens of the text.", show_default="no limit")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="POSITION", help="Wait within the budget for the effect of this event."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say of each block how it came about.")] = False,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Ask for the context of one agent turn, as a runtime would, and print it as the agent would see it."""
    settings = Settings.load(data=data)
    check_app(app)
    variables = assignments(var or [], "--var")
    async with running_bus(settings):
        pass
    async with Client(settings.bus) as client:
        reply = await client.context(
            agent=agent,
            chat_id=chat,
            app_id=app,
            workflow=workflow,
            user_id=user,
            context=variables,
            budget_ms=budget_ms,
            max_tokens=max_tokens,
            after=after,
            explain=explain,
        )
    return finish(reply, json)


@command
async def query(
    cypher: Annotated[str, typer.Argument(help="A reading Cypher query; the server refuses to write.")],
    app: App,
    param: Annotated[
        list[str] | None, typer.Option("--param", help="Query parameter: k=text, or k:=JSON; repeatable.")
    ] = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Read an app's graph."""
    settings = Settings.load(data=data)
    check_app(app)
    params = assignments(param or [], "--param")
    async with running_graph(settings) as graph:
        table = await graph.read(app, cypher, params, timeout_s=_QUERY_TIMEOUT_S)
    if json:
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        print_json({"columns": list(table.columns), "rows": rows})
    elif not table.columns:
        stderr.print(f"the app {app!r} has no graph yet: nothing was written for it", style="yellow", markup=False)
    else:
        print_table(table.columns, table.rows)


@command
async def digest(app: App, data: Data = None, json: Json = False) -> None:
    """Print a hash over the content of an app's graph: equal graphs have equal digests, however they were built."""
    settings = Settings.load(data=data)
    check_app(app)
    async with running_graph(settings) as graph:
        found = await read_digest(graph, app)
    if json:
        print_json({"digest": found.sha256, "nodes": found.nodes, "relationships": found.relationships})
    else:
        say(found.sha256)


def finish(reply: ContextReply, json: bool) -> int | None:
    """Print a reply, as JSON or for people, and return the exit code."""
    if json:
        print_json(reply.model_dump(mode="json"))
    else:
        show_reply(reply)
    if reply.reason is None or reply.reason in _NO_FAULT:
        return None
    return 1 if reply.reason in _AGAIN_LATER else 2


def show_reply(reply: ContextReply) -> None:
    """Print the text that the agent gets, and on standard error what is missing and how long it took."""
    if reply.text:
        say(reply.text)
    for item in reply.missing:
        stderr.print(f"missing {item.name}: {item.reason}: {item.detail}", style="yellow", markup=False, soft_wrap=True)
    if reply.reason is not None and not reply.missing:
        stderr.print(f"no context: {reply.reason}: {reply.detail}", style="yellow", markup=False, soft_wrap=True)
    if any(block.explanation for block in reply.blocks):
        say_aligned([_EXPLAINED, *map(_explained, reply.blocks)], to=sys.stderr)
    old = [block.age_ms for block in reply.blocks if block.age_ms is not None]
    if old:
        stderr.print(f"{len(old)} blocks are up to {max(old):,} ms old", style="yellow", markup=False)
    if reply.stale_by is not None:
        stderr.print(f"the graph is {reply.stale_by:,} events behind --after", style="yellow", markup=False)
    rows = sum(block.rows for block in reply.blocks)
    summary = f"{len(reply.blocks)} blocks, {rows} rows, {reply.tokens} tokens, {reply.elapsed_ms:.1f} ms"
    stderr.print(f"{summary}, context {reply.context_id or 'none'}", style="dim", markup=False)


_EXPLAINED: Final = ("BLOCK", "RULE/QUERY", "PLACE", "ROWS", "MS", "CACHED", "TOKENS", "CUT", "EVENTS")


def _explained(block: Block) -> tuple[str, ...]:
    """Return a line of what ``--explain`` prints."""
    how = block.explanation
    place, took, cached, events = ("", "", "", "")
    if how is not None:
        place, took, cached = how.place, f"{how.elapsed_ms:.1f}", "yes" if how.cached else "no"
        events = ", ".join([*how.events[:_EVENTS], *(["…"] if len(how.events) > _EVENTS else [])])
    rows, tokens, cut = f"{block.rows:,}", f"{block.tokens:,}", f"{block.cut:,}"
    return (block.name, f"{block.rule}/{block.query}", place, rows, took, cached, tokens, cut, events)


def assignments(given: list[str], option: str) -> dict[str, Any]:
    """Return the values of ``name=text`` and ``name:=JSON``. Raises ``InvalidSettings`` for anything else."""
    values: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.rstrip(":"):
            raise InvalidSettings(f"{option} {text!r}: write name=text, or name:=JSON")
        if name.endswith(":"):
            try:
                values[name[:-1]] = json_module.loads(value)
            except (ValueError, RecursionError) as error:
                raise InvalidSettings(f"{option} {text[:200]!r}: this is no JSON: {error}") from error
        else:
            values[name] = value
    return values

"""``graphweft context``, and how a context reply is printed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer

from graphweft import Client
from graphweft_contracts import Block, ContextReply, InvalidSettings, ReasonCode
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.options import (
    After,
    App,
    AsOf,
    BudgetMs,
    Data,
    Explain,
    Into,
    Json,
    MaxTokens,
    assignments,
    check_after,
    check_as_of,
    command,
)
from graphweft_workers.cli.output import aligned, print_json, say, stderr, warn
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.printable import printable_lines
from graphweft_workers.wiring.connections import make_transport
from graphweft_workers.wiring.running import check_bus

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_MAX_EVENTS: Final = 5
"""Event ids that ``--explain`` prints of a block; ``--json`` prints all."""
_TEMPORARY: Final = frozenset[ReasonCode]({"bus_unavailable", "graph_unavailable", "overloaded", "timeout"})
_NOT_ERRORS: Final = frozenset[ReasonCode]({"disabled", "no_rules"})
_EXPLAINED: Final = ("BLOCK", "RULE/QUERY", "PLACE", "ROWS", "MS", "CACHED", "TOKENS", "CUT", "EVENTS")


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
    budget_ms: BudgetMs = 1000,
    max_tokens: MaxTokens = None,
    after: After = None,
    explain: Explain = False,
    as_of: AsOf = None,
    into: Into = None,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Request the context of one agent turn, as a runtime would, and print the text that the agent would get.

    With --as-of: the text that it would have got then.
    """
    settings = Settings.load(data=data)
    variables = assignments(var or [], "--var")
    check_after(after)
    check_as_of(as_of, into)
    if as_of is not None:
        from graphweft_workers.cli.as_of import past_graph  # the engine takes a while to import

        if after is not None:
            raise InvalidSettings("--after waits for the graph of now: leave it out with --as-of")
        fields: dict[str, Any] = {"app_id": app, "workflow": workflow, "agent": agent, "chat_id": chat, "user_id": user}
        fields |= {"context": variables, "max_tokens": max_tokens, "explain": explain}
        async with past_graph(settings, app, as_of, into) as past:
            reply = await past.context(settings, fields)
        return print_reply(reply, json, {"as_of": past.as_json()})
    await check_bus(settings)
    async with Client(transport=make_transport(settings)) as client:
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
    code = print_reply(reply, json)
    if not json and found_nothing(reply):
        warn("the queries found nothing: check --app, --chat and --user; --explain shows each query")
    return code


def found_nothing(reply: ContextReply) -> bool:
    """Tell whether all queries of a reply ended, and none returned a row."""
    return reply.reason is None and not reply.missing and not any(block.rows for block in reply.blocks)


def print_reply(reply: ContextReply, json: bool, more: Mapping[str, Any] = _NOTHING) -> int | None:
    """Print a reply, as JSON or for people, and return the exit code: 1 to try again later, 2 to change something.

    ``more`` is added to the JSON.
    """
    if json:
        print_json(reply.model_dump(mode="json") | dict(more))
    else:
        _print_text(reply)
    if reply.reason is None or reply.reason in _NOT_ERRORS:
        return None
    return 1 if reply.reason in _TEMPORARY else 2


def _print_text(reply: ContextReply) -> None:
    """Print the agent's text; print what is missing, and the time that the reply took, on standard error."""
    if reply.text:
        say(reply.text)
    for item in reply.missing:
        warn(f"missing {item.name}: {item.reason}: {item.detail}")
    if reply.reason is not None and not reply.missing:
        warn(f"no context: {reply.reason}: {reply.detail}")
    if any(block.explanation for block in reply.blocks):
        for line in aligned([_EXPLAINED, *map(_explained_row, reply.blocks)]):
            sys.stderr.write(printable_lines(line) + "\n")
    ages = [block.age_ms for block in reply.blocks if block.age_ms is not None]
    if ages:
        warn(f"{counted(len(ages), 'block is', 'blocks are')} up to {max(ages):,} ms old")
    if reply.stale_by is not None:
        warn(f"the graph is {counted(reply.stale_by, 'event')} behind --after")
    rows = sum(block.rows for block in reply.blocks)
    summary = ", ".join(
        (
            counted(len(reply.blocks), "block"),
            counted(rows, "row"),
            counted(reply.tokens, "token"),
            f"{reply.elapsed_ms:.1f} ms",
        )
    )
    stderr().print(f"{summary}, context {reply.context_id or 'none'}", style="dim", markup=False)


def _explained_row(block: Block) -> tuple[str, ...]:
    """Return the line of ``--explain`` for a block."""
    how = block.explanation
    place, took, cached, events = ("", "", "", "")
    if how is not None:
        place, took, cached = how.place, f"{how.elapsed_ms:.1f}", "yes" if how.cached else "no"
        events = ", ".join([*how.events[:_MAX_EVENTS], *(["…"] if len(how.events) > _MAX_EVENTS else [])])
    rows, tokens, cut = f"{block.rows:,}", f"{block.tokens:,}", f"{block.cut:,}"
    return (block.name, f"{block.rule}/{block.query}", place, rows, took, cached, tokens, cut, events)

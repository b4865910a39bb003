"""Checks whether the server accepts a query of the rules, without running it."""

from __future__ import annotations

from typing import Any, Final

from redis.exceptions import NoPermissionError, ReadOnlyError, RedisError

from graphweft_contracts import GraphUnavailable, QueryFailed, channels
from graphweft_rules.cypher.batch_query import BatchQuery
from graphweft_rules.cypher.query import Cypher
from graphweft_workers.drivers.falkordb.errors import (
    FAULT,
    NAMED,
    NO_GRAPH,
    NO_GRAPH_KEY,
    OF_VALUES,
    POSITION,
    reason,
    translate,
    unchecked,
)
from graphweft_workers.drivers.falkordb.statements import uses, with_rows, with_rule
from graphweft_workers.ports.graph_store import Refusal

_CHECKS: Final = 5
"""Attempts to check a query while another process deletes the graph for it."""


async def check_query(client: Any, query: Cypher, batch_query: BatchQuery | None) -> Refusal | None:
    """See ``GraphStore.check_query``."""
    single = query.statement if batch_query is None else with_rule(query)
    texts = [single] if batch_query is None or not batch_query.always else []
    if batch_query is not None and batch_query.mode != "single":
        texts.append(with_rows((batch_query.statement,)))
    refusals = [await _refused(client, text) for text in texts]
    if (said := refusals[0]) is None:
        if (said := next(filter(None, refusals), None)) is None or OF_VALUES.match(said):
            return None
        return Refusal(reason=f"many rows of it in one query: {reason(said)}", fails=False)
    # The rule's own text gives the place; the guard around it may also be the reason.
    alone = await _refused(client, query.statement) if batch_query is not None else said
    if OF_VALUES.match(said) or (alone is not None and OF_VALUES.match(alone)):
        return None
    place = await _place_of(client, query.statement, alone) if alone is not None else None
    return Refusal(reason=reason(alone or said), place=place, fails=bool(FAULT.match(alone or said)))


async def _refused(client: Any, text: str) -> str | None:
    """Return the server's message about a text that it refuses; None if it accepts it."""
    for attempt in range(_CHECKS):
        try:
            if attempt:  # the server explains queries only in an existing graph
                await client.execute_command("GRAPH.QUERY", channels.GRAPH_CHECK, "RETURN 1")
            await client.execute_command("GRAPH.EXPLAIN", channels.GRAPH_CHECK, text)
            return None
        except (NoPermissionError, ReadOnlyError) as error:
            raise unchecked(error) from error
        except (RedisError, OSError) as error:
            reason = translate(error)
            if not isinstance(reason, QueryFailed) or reason.code == "timeout":
                raise GraphUnavailable(f"queries cannot be checked now: {reason}") from error
            if str(error).startswith(NO_GRAPH_KEY):
                raise unchecked(error) from error
            if not str(error).startswith(NO_GRAPH):
                return str(error)
    raise GraphUnavailable(f"queries cannot be checked now: the graph {channels.GRAPH_CHECK!r} is deleted again")


async def _place_of(client: Any, statement: str, said: str) -> tuple[int, int] | None:
    """Return the place in the server's message, or the place of the name in it."""
    if found := POSITION.search(said):
        line, column = int(found[1]), int(found[2])  # the column counts bytes
        before = statement.split("\n")[line - 1].encode()[: column - 1].decode(errors="ignore")
        return line, len(before) + 1
    named = NAMED.search(said)
    starts = list(uses(statement, named[1])) if named else []
    # It may be any of these uses. The message changes when the faulty one, or an earlier one, is renamed.
    for number in reversed(range(len(starts))):
        changed = statement
        for start in reversed(starts[number:]):
            changed = f"{changed[:start]}__gw_{changed[start:]}"
        if await _refused(client, changed) != said:
            start = starts[number]
            return statement.count("\n", 0, start) + 1, start - statement.rfind("\n", 0, start)
    return None

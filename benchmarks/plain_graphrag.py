"""Facts around entities that are named, as one would ask for them by hand, to stand beside ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from graphweft_workers.features.graphrag.caps import LIMIT_CAP, MOST_PINS, RESULTS_CAP
from graphweft_workers.features.graphrag.safe_cypher import RELATIONSHIPS

_TYPES: Final = "|".join(RELATIONSHIPS)
# A path of variable length would be shorter, and takes seconds at a hub: both servers find all paths first.
_QUERY: Final = (
    f"MATCH (p:Entity) WHERE p.name IN $names WITH p LIMIT {MOST_PINS} "
    f"CALL {{ WITH p MATCH (p)-[r:{_TYPES}]-(a) WHERE a:Entity OR a:Document RETURN r, a LIMIT {RESULTS_CAP} }} "
    f"CALL {{ WITH a MATCH (a)-[s:{_TYPES}]-(b) WHERE b:Entity OR b:Document RETURN s, b LIMIT 3 }} "
    f"WITH p, r, a, s, b LIMIT {LIMIT_CAP} "
    "RETURN p.name, p.type, p.description, a.name, a.type, b.name, b.type, "
    "type(r), startNode(r) = p, r.fact, type(s), startNode(s) = a, s.fact"
)

type Rows = Callable[[str, Mapping[str, Any]], Awaitable[Sequence[Sequence[Any]]]]
"""Runs a reading query with parameters."""


async def by_hand(rows: Rows, names: Sequence[str]) -> list[str]:
    """Return the facts that one query finds, in its order: within two hops, of the types that are allowed.

    There is nobody whose facts they are, no time at which they hold, no order, and nothing is kept secret.
    """
    facts: dict[str, None] = {}
    for row in await rows(_QUERY, {"names": list(names)}):
        p, p_type, described, a, a_type, b, b_type, first, first_out, first_fact, second, second_out, second_fact = row
        if described:
            facts[f"{p} ({p_type}): {described}"] = None
        facts[_fact(f"{p} ({p_type})", first, f"{a} ({a_type})", first_fact, out=first_out)] = None
        facts[_fact(f"{a} ({a_type})", second, f"{b} ({b_type})", second_fact, out=second_out)] = None
    return list(facts)[:RESULTS_CAP]


def _fact(one: str, type: str, other: str, fact: str | None, *, out: bool) -> str:
    line = f"{one} {type} {other}" if out else f"{other} {type} {one}"
    return f"{line}: {fact}" if fact else line

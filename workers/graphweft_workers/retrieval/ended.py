"""What users stated and what no longer holds: it is shown behind what ended it. Pure, but for the query's text.

A memory has ended if its statements are all that it tells, and each of them has ended by a statement of the scope. A
fact of a conversation has ended if the user claimed something else later: nobody may have condensed that yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graphweft_workers.ports.dialect import GraphDialect
from graphweft_workers.retrieval.profile import PROFILE_KEY, USER, profile_key
from graphweft_workers.retrieval.ranking import Hit
from graphweft_workers.retrieval.records import FACT, STATEMENT
from graphweft_workers.retrieval.statements import Statement

_OF_FACTS: Final = ("lives in", "works for", "works as", "is called")
"""The predicates of facts of which a user has one at a time, and which claims have, too."""
ROUNDS: Final = 3
"""How often what ended something is looked up for what ended it in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidityEnd:
    """When something ended, and what ended it."""

    until: str
    by_memory: str | None
    """The key of the memory that ended it; None once that is forgotten."""
    by_statement: str
    """The key of the statement that ended it."""


def ended_query(
    dialect: GraphDialect,
    scope: Mapping[str, str],
    memories: Sequence[str],
    statements: Sequence[str],
    *,
    facts: Sequence[str] = (),
    now: str = "",
) -> Statement:
    """Return the query for statements of memories, or with the keys: key, whole, until, memory and id of the ender.

    Behind these is since when it is in doubt, and the text of what supported it. Of facts of a user it returns the
    first claim that is not so, up to ``now``.
    """

    def within(variable: str) -> str:
        return "".join(f" AND {dialect.equal(f'{variable}.{dialect.quoted(name)}', f'$__gw_{name}')}" for name in scope)

    parts = [
        f"UNWIND $__gw_{name} AS __gw_key MATCH (s:{STATEMENT} {{{key}: __gw_key}}) "
        f"WHERE s.chat_id IS NOT NULL{within('s')} "
        f"OPTIONAL MATCH (e:{STATEMENT} {{id: s.superseded_by}}) WHERE e.chat_id IS NOT NULL{within('e')} "
        f"OPTIONAL MATCH (d:{STATEMENT} {{id: s.doubted_by}}) WHERE d.chat_id IS NOT NULL{within('d')} "
        f"RETURN __gw_key AS key, {whole} AS whole, CASE WHEN e.id IS NULL THEN null ELSE s.until END AS until, "
        "CASE WHEN e.scopes IS NULL THEN e.memory_id ELSE null END AS memory, e.id AS statement, "
        "s.doubted_at AS doubted, d.text AS because"
        for name, key, whole, keys in (
            ("memories", "memory_id", "s.is_whole", memories), ("statements", "id", "true", statements)
        )
        if keys
    ]  # fmt: skip
    params: dict[str, Any] = {f"__gw_{name}": value for name, value in scope.items()}
    params |= {"__gw_memories": list(memories), "__gw_statements": list(statements)}
    if facts and (user := scope.get("user_id")) is not None:
        parts.append(
            f"UNWIND $__gw_facts AS __gw_key MATCH (f:{FACT} {{id: __gw_key}}) WHERE f.subject = '{USER}' "
            f"AND f.predicate IN $__gw_single MATCH (e:{STATEMENT} {{{PROFILE_KEY}: $__gw_profile}}) "
            f"WHERE e.subject = '{USER}' AND e.predicate = f.predicate AND e.timestamp > f.valid_from "
            "AND e.timestamp <= $__gw_now AND (e.holds AND e.object_key <> toLower(f.object) "
            f"OR NOT e.holds AND e.object_key IN ['', toLower(f.object)]){within('e')} "
            "WITH __gw_key, e ORDER BY e.rank WITH __gw_key, head(collect(e)) AS e "
            "RETURN __gw_key AS key, true AS whole, e.timestamp AS until, "
            "CASE WHEN e.scopes IS NULL THEN e.memory_id ELSE null END AS memory, e.id AS statement, null AS "
            "doubted, null AS because"
        )
        params |= {
            "__gw_facts": list(facts), "__gw_single": list(_OF_FACTS), "__gw_profile": profile_key(user),
            "__gw_now": now,
        }  # fmt: skip
    return Statement(" UNION ALL ".join(parts), params)


def read_ended(rows: Iterable[Sequence[Any]], now: str) -> dict[str, ValidityEnd]:
    """Return what had ended at the time ``now``, by key; ``rows`` are those of ``ended_query``."""
    of_key: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        of_key.setdefault(row[0], []).append(row)
    found: dict[str, ValidityEnd] = {}
    for key, statements in of_key.items():
        if all(whole and until is not None and until <= now for _, whole, until, *_ in statements):
            _, _, until, memory, statement, *_ = max(statements, key=lambda row: (row[2], row[4]))
            found[key] = ValidityEnd(until=until, by_memory=memory, by_statement=statement)
    return found


def read_doubts(rows: Iterable[Sequence[Any]], now: str) -> dict[str, tuple[str, str | None]]:
    """Return since when what holds is in doubt at the time ``now``, and what supported it, by key."""
    return {
        key: (doubted, because)
        for key, _, until, _, _, doubted, because in rows
        if doubted is not None and doubted <= now and (until is None or until > now)
    }


def current_first(
    hits: Sequence[Hit],
    ended_by: Mapping[tuple[int, str], tuple[int, str]],
    make: Callable[[tuple[int, str], Hit], Hit],
) -> list[Hit]:
    """Return the hits, each that has ended directly behind what ended it.

    ``ended_by`` is (target, key) -> target and key of what ended it. If that is no hit, ``make`` makes it one with the
    score of the hit that it ended.
    """
    by_key = {(hit.of, hit.key): hit for hit in hits}
    shown: dict[tuple[int, str], Hit] = {}

    def show(at: tuple[int, str], near: Hit, above: frozenset[tuple[int, str]]) -> None:
        if at in shown or at in above:
            return
        if (ender := ended_by.get(at)) is not None:
            show(ender, near, above | {at})
        hit = by_key.get(at)
        shown[at] = make(at, near) if hit is None else hit._replace(score=max(hit.score, near.score))

    for hit in hits:
        if (hit.of, hit.key) not in shown:
            show((hit.of, hit.key), hit, frozenset())
    return list(shown.values())

"""The targets of a search within scopes: labels, with the properties and indexes that find them, and filters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from graphweft_contracts.memory import metadata_terms
from graphweft_contracts.search import EMBEDDED, Searched, SearchQuery
from graphweft_rules.matching.clock import utc_text
from graphweft_workers.ports.dialect import SearchTarget, TextSide, VectorSide
from graphweft_workers.retrieval.records import (
    ENTITY,
    EPISODE,
    FACT,
    MEMORY_LABEL,
    PREFERENCE,
    RELATION,
    STATEMENT,
    SUMMARY,
    VERSION,
)

_MEMORY: Final = "memory"
_STATEMENT: Final = "statement"
_FORGOTTEN_BY: Final[dict[str | None, tuple[str, ...]]] = {
    _MEMORY: ("chat_id",), _STATEMENT: ("chat_id", "memory_id"),
}  # fmt: skip
"""Further columns of records that are asked for by ids: by these they are changed and forgotten."""
_FACT_COLUMNS: Final = (
    "subject", "predicate", "object", "valid_at", "invalid_at", "doubted_at", "doubted_because", "created_at", "id",
)  # fmt: skip
_MEMORY_COLUMNS: Final = (
    "role", "timestamp", "author_name", "times", "tags", "metadata", "pinned", "expires_at", "invalid_at", "id",
)  # fmt: skip


def searched(query: SearchQuery, *, now: str, since: str) -> tuple[SearchTarget, ...]:
    """Return the targets of a search within scopes, with its filters.

    What ends must hold at ``now``, or at any time from ``since`` on if that is earlier. With ids, or if the query
    includes what has ended, it may have held at any time.
    """
    own = None if query.memory is None else query.memory.user_id
    found = [target for scope in query.scopes for target in scoped(query.of, scope, now=now)]
    if query.include_ended or query.ids is not None:
        found = [target if target.valid_at is None else replace(target, valid_since="") for target in found]
    elif since < now or query.as_of is not None:
        found = [target if target.valid_at is None else replace(target, valid_since=since) for target in found]
    if (since < now or query.as_of is not None) and query.of in EMBEDDED:
        found += [_versions(scope, now=now, since=since) for scope in query.scopes]
    if query.tags or query.metadata:
        found = [target for target in found if target.kind == _MEMORY]
    return tuple(_filtered(_with_users(target, own), query, now) for target in found)


def is_of_another(target: SearchTarget, own: str | None) -> bool:
    """Return whether the records of a target are of another user than ``own``, who asks, if that is known."""
    return own is not None and target.scope.get("user_id", own) != own


def _with_users(target: SearchTarget, own: str | None) -> SearchTarget:
    """Return a target whose rows name the user where that may be another than ``own``: each "I" is somebody's."""
    if "author_name" not in target.shown or (own is not None and target.scope.get("user_id") == own):
        return target
    named = "coalesce(node.author_name, CASE node.role WHEN 'user' THEN node.user_id ELSE null END)"
    return replace(target, expressions={**target.expressions, "author_name": named})


def pinned(target: SearchTarget) -> SearchTarget:
    """Return the target of the memories of a target that are pinned."""
    return replace(target, filters=(*target.filters, ("{node}.pinned = {value}", True)))


def _filtered(target: SearchTarget, query: SearchQuery, now: str) -> SearchTarget:
    """Return a target with the filters of a search."""
    filters: list[tuple[str, Any]] = []
    if query.ids is not None:
        filters.append(("{node}.id IN {value}", list(query.ids)))
        if told := _FORGOTTEN_BY.get(target.kind):
            target = replace(target, shown=(*target.shown, *told))
    filters += [("{value} IN {node}.tags", tag) for tag in query.tags or ()]
    filters += [("{value} IN {node}.metadata_terms", term) for term in metadata_terms(query.metadata or {})]
    time = f"{{node}}.{target.time}"
    if query.since is not None:
        filters.append((f"{time} >= {{value}}", utc_text(query.since)))
    if query.until is not None:
        filters.append((f"{time} < {{value}}", utc_text(query.until)))
    if query.as_of is not None and (target.valid_at is None or MEMORY_LABEL in target.labels):
        filters.append((f"{time} <= {{value}}", now))
    return replace(target, filters=tuple(filters)) if filters else target


def scoped(of: Searched, scope: Mapping[str, str], *, now: str) -> tuple[SearchTarget, ...]:
    """Return the targets of a search within a scope; facts must hold at ``now`` (UTC, as ``utc_text`` writes it).

    Facts and entities are known beyond their thread: with another scope, ``thread_id`` does not limit them. For facts
    of conversations this needs ``user_id``. In ``all``, ``thread_id`` limits every kind.
    """
    wide = _beyond_thread(scope)
    match of:
        case "all":
            return (
                memories(scope, now=now),
                _facts(scope, now),
                _stated_facts(scope, now, in_thread=True),
                _preferences(scope),
                _summaries(scope),
                _statements(scope),
            )
        case "memories":
            return (memories(scope, now=now),)
        case "facts":
            return _facts(wide if "user_id" in scope else scope, now), _stated_facts(scope, now, in_thread=False)
        case "preferences":
            return (_preferences(scope),)
        case "summaries":
            return (_summaries(scope),)
        case "entities":
            return (_target(ENTITY, "entity", "stated", ("type", "id"), wide, says="name"),)
        case "episodes":
            shown = ("name", "episode_type", "reference_time", "id")
            return (_target(EPISODE, "episode", "reference_time", shown, scope, says="content"),)
        case "profile":  # it is read, and not searched: see ``profile``
            return ()


def memories(scope: Mapping[str, str], *, now: str) -> SearchTarget:
    """Return the target of memories that have not ended at ``now`` by themselves.

    Their vectors have no index: a search compares all vectors of the scope.
    """
    vector = VectorSide(property="embedding", model="embedding_model", size="embedding_size")
    shown = _MEMORY_COLUMNS
    ended = "CASE WHEN node.expires_at <= $__gw_valid_at THEN node.expires_at ELSE null END"
    counted = {"times": "null", "invalid_at": ended}  # the search counts equal texts, and knows what else has ended
    turn = ("coalesce(n.thread_id, n.chat_id)", "n.role", "n.author_name")
    return _target(
        MEMORY_LABEL,
        _MEMORY,
        "timestamp",
        shown,
        scope,
        known_by=None,
        vector=vector,
        expressions=counted,
        turn=turn,
        valid_at=now,
        validity=("holds_from", "expires_at"),
    )


def _versions(scope: Mapping[str, str], *, now: str, since: str) -> SearchTarget:
    """Return the target of what memories said before they were updated. They are found by words."""
    lacking = ("times", "tags", "metadata", "pinned", "expires_at")
    own = {**dict.fromkeys(lacking, "null"), "invalid_at": "node.valid_to"}
    return _target(
        VERSION,
        _MEMORY,
        "timestamp",
        _MEMORY_COLUMNS,
        scope,
        expressions=own,
        turn=("coalesce(n.thread_id, n.chat_id)", "n.role", "n.author_name"),
        valid_at=now,
        valid_since=since,
        validity=("timestamp", "valid_to"),
    )


def _statements(scope: Mapping[str, str]) -> SearchTarget:
    """Return the target of statements whose memories are forgotten: others are found by their memories."""
    return _target(
        STATEMENT,
        _STATEMENT,
        "timestamp",
        ("role", "timestamp", "author_name", "invalid_at", "id"),
        scope,
        expressions={"invalid_at": "null"},
        turn=("coalesce(n.thread_id, n.chat_id)", "n.role", "n.author_name"),
    )


def _facts(scope: Mapping[str, str], now: str) -> SearchTarget:
    """Return the target of facts of conversations."""
    return _target(
        FACT,
        "fact",
        "valid_from",
        _FACT_COLUMNS,
        scope,
        joined=(
            f"OPTIONAL MATCH (node)-[:EXTRACTED_FROM]->(__gw_summary:{SUMMARY}) "
            "WITH node, __gw_hit, min(__gw_summary.recorded) AS __gw_recorded"
        ),
        expressions={
            "valid_at": "node.valid_from",
            "invalid_at": f"node.{(until := 'thread_valid_to' if 'thread_id' in scope else 'valid_to')}",
            "doubted_at": "null",
            "doubted_because": "null",
            "created_at": "__gw_recorded",
        },
        valid_at=now,
        validity=("valid_from", until),
    )


def _stated_facts(scope: Mapping[str, str], now: str, *, in_thread: bool) -> SearchTarget:
    """Return the target of facts of episodes; ``in_thread``: those that an episode of the scope states.

    With a thread in the scope none says why it is in doubt: another thread may have said that.
    """
    wide = _beyond_thread(scope)
    own, origin = _split(scope, ("application_id", "agent_id", "user_id")) if in_thread else (wide, {})
    is_doubted = "node.doubted_at <= $__gw_valid_at"
    return _target(
        RELATION,
        "fact",
        "stated",
        _FACT_COLUMNS,
        own,
        says="fact",
        joined=(
            f"OPTIONAL MATCH (__gw_source:{ENTITY} {{id: node.source_id}}) "
            f"OPTIONAL MATCH (__gw_target:{ENTITY} {{id: node.target_id}}) "
            f"OPTIONAL MATCH (__gw_support:{RELATION} {{id: coalesce(node.doubted_by, '')}}) "
            f"OPTIONAL MATCH (__gw_episode:{EPISODE})-[:STATES]->(node) "
            "WITH node, __gw_hit, __gw_source, __gw_target, __gw_support, min(__gw_episode.recorded) AS __gw_recorded"
        ),
        expressions={
            "subject": "__gw_source.name",
            "predicate": "node.name",
            "object": "__gw_target.name",
            "doubted_at": f"CASE WHEN {is_doubted} THEN node.doubted_at ELSE null END",
            "doubted_because": (
                "null" if "thread_id" in scope else f"CASE WHEN {is_doubted} THEN __gw_support.fact ELSE null END"
            ),
            "created_at": "__gw_recorded",
        },
        origin=f"({{node}})<-[:STATES]-(:{EPISODE} {{scope}})",
        origin_scope=origin,
        valid_at=now,
    )


def _preferences(scope: Mapping[str, str]) -> SearchTarget:
    """Return the target of preferences; their summaries say in which scope each was stated."""
    own, origin = _split(scope, ("user_id",))
    return _target(
        PREFERENCE,
        "preference",
        "stated_at",
        ("timestamp", "id"),
        own,
        expressions={"timestamp": "node.stated_at"},
        origin=f"({{node}})-[:EXTRACTED_FROM]->(:{SUMMARY} {{scope}})",
        origin_scope=origin,
    )


def _summaries(scope: Mapping[str, str]) -> SearchTarget:
    return _target(SUMMARY, "summary", "timestamp", ("timestamp", "id"), scope)


def _beyond_thread(scope: Mapping[str, str]) -> Mapping[str, str]:
    """Return a scope without its thread, if it names anything else."""
    return {name: value for name, value in scope.items() if name != "thread_id"} or scope


def _split(scope: Mapping[str, str], own: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the part of a scope that nodes store; and, if that is not all, the whole scope."""
    held = {name: value for name, value in scope.items() if name in own}
    return held, {} if len(held) == len(scope) else dict(scope)


def _target(
    label: str,
    kind: str,
    time: str,
    shown: tuple[str, ...],
    scope: Mapping[str, str],
    *,
    says: str = "text",
    **more: Any,
) -> SearchTarget:
    """Return the target of nodes that store their terms, length and scopes."""
    text = TextSide(
        index=f"graphweft_{label}_terms", properties=(says,), terms="terms", length="length", scopes="scopes"
    )
    more = {"known_by": "scopes", **more}
    return SearchTarget(
        labels=(label,), kind=kind, key="id", time=time, says=says, shown=shown, scope=scope, text=text, **more
    )

"""Queries that list what is remembered in a scope, without a search."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from graphweft_contracts.memory import SCOPES
from graphweft_workers.retrieval.records import EPISODE, FACT, MEMORY_LABEL, RELATION, VERSION

MOST_SCANNED: Final = 5_000
"""Memories that ``list_scopes`` should read at most."""


def list_memories(scopes: Collection[str]) -> str:
    """Return the query of the latest ``$limit`` memories with the scopes, ended ones too; they are parameters."""
    return (
        f"MATCH (m:{MEMORY_LABEL}) WHERE {_within('m', scopes)} "
        "RETURN m.timestamp AS time, m.role AS role, m.text AS text, m.author_name AS author_name, m.id AS id, "
        "m.expires_at AS expires_at "
        "ORDER BY m.timestamp DESC, m.id LIMIT $limit"
    )


def read_memory() -> str:
    """Return the query of the memory ``$id``."""
    return (
        f"MATCH (m:{MEMORY_LABEL} {{id: $id}}) "
        "RETURN m.text, m.role, m.timestamp, m.author_name, m.user_id, m.chat_id, m.tags, m.metadata, m.pinned, "
        "m.expires_at, m.id"
    )


def read_versions() -> str:
    """Return the query of what the memory ``$id`` said before it was updated, the latest first."""
    return (
        f"MATCH (v:{VERSION} {{memory_id: $id}}) RETURN v.text, v.timestamp, v.valid_to "
        "ORDER BY v.valid_to DESC, v.timestamp DESC LIMIT 1000"
    )


def list_facts(scopes: Collection[str]) -> str:
    """Return the query of the latest ``$limit`` facts of conversations with the scopes, past ones too."""
    until = "thread_valid_to" if "thread_id" in scopes else "valid_to"
    return (
        f"MATCH (f:{FACT}) WHERE {_within('f', scopes)} "
        "RETURN f.text AS text, f.subject AS subject, f.predicate AS predicate, f.object AS object, "
        f"f.valid_from AS valid_from, f.{until} AS valid_to, f.id AS id "
        "ORDER BY f.valid_from DESC, f.id LIMIT $limit"
    )


def list_relations(scopes: Collection[str]) -> str:
    """Return the query of the latest ``$limit`` facts of episodes with the scopes, past ones too.

    Relations have no thread: of a thread are those that one of its episodes states.
    """
    found = f"MATCH (r:{RELATION}) WHERE {_within('r', scopes)} "
    if "thread_id" in scopes:
        own = "".join(f" AND r.{name} = ${name}" for name in scopes if name != "thread_id")
        stated = f"MATCH (e:{EPISODE}) WHERE {_within('e', scopes)} MATCH (e)-[:STATES]->(r:{RELATION})"
        found = f"{stated} WHERE r.scopes IS NOT NULL{own} WITH DISTINCT r "
    return (
        f"{found}"
        "RETURN r.fact AS text, null AS subject, r.name AS predicate, null AS object, "
        "r.valid_at AS valid_from, r.invalid_at AS valid_to, r.id AS id "
        "ORDER BY r.valid_at DESC, r.id LIMIT $limit"
    )


def list_scopes() -> str:
    """Return the query of the scopes that the first ``$scan`` memories have, those with the most memories first."""
    names = ", ".join(f"m.{name} AS {name}" for name in SCOPES)
    counted = f"RETURN {names}, count(m) AS memories ORDER BY memories DESC LIMIT $limit"
    return f"MATCH (m:{MEMORY_LABEL}) WITH m LIMIT $scan {counted}"


def _within(variable: str, scopes: Collection[str]) -> str:
    return " AND ".join(f"{variable}.{name} = ${name}" for name in scopes)

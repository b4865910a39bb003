"""The indexes that a graph has, and which of them a search names."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from graphweft_contracts import QueryFailed
from graphweft_contracts.search import Searched, SearchQuery
from graphweft_rules.batching import Dialect
from graphweft_rules.packs.episodes import ENTITY, EPISODE, RELATION
from graphweft_rules.packs.memory import FACT, PREFERENCE, SUMMARY
from graphweft_workers.graph.store import Table
from graphweft_workers.retrieval.statements import Statement
from graphweft_workers.retrieval.target import Similarity, Target, TextSide, VectorSide
from graphweft_workers.retrieval.words import Ask

_KEPT_S: Final = 10.0
_MOST_APPS: Final = 1_000
_NAMED: Final = 20
"""Indexes that an error names."""
_OURS: Final = frozenset({"terms", "scopes"})
_SCOPED: Final[Mapping[str, Searched]] = {
    FACT: "facts", PREFERENCE: "preferences", SUMMARY: "summaries", RELATION: "facts", ENTITY: "entities",
    EPISODE: "episodes",
}  # fmt: skip
_LISTING: Final[Mapping[Dialect, str]] = {
    "falkordb": "CALL db.indexes() YIELD label, types, options, entitytype WHERE entitytype = 'NODE' "
    "RETURN label, types, options",
    "neo4j": "SHOW INDEXES YIELD name, type, entityType, labelsOrTypes, properties, options "
    "WHERE entityType = 'NODE' AND type IN ['FULLTEXT', 'VECTOR'] "
    "RETURN name, type, labelsOrTypes, properties, options",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A fulltext or vector index of a graph."""

    kind: Literal["fulltext", "vector"]
    name: str
    """What it is called here: on Neo4j its name, on FalkorDB the label, of a vector index ``Label.property``."""
    labels: tuple[str, ...]
    properties: tuple[str, ...]
    dimensions: int | None = None
    similarity: Similarity = "cosine"
    whole: tuple[str, ...] = ()
    """The properties of the index that this is a part of."""

    @property
    def of(self) -> tuple[str, ...]:
        """The properties that the server's index holds."""
        return self.whole or self.properties

    def scoped(self, memory_label: str) -> Searched | None:
        """Return what is searched within a scope only and would be found by the index; None: nothing of this kind.

        Whatever holds the terms of ours finds them all. What else there is on their labels is somebody's own.
        """
        if memory_label in self.labels:
            return "memories"
        if not _OURS.issubset(self.of):
            return None
        return next((_SCOPED[label] for label in self.labels if label in _SCOPED), None)

    def single(self, name: str) -> Index | None:
        """Return the part of the index that ``name`` names as ``Label.property``, if it does."""
        for label in self.labels:
            for prop in self.properties:
                if name == f"{label}.{prop}":
                    return replace(self, labels=(label,), properties=(prop,), whole=self.of)
        return None

    def __str__(self) -> str:
        """Its name, and what may be said in its place."""
        others = [f"{label}.{prop}" for label in self.labels for prop in self.properties]
        return self.name if others == [self.name] else f"{self.name} ({', '.join(others)})"


class Indexes:
    """Lists the indexes of apps' graphs and keeps what it found for 10 seconds."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect: Dialect = dialect
        self._kept: dict[str, tuple[float, tuple[Index, ...]]] = {}

    async def resolve(self, app_id: str, query: SearchQuery, ask: Ask, *, memory_label: str) -> Target:
        """Return what a search names. Raises ``QueryFailed``, which says what there is, for a name that nothing has."""
        until, found = self._kept.get(app_id, (0.0, ()))
        if time.monotonic() < until:
            try:
                return resolved(query, found, memory_label=memory_label)
            except QueryFailed:  # it may have been made since
                pass
        found = listed(self._dialect, await ask(Statement(_LISTING[self._dialect], {})))
        if len(self._kept) >= _MOST_APPS:
            self._kept.clear()
        self._kept[app_id] = time.monotonic() + _KEPT_S, found
        return resolved(query, found, memory_label=memory_label)


def listed(dialect: Dialect, table: Table) -> tuple[Index, ...]:
    """Return the fulltext and vector indexes on nodes that a server has listed, in the order of their names."""
    found = _of_falkordb(table.rows) if dialect == "falkordb" else _of_neo4j(table.rows)
    return tuple(sorted(found, key=lambda index: (index.kind, index.name)))


def resolved(query: SearchQuery, found: Sequence[Index], *, memory_label: str) -> Target:
    """Return what a search names among the indexes that were found; see ``Indexes.resolve``."""
    assert query.index_name is not None
    if query.index_type == "fulltext":
        index = _named(query.index_name, "fulltext", found, memory_label)
        return Target(labels=index.labels, text=_text_side(index))
    index = _named(query.index_name, "vector", found, memory_label)
    vector = VectorSide(
        property=index.properties[0], index=index.name, dimensions=index.dimensions, similarity=index.similarity
    )
    if query.index_type == "hybrid":
        words = _named(query.fulltext_index_name or "", "fulltext", found, memory_label)
        if index.labels[0] not in words.labels:
            raise QueryFailed(
                f"the vector index {index} and the fulltext index {words} are on different labels, so nothing can be "
                "found by both: name two indexes on the same label"
            )
        return Target(labels=index.labels, text=_text_side(words), vector=vector)
    # What is searched when there is no vector for the question.
    beside = next((each for each in found if each.kind == "fulltext" and _beside(each, index, memory_label)), None)
    return Target(labels=index.labels, text=_text_side(beside) if beside else None, vector=vector)


def _beside(words: Index, vector: Index, memory_label: str) -> bool:
    return vector.labels[0] in words.labels and words.scoped(memory_label) is None


def _named(name: str, kind: str, found: Sequence[Index], memory_label: str) -> Index:
    of_kind = [index for index in found if index.kind == kind]
    exact = [index for index in of_kind if index.name == name]
    parts = [part for index in of_kind if (part := index.single(name))]
    others = [index for index in of_kind if not index.scoped(memory_label)]
    for index in (*exact, *parts):
        if scoped := index.scoped(memory_label):
            raise QueryFailed(
                f"{name!r} is an index of {scoped}, which are searched within a scope only: give the search `memory` "
                "in the place of `index_name`"
            )
        return index
    there = ", ".join(map(str, others[:_NAMED])) + (", …" if len(others) > _NAMED else "")
    raise QueryFailed(f"there is no {kind} index {name!r} in the graph; there is: {there or 'none'}")


def _text_side(index: Index) -> TextSide:
    return TextSide(index=index.name, properties=index.properties)


def _of_falkordb(rows: Iterable[Sequence[Any]]) -> list[Index]:
    found: list[Index] = []
    for label, types, options in rows:
        words = tuple(sorted(name for name, kinds in types.items() if "FULLTEXT" in kinds))
        if words:
            found.append(Index(kind="fulltext", name=label, labels=(label,), properties=words))
        for name in sorted(name for name, kinds in types.items() if "VECTOR" in kinds):
            said: Mapping[str, Any] = options.get(name) or {}
            found.append(
                Index(
                    kind="vector",
                    name=f"{label}.{name}",
                    labels=(label,),
                    properties=(name,),
                    dimensions=said.get("dimension"),
                    similarity=_similarity(said.get("similarityFunction")),
                )
            )
    return found


def _of_neo4j(rows: Iterable[Sequence[Any]]) -> list[Index]:
    found: list[Index] = []
    for name, kind, labels, properties, options in rows:
        said: Mapping[str, Any] = options["indexConfig"]
        found.append(
            Index(
                kind="vector" if kind == "VECTOR" else "fulltext",
                name=name,
                labels=tuple(labels),
                properties=tuple(properties),
                dimensions=said.get("vector.dimensions"),
                similarity=_similarity(said.get("vector.similarity_function")),
            )
        )
    return found


def _similarity(name: Any) -> Similarity:
    return "euclidean" if str(name).lower() == "euclidean" else "cosine"

"""The indexes of a graph, and how a search names one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from graphweft_contracts import QueryFailed
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.search import Searched, SearchQuery
from graphweft_workers.ports.dialect import GraphDialect, ListedIndex, SearchTarget, TextSide, VectorSide
from graphweft_workers.ports.graph_store import Table
from graphweft_workers.retrieval.fulltext import Ask
from graphweft_workers.retrieval.records import (
    ENTITY,
    EPISODE,
    FACT,
    MEMORY_LABEL,
    PREFERENCE,
    RELATION,
    STATEMENT,
    SUMMARY,
)
from graphweft_workers.retrieval.statements import Statement
from graphweft_workers.support.timing import TIMING

_MOST_APPS: Final = 1_000
_NAMED: Final = 20
"""Limit of indexes that an error lists."""
_OURS: Final = frozenset({"terms", "scopes"})
_SCOPED: Final[Mapping[str, Searched]] = {
    FACT: "facts", PREFERENCE: "preferences", SUMMARY: "summaries", RELATION: "facts", ENTITY: "entities",
    EPISODE: "episodes", STATEMENT: "all",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Index(ListedIndex):
    """An index of a graph, or one label and property of it."""

    whole: tuple[str, ...] = ()
    """The properties of the whole index, if this is a part."""

    @property
    def of(self) -> tuple[str, ...]:
        """The properties of the whole index."""
        return self.whole or self.properties

    def scoped(self) -> Searched | None:
        """Return the kind that the index would return without a scope check, or None if it is safe to search.

        Indexes of rules on the same labels, without the properties ``terms`` and ``scopes``, are safe.
        """
        if MEMORY_LABEL in self.labels:
            return "memories"
        if not _OURS.issubset(self.of):
            return None
        return next((_SCOPED[label] for label in self.labels if label in _SCOPED), None)

    def single(self, name: str) -> Index | None:
        """Return the part of the index that is called ``name``, written ``Label.property``; None if there is none."""
        for label in self.labels:
            for prop in self.properties:
                if name == f"{label}.{prop}":
                    return replace(self, labels=(label,), properties=(prop,), whole=self.of)
        return None

    def __str__(self) -> str:
        """The name, and each ``Label.property`` that names a part."""
        others = [f"{label}.{prop}" for label in self.labels for prop in self.properties]
        return self.name if others == [self.name] else f"{self.name} ({', '.join(others)})"


class Indexes:
    """Lists the indexes of graphs, and caches each list for 10 seconds."""

    def __init__(
        self, dialect: GraphDialect, *, clock: Clock = SYSTEM_CLOCK, kept_s: float = TIMING.retrieval.names_s
    ) -> None:
        self._dialect = dialect
        self._clock = clock
        self._kept_s = kept_s
        self._kept: dict[str, tuple[float, tuple[Index, ...]]] = {}

    async def resolve(self, app_id: str, query: SearchQuery, ask: Ask) -> SearchTarget:
        """Return the target that a query names.

        Raises ``QueryFailed`` without a graph, and, with a list of the indexes, for an unknown one.
        """
        until, found = self._kept.get(app_id, (0.0, ()))
        if self._clock.monotonic() < until:
            try:
                return resolved(query, found)
            except QueryFailed:  # it may have been created since
                pass
        return resolved(query, await self._list(app_id, ask))

    async def changed(self, app_id: str, query: SearchQuery, ask: Ask) -> bool:
        """Tell whether the indexes of a graph changed since the last ``resolve``, so that a search may find more now.

        A server may return no rows and no error if the graph lacks the index, or builds it: call it when a search found
        nothing. Raises ``QueryFailed`` if that is so now.
        """
        _, before = self._kept.get(app_id, (0.0, ()))
        found = await self._list(app_id, ask)
        for name, index in _asked(query, found):
            if not index.is_built:
                raise QueryFailed(f"the {index.kind} index {name!r} is being built: search again when it is complete")
        return found != before

    async def _list(self, app_id: str, ask: Ask) -> tuple[Index, ...]:
        table = await ask(Statement(self._dialect.list_indexes, {}))
        if not table.columns:
            self._kept.pop(app_id, None)
            raise QueryFailed(
                f"the app {app_id!r} has no graph: check its name. The first event that a rule matches makes one"
            )
        found = listed(self._dialect, table)
        if len(self._kept) >= _MOST_APPS:
            self._kept.clear()
        self._kept[app_id] = self._clock.monotonic() + self._kept_s, found
        return found


def listed(dialect: GraphDialect, table: Table) -> tuple[Index, ...]:
    """Return the fulltext and vector indexes on nodes that a server lists, by kind and name."""
    found = (Index(**asdict(index)) for index in dialect.read_indexes(table.rows))
    return tuple(sorted(found, key=lambda index: (index.kind, index.name)))


def resolved(query: SearchQuery, found: Sequence[Index]) -> SearchTarget:
    """Return the target that a query names among ``found``; see ``Indexes.resolve``."""
    (_, index), *more = _asked(query, found)
    if query.index_type == "fulltext":
        return SearchTarget(labels=index.labels, text=_text_side(index))
    vector = VectorSide(
        property=index.properties[0], index=index.name, dimensions=index.dimensions, similarity=index.similarity
    )
    if more:
        [(_, words)] = more
        if index.labels[0] not in words.labels:
            raise QueryFailed(
                f"the vector index {index} and the fulltext index {words} are on different labels: "
                "name two indexes on the same label"
            )
        return SearchTarget(labels=index.labels, text=_text_side(words), vector=vector)
    # Searched if the question has no vector.
    beside = next((each for each in found if each.kind == "fulltext" and _beside(each, index)), None)
    return SearchTarget(labels=index.labels, text=_text_side(beside) if beside else None, vector=vector)


def _asked(query: SearchQuery, found: Sequence[Index]) -> list[tuple[str, Index]]:
    """Return the indexes that a query names, with these names; of a hybrid search, the one of vectors first."""
    assert query.index_name is not None
    if query.index_type == "fulltext":
        names = [(query.index_name, "fulltext")]
    elif query.index_type == "hybrid":
        names = [(query.index_name, "vector"), (query.fulltext_index_name or "", "fulltext")]
    else:
        names = [(query.index_name, "vector")]
    return [(name, _named(name, kind, found)) for name, kind in names]


def _beside(words: Index, vector: Index) -> bool:
    return vector.labels[0] in words.labels and words.scoped() is None


def _named(name: str, kind: str, found: Sequence[Index]) -> Index:
    of_kind = [index for index in found if index.kind == kind]
    exact = [index for index in of_kind if index.name == name]
    parts = [part for index in of_kind if (part := index.single(name))]
    others = [index for index in of_kind if not index.scoped()]
    for index in (*exact, *parts):
        if scoped := index.scoped():
            raise QueryFailed(
                f"{name!r} is an index of {scoped}, which are searched within a scope only: "
                "use `memory` instead of `index_name`"
            )
        return index
    there = ", ".join(map(str, others[:_NAMED])) + (", …" if len(others) > _NAMED else "")
    raise QueryFailed(
        f"unknown {kind} index {name!r}; the graph has: {there or 'none'}. graphweft makes one that a rule names as "
        "Label.property, at the next event of a workflow that writes the label"
    )


def _text_side(index: Index) -> TextSide:
    return TextSide(index=index.name, properties=index.properties)

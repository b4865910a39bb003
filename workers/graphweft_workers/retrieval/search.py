"""Search over a graph, on either kind of server: see ``Searcher``."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from graphweft_contracts import GraphweftError, InvalidSettings, QueryFailed
from graphweft_contracts.search import IndexType, SearchQuery
from graphweft_rules.clauses import outline
from graphweft_rules.clock import utc_text
from graphweft_rules.packs.memory import MEMORY_LABEL
from graphweft_rules.terms import query_terms
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.graph.limits import MOST_ROWS
from graphweft_workers.graph.store import GraphStore, Table
from graphweft_workers.retrieval import statements
from graphweft_workers.retrieval.dialects import language
from graphweft_workers.retrieval.indexes import Indexes
from graphweft_workers.retrieval.ranking import Hit, falling, fused
from graphweft_workers.retrieval.statements import GRID, Statement
from graphweft_workers.retrieval.target import Target, scoped
from graphweft_workers.retrieval.words import by_words

__all__ = ("Found", "IndexNames", "Searcher")

_EMBEDDING: Final = 0.5
"""Of the time that is left to a search, what the embedder may take."""
_LEAST_S: Final = 0.001
_FIRST: Final = ("text", "score")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexNames:
    """Which index is searched where a search names none: ``index`` if it is set, else that of the type."""

    index: str | None = None
    vector: str = "chunkEmbeddings"
    fulltext: str = "search_chunks"

    def of(self, index_type: IndexType | None) -> str:
        """Return the name for a type of search; a hybrid one begins with vectors."""
        return self.index or (self.fulltext if index_type == "fulltext" else self.vector)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found, best first.

    The columns begin with ``text`` and ``score``. Memories also give ``role``, ``timestamp``, ``author_name`` and
    ``id``, facts ``name``, ``source``, ``target``, ``valid_at``, ``invalid_at``, ``created_at`` and ``id``, entities
    ``type`` and ``id``, episodes ``name``, ``episode_type``, ``reference_time`` and ``id``; a retrieval query gives
    whatever else it returns.
    """

    table: Table
    degraded: str | None = None
    """Why words alone, or nothing, were searched where a vector was wanted."""


class _NoVector(Exception):
    """There is no vector for the question; the text says why."""


class Searcher:
    """Searches apps' graphs by one algorithm, so that FalkorDB and Neo4j give the same order.

    - By vector: (1 + cosine) / 2, rounded to 5 decimals. Within a scope every vector is compared, of the embedder's
      model only; through an index the best of at least 100 and 10 times ``top_k`` nodes that the index takes for the
      nearest. Nodes without a vector cannot be found.
    - By words: BM25 over our own terms, in [0, ∞). Nodes that hold none of the terms are not found.
    - Hybrid: both, see ``fused``; in [0, 1]. What neither finds is not found.
    - By recency: the latest first, of facts and entities by the time that the latest episode which says them is about;
      the score, from 1 down, says the place only.

    Of equal scores the smaller key (of memories: the id) comes first. The scope comes before ``top_k``, so there are
    ``top_k`` rows whenever so many can be found in it. So does the time of facts: those that have ended, or have not
    begun, are not there. Nodes that go away meanwhile are missing.
    """

    def __init__(
        self,
        graph: GraphStore,
        embedder: Embedder | None = None,
        *,
        memory_label: str = MEMORY_LABEL,
        names: IndexNames = IndexNames(),
    ) -> None:
        """Closes neither of the two. Memories have the label ``memory_label``; ``names`` are for unnamed indexes."""
        self._graph = graph
        self._embedder = embedder
        self._memory_label = memory_label
        self._names = names
        self._indexes = Indexes(graph.dialect)

    async def search(self, app_id: str, query: SearchQuery, *, timeout_s: float) -> Found:
        """Return what is found within ``timeout_s``; the embedder gets half of what is left then.

        Raises ``InvalidSettings`` without an embedder where there has to be one, ``QueryFailed`` (``timeout``, or
        ``query_error`` for an index that is not there or a retrieval query that fails), and ``GraphUnavailable``.
        An embedder that fails or is late is no error: then words are searched, and ``Found.degraded`` says so.
        """
        if query.memory is None and query.index_name is None:
            query = query.model_copy(update={"index_name": self._names.of(query.index_type)})
        return await _Search(self._graph, self._embedder, app_id, query, timeout_s).run(
            self._indexes, self._memory_label
        )


class _Search:
    """One search."""

    def __init__(
        self, graph: GraphStore, embedder: Embedder | None, app_id: str, query: SearchQuery, timeout_s: float
    ) -> None:
        self._graph = graph
        self._embedder = embedder
        self._app_id = app_id
        self._query = query
        self._until = time.monotonic() + timeout_s
        self._language = language(graph.dialect)
        self._scope: Mapping[str, str] = query.scope

    async def run(self, indexes: Indexes, memory_label: str) -> Found:
        kind = self._kind()
        if kind in {"vector", "hybrid"} and self._embedder is None:
            msg = f"embedder is required when index_type={kind!r}"
            raise InvalidSettings(msg)
        if self._query.memory:
            target = scoped(self._query.of, now=utc_text(datetime.now(UTC)), memory_label=memory_label)
            if kind is None or not self._query.text.strip():
                return Found(table=await self._shown(target, await self._latest(target)))
        else:
            if not self._query.text.strip():
                return Found(table=Table(columns=_FIRST, rows=()))
            target = await indexes.resolve(self._app_id, self._query, self._ask, memory_label=memory_label)
        if kind == "fulltext":
            hits, degraded = await self._by_words(target), None
        elif kind == "hybrid":
            hits, degraded = await self._by_both(target)
        else:
            hits, degraded = await self._by_vector(target)
        return Found(table=await self._shown(target, hits[: self._query.top_k]), degraded=degraded)

    def _kind(self) -> IndexType | None:
        """Return how to search; None: by recency."""
        if self._query.index_type or not self._query.memory:
            return self._query.index_type or "vector"
        if self._query.of != "memories":
            return "fulltext" if self._query.text.strip() else None
        return "vector" if self._embedder else None

    async def _latest(self, target: Target) -> list[Hit]:
        table = await self._ask(statements.latest(self._language, target, self._scope, self._query.top_k))
        count = len(table.rows)
        return [Hit(row[0], row[-1], 1.0 - place / count) for place, row in enumerate(table.rows)]

    async def _by_words(self, target: Target) -> list[Hit]:
        terms = query_terms(self._query.text, filter_stop_words=self._query.filter_stop_words)
        return await by_words(self._ask, self._language, target, self._scope, terms)

    async def _by_vector(self, target: Target) -> tuple[list[Hit], str | None]:
        try:
            return await self._nearest(target, await self._embedded(), self._query.top_k), None
        except _NoVector as reason:
            if target.text is None:
                return [], f"{reason}; there is no fulltext index beside the vectors, so nothing was searched"
            return await self._by_words(target), f"{reason}; words were searched instead"

    async def _by_both(self, target: Target) -> tuple[list[Hit], str | None]:
        try:
            async with asyncio.TaskGroup() as group:
                wording = group.create_task(self._by_words(target))
                embedding = group.create_task(self._nearest_to_question(target))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        words, near = wording.result(), embedding.result()
        if isinstance(near, _NoVector):
            return fused([], words[: self._wide()]), f"{near}; words alone were searched"
        return fused(near, words[: self._wide()]), None

    async def _nearest_to_question(self, target: Target) -> list[Hit] | _NoVector:
        try:
            return await self._nearest(target, await self._embedded(), self._wide())
        except _NoVector as reason:
            return reason

    async def _nearest(self, target: Target, vector: Sequence[float], limit: int) -> list[Hit]:
        side = target.vector
        assert side is not None
        assert self._embedder is not None
        if side.dimensions not in {None, len(vector)}:
            raise QueryFailed(
                f"the index {side.index} holds vectors of {side.dimensions} numbers, and the embedder "
                f"{self._embedder.model!r} gives {len(vector)}: search with the model that the index was filled with"
            )
        if side.index is None:
            asked = statements.nearest(
                self._language, target, self._scope, vector, model=self._embedder.model, limit=limit
            )
        else:
            wide = max(self._wide(), limit)
            asked = statements.nearest_by_index(self._language, target, vector, wide=wide, limit=limit)
        try:
            table = await self._ask(asked)
        except QueryFailed as error:
            if "dimension" not in str(error):
                raise
            # One event is enough for that, and must not cost the scope its memory.
            raise _NoVector(
                f"the embedder {self._embedder.model!r} gives {len(vector)} numbers, and there are memories with other "
                "vectors under its name: give the model another name, or embed them again"
            ) from error
        return [Hit(row[1], row[-1], row[0] / GRID) for row in table.rows]

    async def _embedded(self) -> list[float]:
        """Return the vector of the question. Raises ``_NoVector``."""
        assert self._embedder is not None
        limit_s = self._left_s() * _EMBEDDING
        try:
            async with asyncio.timeout(limit_s):
                [vector] = await self._embedder.embed([self._query.text])
        except TimeoutError:
            raise _NoVector(f"the embedder gave no vector within {limit_s:.3f} s") from None
        except GraphweftError as error:
            raise _NoVector(str(error)) from error
        except Exception as error:  # an embedder may be the user's own, and must not end the search
            raise _NoVector(f"the embedder failed: {type(error).__name__}") from error
        if not any(vector) or not all(map(math.isfinite, vector)):
            raise _NoVector("the embedder gave no vector that can be compared")
        return vector

    def _wide(self) -> int:
        """Return how many results of one kind are looked at where they are not final."""
        return min(MOST_ROWS, max(100, 10 * self._query.top_k))

    async def _shown(self, target: Target, hits: Sequence[Hit]) -> Table:
        columns = (*_FIRST, *target.shown)
        if not hits:
            return Table(columns=columns, rows=())
        if self._query.retrieval_query is not None:
            return await self._enriched(target, hits, self._query.retrieval_query)
        table = await self._ask(statements.rows(self._language, target, self._scope, hits))
        found = {row[0]: row[1:] for row in table.rows}
        rows = ((found[hit.handle][0], hit.score, *found[hit.handle][1:]) for hit in hits if hit.handle in found)
        return Table(columns=columns, rows=tuple(rows))

    async def _enriched(self, target: Target, hits: Sequence[Hit], retrieval_query: str) -> Table:
        asked = statements.enriched(
            self._language,
            target,
            self._scope,
            falling(hits),
            retrieval_query=retrieval_query,
            values=self._query.params,
        )
        table = await self._ask(asked)
        if not table.columns:  # the graph went away
            return Table(columns=_FIRST, rows=())
        missing = [name for name in _FIRST if name not in table.columns]
        if missing:
            raise QueryFailed(
                f"the retrieval query returns {', '.join(table.columns)}, and must return {' and '.join(missing)} too: "
                "write RETURN node.text AS text, score, …"
            )
        order = sorted(range(len(table.columns)), key=lambda at: (*(table.columns[at] != name for name in _FIRST), at))
        rows = [tuple(row[at] for at in order) for row in table.rows]
        if not _ordered(retrieval_query):
            # As they came where scores are equal: FalkorDB and Neo4j go on in the order that they are given.
            rows.sort(key=_falling_score)
        return Table(columns=tuple(table.columns[at] for at in order), rows=tuple(rows))

    async def _ask(self, asked: Statement) -> Table:
        return await self._graph.read(self._app_id, asked.text, asked.params, timeout_s=self._left_s())

    def _left_s(self) -> float:
        return max(_LEAST_S, self._until - time.monotonic())


def _falling_score(row: Sequence[Any]) -> tuple[bool, float]:
    score = row[1]
    return (False, -score) if isinstance(score, int | float) else (True, 0.0)


def _ordered(statement: str) -> bool:
    """Tell whether a query says itself in which order its rows come: by ORDER BY behind its last RETURN."""
    last = [clause.keyword for clause in outline(statement).clauses if clause.depth == 0]
    return "RETURN" in last and "ORDER" in last[len(last) - last[::-1].index("RETURN") :]

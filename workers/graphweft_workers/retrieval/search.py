"""Search over a graph: see ``Searcher``."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

import numpy as np

from graphweft_contracts import GraphweftError, InvalidSettings, QueryFailed
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.search import EMBEDDED, REMEMBERED, IndexType, SearchQuery
from graphweft_rules.cypher.clauses import outline
from graphweft_rules.matching.clock import utc_text
from graphweft_workers.embedding.cached import of_app
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.ports.dialect import SearchTarget
from graphweft_workers.ports.graph_store import GraphStore, Table
from graphweft_workers.ports.result_limits import MOST_ROWS
from graphweft_workers.retrieval import profile, statements
from graphweft_workers.retrieval.arrangement import Arrangement, Shown, plain_text
from graphweft_workers.retrieval.empty_turns import requests
from graphweft_workers.retrieval.ended import ROUNDS, ValidityEnd, current_first, ended_query, read_doubts, read_ended
from graphweft_workers.retrieval.fulltext import by_words
from graphweft_workers.retrieval.indexes import Indexes
from graphweft_workers.retrieval.questions import RankedQuestion, is_home, is_stay, read_question
from graphweft_workers.retrieval.ranking import GRID, Handle, Hit, beside, cosine, falling, fused
from graphweft_workers.retrieval.records import FACT, MEMORY_LABEL, STATEMENT, SUMMARY
from graphweft_workers.retrieval.scope_index import Mask, ScopeIndex
from graphweft_workers.retrieval.scope_indexes import ScopeIndexes, read_index
from graphweft_workers.retrieval.scope_ranking import FITTING, LEAST, rank
from graphweft_workers.retrieval.signals import KindIndex, Near, content_terms
from graphweft_workers.retrieval.stated_time import ALWAYS, stated_time
from graphweft_workers.retrieval.statements import Statement
from graphweft_workers.retrieval.targets import is_of_another, pinned, searched
from graphweft_workers.support.timing import TIMING, RetrievalTiming
from graphweft_workers.text.terms import query_terms

type _Kind = IndexType | Literal["words"]
"""``words`` is the ranking of ``hybrid`` without vectors."""

_EMBEDDING: Final = 0.5
"""Share of the remaining time that the embedder may take."""
_KNOWN: Final = frozenset({"fact", "preference", "statement"})
_ENDING: Final = frozenset({(MEMORY_LABEL,), (STATEMENT,), (FACT,)})
"""Labels of the nodes that end by statements."""
_SAID: Final = frozenset({"memory", "statement"})
_FIRST: Final = ("text", "score")
_WIDEST: Final = 1_000
"""Limit of hits among which a search looks for ones that tell something."""
MOST_WHOLE: Final = 2_000
"""Limit of nodes of a kind that are read for a ranking without an index; of more, those that words or vectors find."""
_CLAIMED: Final = 0.5
"""The least score of a claim that answers the question."""
_MOST_MORE: Final = 20
"""Rows that are read beyond ``top_k``, in place of those that tell nothing or repeat another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexNames:
    """The index of a search that names none: ``index`` if set, else the default of the type."""

    index: str | None = None
    vector: str = "chunkEmbeddings"
    fulltext: str = "search_chunks"

    def of(self, index_type: IndexType | None) -> str:
        """Return the name for a type of search; ``hybrid`` uses the vector index."""
        return self.index or (self.fulltext if index_type == "fulltext" else self.vector)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRows:
    """Rows of a search, best first.

    The columns begin with ``text`` and ``score``; a search within a scope adds ``kind``. Then, by kind:

    - memories: ``role``, ``timestamp``, ``author_name``, ``times`` (said by the author, if more than once), ``tags``,
      ``metadata``, ``pinned``, ``expires_at`` (its own end), ``invalid_at`` (when it ended), ``id``; asked for by ids,
      ``chat_id``
    - facts, and the lines of a profile, which are facts: ``subject``, ``predicate``, ``object``, ``valid_at``,
      ``invalid_at``, ``doubted_at``, ``doubted_because``, ``created_at``, ``id``
    - preferences, summaries: ``timestamp``, ``id``
    - entities: ``type``, ``id``
    - episodes: ``name``, ``episode_type``, ``reference_time``, ``id``

    A search of several kinds has the columns of all, with null in those that a kind lacks; ``doubted_at`` and
    ``doubted_because`` are there for what a user claims, too. A retrieval query adds the
    columns that it returns.
    """

    table: Table
    degraded: str | None = None
    """Why a vector search used words only, or searched nothing."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows by the names of their columns."""
        return [dict(zip(self.table.columns, row, strict=True)) for row in self.table.rows]


@dataclass(frozen=True, slots=True)
class _NoVector:
    """The question has no vector."""

    reason: str


class _AnotherLength(QueryFailed):
    """The index holds vectors of another length than the question's."""


class Searcher:
    """Searches the graphs of apps. Every graph server gives the same rows in the same order.

    - Vector: score (1 + cosine) / 2, rounded to 5 decimals. A search within a scope compares every vector of the
      embedder's model. A search of an index compares the nearest ``max(100, 10 * top_k)`` nodes of the index.
    - Fulltext: BM25 over the terms of ``terms``, in [0, ∞), measured over all kinds that are searched.
    - Hybrid, and the default within a scope: all signals of ``scope_ranking``, in [0, 1], with vectors if there is an
      embedder. Of an index: both, combined by ``fused``. Only memories have vectors; a vector search that includes
      other kinds finds those by words.
      A question of stop words alone, such as "Who am I?", finds the latest, facts and preferences first.
    - Recency: the latest first; for facts and entities, by the time of the latest episode that states them. The score
      is null; a retrieval query gets scores that fall from 1. With ``without_embedder: latest``, recent memories
      alternate with fulltext hits of the other kinds.
    - Profile: the claims of the user that hold, in the order of ``profile``, without scores.
    - Fill: with ``fill: latest``, the latest rows follow the hits of a question, up to ``top_k``. Their score is the
      least, or that of the last hit if this is lower.

    Ties go by time within a scope, the latest first, then by key (the id, for memories); nodes that are equally near go
    by key alone. Scopes, filters and validity apply before ``top_k``: a search returns ``top_k`` rows if the scope has
    so many hits with different texts. Nodes that are deleted during the search are missing. A node that belongs to
    several of the scopes is found once.

    A question within a scope ranks memories that tell nothing (``tells_nothing``) behind all other hits, however
    often somebody asked: the search goes on until ``top_k`` others are found, among 1,000 hits at most. Of memories of
    one author with equal texts, the latest counts; if the question names days, the latest of these days, and of all
    others. No score is higher than the one before. A search by recency keeps the order of time, and all texts.
    """

    def __init__(
        self,
        graph: GraphStore,
        embedder: Embedder | None = None,
        *,
        names: IndexNames = IndexNames(),
        scopes: ScopeIndexes | None = None,
        clock: Clock = SYSTEM_CLOCK,
        timing: RetrievalTiming = TIMING.retrieval,
    ) -> None:
        """``names`` applies to queries that name no index. Facts must be valid at the time of ``clock``.

        With ``scopes``, searches within a scope use its indexes. They find the same rows in the same order.

        Does not close ``graph`` or ``embedder``.
        """
        self._graph = graph
        self._embedder = embedder
        self._names = names
        self._scopes = scopes
        self._clock = clock
        self._least_s = timing.least_query_s
        self._indexes = Indexes(graph.dialect, clock=clock, kept_s=timing.names_s)

    async def search(self, app_id: str, query: SearchQuery, *, timeout_s: float) -> SearchRows:
        """Return the rows of a search within ``timeout_s``; the embedder may take half of it.

        Raises ``InvalidSettings`` if the search needs an embedder and there is none; ``QueryFailed`` with the code
        ``timeout``, or ``query_error`` for an unknown index or a retrieval query that fails; and ``GraphUnavailable``.
        If the embedder fails or is late, the search uses words instead, and ``SearchRows.degraded`` says so.
        """
        if query.memory is None and query.index_name is None:
            query = query.model_copy(update={"index_name": self._names.of(query.index_type)})
        search = _Search(
            self._graph,
            of_app(self._embedder, app_id),
            app_id,
            query,
            timeout_s,
            clock=self._clock,
            least_s=self._least_s,
        )
        return await search.run(self._indexes, self._scopes)


class _Search:
    """One search."""

    def __init__(
        self,
        graph: GraphStore,
        embedder: Embedder | None,
        app_id: str,
        query: SearchQuery,
        timeout_s: float,
        *,
        clock: Clock,
        least_s: float,
    ) -> None:
        self._graph = graph
        self._embedder = embedder
        self._app_id = app_id
        self._query = query
        self._clock = clock
        self._least_s = least_s
        self._until = clock.monotonic() + timeout_s
        self._dialect = graph.dialect
        self._at = clock.now() if query.as_of is None else query.as_of
        """The time at which it is as if the search was made."""
        self._indexed: dict[int, ScopeIndex] = {}
        """The indexes of targets, by ``id`` of the target."""
        self._vector: list[float] | _NoVector | None = None
        """The question's, once it is asked for."""
        self._pinned_rows: dict[int, Table] = {}
        """The latest pinned memories of targets, by ``id`` of the target, once they were asked for."""
        self._ended: dict[tuple[int, str], ValidityEnd | None] = {}
        """What is known to have ended, or not, by target and key."""
        self._doubts: dict[tuple[int, str], tuple[str, str | None]] = {}
        """Since when what is known to hold is in doubt, and what supported it, by target and key."""
        self._read: dict[tuple[int, Handle], tuple[Any, ...] | None] = {}
        """The rows that were read, without a score, by target and handle; None for a node that is missing."""
        self._width = min(MOST_ROWS, max(100, 10 * query.top_k))
        """Limit of hits before they are combined, arranged or filtered."""

    @cached_property
    def _now(self) -> str:
        """The time of the question, as graphs hold times."""
        return utc_text(self._at)

    @cached_property
    def _today(self) -> date:
        return date.fromisoformat(self._now[:10])

    @cached_property
    def _asked(self) -> RankedQuestion:
        return read_question(self._query.text, today=self._today, filter_stop_words=self._query.filter_stop_words)

    async def run(self, indexes: Indexes, scopes: ScopeIndexes | None) -> SearchRows:
        if self._query.of == "profile":
            return await self._profile()
        kind = self._kind()
        if kind in {"vector", "hybrid"} and self._embedder is None:
            msg = (
                f"embedder is required when index_type={kind!r}: set GRAPHWEFT_EMBEDDER where the responder and the "
                "memory worker run, or search with index_type: fulltext"
            )
            raise InvalidSettings(msg)
        if self._query.memory:
            targets = searched(self._query, now=self._now, since=self._since())
            if kind is None or not self._query.text.strip():
                if self._query.min_score is not None:  # the latest have no score
                    return SearchRows(table=Table(columns=_columns(targets), rows=()))
                recent = self._latest if not self._query.text.strip() else self._latest_and_words
                latest = await recent(targets)
                hits = _distinct(targets, [*await self._pinned(targets), *latest])[: self._query.top_k]
                return SearchRows(table=_unscored(await self._shown(targets, hits)))
        else:
            if not self._query.text.strip():
                return SearchRows(table=Table(columns=_FIRST, rows=()))
            return await self._of_index(kind, indexes)
        while True:
            hits, degraded = await self._found(kind, targets, scopes)
            arranged = await self._arranged(targets, hits[: self._width])
            if arranged.full or len(hits) < self._width or self._width >= _WIDEST:
                break
            self._width = _WIDEST
        if self._query.fill == "latest" and not arranged.full:
            arranged.add(await self._fillers(targets, hits))
        shown = await self._with_pinned(targets, arranged.shown)
        if (least := self._query.min_score) is not None:
            shown = [each for each in shown if each[0].score >= least]
        if self._query.retrieval_query is not None:
            return SearchRows(table=await self._shown(targets, [hit for hit, _ in shown]), degraded=degraded)
        rows = tuple((text, hit.score, *cells) for hit, (text, _, *cells) in shown)
        return SearchRows(table=Table(columns=_columns(targets), rows=rows), degraded=degraded)

    async def _profile(self) -> SearchRows:
        [scope] = self._query.scopes
        table = await self._ask(profile.profile_query(self._dialect, scope, self._now))
        return SearchRows(
            table=Table(columns=profile.COLUMNS, rows=tuple(profile.read_profile(table.rows, self._query.top_k)))
        )

    def _since(self) -> str:
        """Return the time from which on what has ended counts: the first day that the question names, or now."""
        days = [begin for period in self._asked.periods if (begin := period.begin(self._today))]
        return min([*days, self._now])

    async def _pinned(self, targets: Sequence[SearchTarget]) -> list[Hit]:
        """Return the latest pinned memories, up to half of the rows, where the latest rows are shown too.

        They come with the latest rows, if these were asked for.
        """
        if self._query.fill is None:
            return []
        memories = {of: target for of, target in enumerate(targets) if MEMORY_LABEL in target.labels}
        asked = [target for target in memories.values() if self._is_pinned_asked(target)]
        for target, table in zip(
            asked, await self._each(statements.latest(self._dialect, pinned(each), self._half) for each in asked),
            strict=True,
        ):  # fmt: skip
            self._pinned_rows[id(target)] = table
        found = {of: self._pinned_rows[id(target)] for of, target in memories.items()}
        return _distinct(targets, _newest(found, len(found) * self._half))[: self._half]

    @property
    def _half(self) -> int:
        return (self._query.top_k + 1) // 2

    @property
    def _first_count(self) -> int:
        """The number of rows that are read at first."""
        return self._query.top_k + min(self._query.top_k, _MOST_MORE)

    async def _with_pinned(self, targets: Sequence[SearchTarget], shown: Sequence[Shown]) -> list[Shown]:
        """Return the rows behind the pinned ones, which have the first score: they are there whatever is asked."""
        hits = await self._pinned(targets)
        if not hits:
            return list(shown)
        score = shown[0][0].score if shown else LEAST
        before = {*map(plain_text, self._query.shown)}
        first = [
            (hit._replace(score=score), row)
            for hit, row in await self._rows(targets, hits)
            if plain_text(str(row[0])) not in before
        ]
        known = {(targets[hit.of].labels, hit.handle) for hit, _ in first}
        rest = [(hit, row) for hit, row in shown if (targets[hit.of].labels, hit.handle) not in known]
        return [*first, *rest][: self._query.top_k]

    async def _of_index(self, kind: _Kind | None, indexes: Indexes) -> SearchRows:
        """Search the index that the query names, and once more if it is another one since the indexes were listed."""
        targets = [await indexes.resolve(self._app_id, self._query, self._ask)]
        hits: list[Hit] = []
        degraded: str | None = None
        wrong: _AnotherLength | None = None
        try:
            hits, degraded = await self._found(kind, targets, None)
        except _AnotherLength as error:
            wrong = error
        if not hits and degraded is None and await indexes.changed(self._app_id, self._query, self._ask):
            targets = [await indexes.resolve(self._app_id, self._query, self._ask)]
            hits, degraded = await self._found(kind, targets, None)
        elif wrong is not None:
            raise wrong
        return SearchRows(table=await self._shown(targets, hits[: self._query.top_k]), degraded=degraded)

    async def _arranged(self, targets: Sequence[SearchTarget], hits: Sequence[Hit]) -> Arrangement:
        """Read the first hits, until enough of them tell something."""
        arrangement = Arrangement(_columns(targets), self._query.top_k, self._asked.periods, self._query.shown)
        looked, count = 0, self._first_count
        while looked < len(hits) and not arrangement.full:
            arrangement.add(await self._rows(targets, hits[looked : looked + count]))
            looked, count = looked + count, 2 * count
        return arrangement

    async def _found(
        self, kind: _Kind | None, targets: Sequence[SearchTarget], scopes: ScopeIndexes | None
    ) -> tuple[list[Hit], str | None]:
        """Return the hits, by indexes of scopes where these are right; and why there is no vector, if so."""
        if scopes is None:
            hits, degraded = await self._by(kind, targets)
            return _distinct(targets, hits), degraded
        finding = scopes.find(self._app_id, targets, self._left_s())
        if kind in {"vector", "hybrid"} and self._vector is None:
            right, self._vector = await asyncio.gather(finding, self._embedded())
        else:
            right = await finding
        self._indexed = {id(targets[of]): index for of, index in right.items()}
        hits, degraded = await self._by(kind, targets)
        return _distinct(targets, hits), degraded

    async def _by(self, kind: _Kind | None, targets: Sequence[SearchTarget]) -> tuple[list[Hit], str | None]:
        if kind == "fulltext":
            return await self._by_words(targets), None
        if kind == "vector":
            return await self._by_vector(targets)
        if self._query.memory is None:
            return await self._by_both(targets)
        return await self._by_signals(targets, vectors=kind == "hybrid")

    def _kind(self) -> _Kind | None:
        """Return the type of search, or None for a search by recency."""
        asked, text = self._query.index_type, self._query.text.strip()
        if not self._query.memory:
            return asked or "vector"
        if self._embedder is None and self._query.without_embedder == "latest" and asked != "fulltext":
            return None
        if asked is not None or not text:
            return asked
        if self._query.of not in REMEMBERED:
            return "fulltext"
        return "hybrid" if self._embedder is not None and self._query.of in EMBEDDED else "words"

    async def _latest_known_first(self, targets: Sequence[SearchTarget]) -> list[Hit]:
        """Return the latest nodes: facts and preferences first, in up to half of the rows, or more if there is room.

        Before these is what the user claims that holds, if the question asks for it: "What do you know about me?"
        """
        claimed = await self._claimed(targets) if self._asked.is_of_all else []
        if self._asked.is_whereabouts and any(MEMORY_LABEL in target.labels for target in targets):
            return await self._whereabouts(targets)
        tables = await self._latest_by_kind(targets, self._width)
        known = _newest({of: table for of, table in tables.items() if targets[of].kind in _KNOWN}, self._width)
        others = _newest({of: table for of, table in tables.items() if targets[of].kind not in _KNOWN}, self._width)
        latest = [*known[: self._half], *others, *known[self._half :]]
        return _falling(_distinct(targets, [*claimed[: 2 * self._half], *latest]))

    async def _whereabouts(self, targets: Sequence[SearchTarget]) -> list[Hit]:
        """Return where the user says to be now ("I'm in Lisbon this week"), the home, and what was said last."""
        latest = _newest(await self._latest_by_kind(targets, self._width), self._width)
        await self._look_up(targets, latest[: self._first_count], [])
        columns = {name: place for place, name in enumerate(_columns(targets))}
        home = await self._claimed(targets, ("lives in",))
        away: list[Hit] = []
        over: set[tuple[int, str]] = set()
        for hit in latest[: self._first_count]:
            if (cells := self._read[hit.of, hit.handle]) is None:
                continue
            row = (cells[0], None, *cells[1:])
            if row[columns["role"]] != "user":
                continue
            if is_stay(str(cells[0])):
                stated = stated_time(str(cells[0]), str(row[columns["timestamp"]]))
                if stated != ALWAYS and stated.holds(self._now[:10], self._now[:10]):
                    away.append(hit)
                elif stated != ALWAYS:
                    over.add((hit.of, hit.key))
            elif is_home(str(cells[0])):
                home.append(hit)
        rest = [hit for hit in latest if (hit.of, hit.key) not in over]
        return _falling(_distinct(targets, [*away, *home, *rest, *latest]))

    async def _claimed(self, targets: Sequence[SearchTarget], answering: Sequence[str] = ()) -> list[Hit]:
        """Return what one user claims that holds, as the profile has it, or the latest claims with the predicates.

        A claim is in its memory, or in the statement that is left of it: there is a hit for each, and a row for one.
        """
        scope = {} if self._query.memory is None else self._query.memory.given
        places = [
            [of for of, target in enumerate(targets) if target.labels == (label,) and dict(target.scope) == scope]
            for label in (MEMORY_LABEL, STATEMENT)
        ]
        if "user_id" not in scope or not places[0]:
            return []
        rows = (await self._ask(profile.profile_query(self._dialect, scope, self._now))).rows
        return [Hit(key, key, 0.0, of) for key in profile.claimed(rows, answering) for [of, *_] in filter(None, places)]

    async def _latest(self, targets: Sequence[SearchTarget]) -> list[Hit]:
        return _newest(await self._latest_by_kind(targets, self._query.top_k), self._query.top_k)

    async def _latest_by_kind(self, targets: Sequence[SearchTarget], limit: int) -> dict[int, Table]:
        """Return the latest nodes of each target, by its place."""
        with_pinned = {id(each) for each in targets if self._is_pinned_asked(each)}
        tables = await self._each(
            statements.latest_and_some(self._dialect, each, limit, pinned(each), self._half)
            if id(each) in with_pinned
            else statements.latest(self._dialect, each, limit)
            for each in targets
        )
        for place, (target, table) in enumerate(zip(targets, tables, strict=True)):
            if id(target) in with_pinned:
                some, all_of = (tuple(row[:-1] for row in table.rows if row[-1] is part) for part in (True, False))
                self._pinned_rows[id(target)], tables[place] = replace(table, rows=some), replace(table, rows=all_of)
        seen: set[tuple[tuple[str, ...], Handle]] = set()
        found: dict[int, Table] = {}
        for of, (target, table) in enumerate(zip(targets, tables, strict=True)):
            rows = [row for row in table.rows if (target.labels, row[1]) not in seen]
            seen.update((target.labels, row[1]) for row in rows)
            found[of] = replace(table, rows=tuple(rows))
        return found

    def _is_pinned_asked(self, target: SearchTarget) -> bool:
        """Return whether the pinned memories of a target are shown, and not known yet."""
        return self._query.fill is not None and MEMORY_LABEL in target.labels and id(target) not in self._pinned_rows

    async def _fillers(self, targets: Sequence[SearchTarget], hits: Sequence[Hit]) -> list[tuple[Hit, tuple[Any, ...]]]:
        """Return the latest rows that are no hits: facts and preferences first, in up to half of the places."""
        most = self._query.top_k
        tables = await self._latest_by_kind(targets, most)
        known = _newest({of: table for of, table in tables.items() if targets[of].kind in _KNOWN}, most // 2)
        # A question without days, and words that say what it asks for, is about the user: any row fits.
        score = LEAST if content_terms(self._asked) or self._asked.periods else FITTING
        found = {(hit.of, str(hit.handle)): hit._replace(score=score) for hit in (*known, *_newest(tables, most))}
        for hit in hits:
            found.pop((hit.of, str(hit.handle)), None)
        return await self._rows(targets, list(found.values())[:most])

    async def _latest_and_words(self, targets: Sequence[SearchTarget]) -> list[Hit]:
        """Return the latest nodes of targets with vectors, in turns with fulltext hits of the others."""
        recent = [of for of, target in enumerate(targets) if target.vector is not None]
        others = [of for of, target in enumerate(targets) if target.vector is None]
        latest, words = await asyncio.gather(
            self._latest([targets[of] for of in recent]), self._by_words([targets[of] for of in others])
        )
        turns = [
            *((place, hit._replace(of=recent[hit.of])) for place, hit in enumerate(latest)),
            *((place, hit._replace(of=others[hit.of])) for place, hit in enumerate(words)),
        ]
        turns.sort(key=lambda turn: turn[0])  # ties: the latest
        return _falling([hit for _, hit in turns[: self._query.top_k]])

    async def _by_words(self, targets: Sequence[SearchTarget], more: Collection[str] = ()) -> list[Hit]:
        """Return fulltext hits; ``more`` are terms beside those of the question."""
        terms = query_terms(self._query.text, filter_stop_words=self._query.filter_stop_words)
        terms += sorted(set(more) - set(terms))
        found = {of: self._indexed[id(each)] for of, each in enumerate(targets) if id(each) in self._indexed}
        limit = max(self._width, self._query.top_k)
        return await by_words(self._ask, self._dialect, targets, terms, limit=limit, indexes=found)

    async def _by_vector(self, targets: Sequence[SearchTarget]) -> tuple[list[Hit], str | None]:
        """Return hits by vector, and by words for kinds without vectors; and why there is no vector, if so."""
        words, near = await self._words_and_near([target for target in targets if target.vector is None], targets)
        if not isinstance(near, _NoVector):
            return (beside(near, words[: self._width]) if words else near), None
        if all(target.text is None for target in targets):
            return [], f"{near.reason}; the label has no fulltext index, so nothing was searched"
        return await self._by_words(targets), f"{near.reason}; words were searched instead"

    async def _by_both(self, targets: Sequence[SearchTarget]) -> tuple[list[Hit], str | None]:
        words, near = await self._words_and_near(targets, targets)
        if isinstance(near, _NoVector):
            return fused([], words[: self._width]), f"{near.reason}; words alone were searched"
        return fused(near, words[: self._width], all_near=len(near) < self._width), None

    async def _by_signals(self, targets: Sequence[SearchTarget], *, vectors: bool) -> tuple[list[Hit], str | None]:
        """Return the hits of a scope by all signals; and why there is no vector, if so."""
        if not self._asked.terms and not self._asked.periods and self._query.index_type is None:
            return await self._latest_known_first(targets), None
        degraded: str | None = None
        near: list[Hit] = []
        cosines = self._cosines_in_index(targets) if vectors else {}
        if cosines is None:
            found = await self._nearest_to_question(targets)
            if isinstance(found, _NoVector):
                degraded = f"{found.reason}; words alone were searched"
            else:
                near = found
        indexes = await self._indexes_of(targets, near)
        own = None if self._query.memory is None else self._query.memory.user_id
        parts = [
            KindIndex(
                of=of,
                index=index,
                valid=_valid(of, targets, indexes),
                condenses=target.labels == (SUMMARY,),
                of_another=is_of_another(target, own),
            )
            for of, (target, index) in enumerate(zip(targets, indexes, strict=True))
        ]
        if cosines is None:
            numbers = ((hit, indexes[hit.of].numbers.get(str(hit.handle))) for hit in near)
            cosines = {(hit.of, number): cosine(hit.score) for hit, number in numbers if number is not None}
        with_vectors = frozenset(of for of, target in enumerate(targets) if target.vector is not None)
        compared = Near(cosines=cosines, parts=with_vectors, is_all=max(len(near), len(cosines)) < self._width)
        hits = rank(self._asked, parts, compared, limit=self._width)
        if self._asked.answering and (claimed := await self._claimed(targets, self._asked.answering)):
            score = max(_CLAIMED, hits[0].score if hits else 0.0)
            # "From June I work at Globex." is no claim, and has begun since.
            first = [hit for hit in hits[:1] if await self._has_begun(targets, hit, indexes[hit.of])]
            hits = _distinct(targets, [*first, *(hit._replace(score=score) for hit in claimed), *hits])
        return await self._current_first(targets, hits), degraded

    async def _has_begun(self, targets: Sequence[SearchTarget], hit: Hit, index: ScopeIndex) -> bool:
        """Tell whether a turn says since when it holds, holds when it is asked, and is no request."""
        stated, days = index.stated.get(index.numbers[hit.key]), self._asked.days
        if stated is None or not stated.begins or days is None or not stated.holds(*days):
            return False
        await self._look_up(targets, [hit], [])
        cells = self._read[hit.of, hit.handle]
        return cells is not None and not requests(str(cells[0]))

    async def _current_first(self, targets: Sequence[SearchTarget], hits: list[Hit]) -> list[Hit]:
        """Return the hits, of which each that had ended when the question asks is behind what ended it."""
        if self._asked.is_past:
            return hits
        last_day = max((end for period in self._asked.periods if (end := period.end(self._today))), default="~")
        looked_at = {(hit.of, hit.key) for hit in hits[: self._query.top_k + _MOST_MORE]}
        ended_by: dict[tuple[int, str], tuple[int, str]] = {}
        for _ in range(ROUNDS):
            await self._look_up(targets, hits[: self._first_count], looked_at)  # rows that are shown soon
            found = {
                at: ender
                for at in looked_at
                if (ended := self._ended.get(at)) is not None and ended.until[:10] <= last_day
                and (ender := self._ender(targets, at[0], ended)) is not None
            }  # fmt: skip
            ended_by |= found
            looked_at = {ender for ender in found.values() if ender not in self._ended}
            if not looked_at:
                break
        if not ended_by:
            return hits
        return current_first(hits, ended_by, lambda at, near: Hit(at[1], at[1], near.score, at[0]))

    async def _look_up(
        self, targets: Sequence[SearchTarget], hits: Iterable[Hit], ending: Iterable[tuple[int, str]]
    ) -> None:
        """Read the rows of hits, and which memories and statements have ended, as far as they are not known yet."""
        unread = [hit for hit in hits if (hit.of, hit.handle) not in self._read]
        unknown = [at for at in ending if _may_end(targets[at[0]]) and at not in self._ended]
        if unread and unknown:
            await asyncio.gather(self._read_rows(targets, unread), self._look_up_ended(targets, unknown))
        elif unread:
            await self._read_rows(targets, unread)
        elif unknown:
            await self._look_up_ended(targets, unknown)

    async def _look_up_ended(self, targets: Sequence[SearchTarget], keys: Collection[tuple[int, str]]) -> None:
        """Look up which of the memories, statements and facts of conversations have ended."""
        wanted = sorted(keys)
        of_scope: dict[tuple[tuple[str, str], ...], list[tuple[int, str]]] = {}
        for at in wanted:
            of_scope.setdefault(tuple(targets[at[0]].scope.items()), []).append(at)
        asked = [
            ended_query(
                self._dialect, dict(scope),
                [key for of, key in some if targets[of].labels == (MEMORY_LABEL,)],
                [key for of, key in some if targets[of].labels == (STATEMENT,)],
                facts=[key for of, key in some if targets[of].labels == (FACT,)], now=self._now,
            )
            for scope, some in of_scope.items()
        ]  # fmt: skip
        for some, table in zip(of_scope.values(), await self._each(asked), strict=True):
            ended, doubts = read_ended(table.rows, self._now), read_doubts(table.rows, self._now)
            self._ended |= {at: ended.get(at[1]) for at in some}
            self._doubts |= {at: doubts[at[1]] for at in some if at[1] in doubts}

    def _ender(self, targets: Sequence[SearchTarget], of: int, ended: ValidityEnd) -> tuple[int, str] | None:
        """Return what ended something: a memory, or the statement left of it; None if the search finds neither."""
        label, key = (STATEMENT, ended.by_statement) if ended.by_memory is None else (MEMORY_LABEL, ended.by_memory)
        scope = targets[of].scope
        places = (at for at, target in enumerate(targets) if target.labels == (label,) and target.scope == scope)
        return next(((at, key) for at in places), None)

    async def _indexes_of(self, targets: Sequence[SearchTarget], near: Sequence[Hit]) -> list[ScopeIndex]:
        """Return an index of each target: the one of its scope, or one of nodes that are read now."""
        missing = [(of, target) for of, target in enumerate(targets) if id(target) not in self._indexed]
        if not missing:
            return [self._indexed[id(target)] for target in targets]
        made = dict(zip(
            [of for of, _ in missing],
            await asyncio.gather(*(self._read_index(of, target, near) for of, target in missing)),
            strict=True,
        ))  # fmt: skip
        return [made[of] if of in made else self._indexed[id(target)] for of, target in enumerate(targets)]

    async def _read_index(self, of: int, target: SearchTarget, near: Sequence[Hit]) -> ScopeIndex:
        """Read the nodes of a target: all, or of many those that hold a word of the question or are near."""
        table = await self._ask(statements.nodes(self._dialect, target, after="", limit=MOST_WHOLE + 1))
        rows = table.rows
        if len(rows) > MOST_WHOLE:
            words = await self._by_words([target], {each for some in self._asked.alike.values() for each in some})
            found = [*words[: self._width], *(hit for hit in near if hit.of == of)]
            keys = dict.fromkeys(str(hit.handle) for hit in found)
            rows = (await self._ask(statements.nodes_of(self._dialect, target, list(keys)))).rows
        return await read_index(rows)

    async def _words_and_near(
        self, worded: Sequence[SearchTarget], targets: Sequence[SearchTarget]
    ) -> tuple[list[Hit], list[Hit] | _NoVector]:
        """Return fulltext hits of ``worded``, and vector hits of the targets that have vectors."""
        places = [targets.index(each) for each in worded]
        try:
            async with asyncio.TaskGroup() as group:
                wording = group.create_task(self._by_words(worded))
                embedding = group.create_task(self._nearest_to_question(targets))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        words, near = wording.result(), embedding.result()
        if places != list(range(len(places))):
            words = [hit._replace(of=places[hit.of]) for hit in words]
        return words, near

    def _cosines_in_index(self, targets: Sequence[SearchTarget]) -> dict[tuple[int, int], float] | None:
        """Return the cosines of the nearest nodes, by place of the target and number; None unless one index has all."""
        near = [(of, self._indexed.get(id(each))) for of, each in enumerate(targets) if each.vector is not None]
        if len(near) != 1 or not isinstance(self._vector, list):
            return None
        [(of, index)] = near
        valid = None if index is None else index.valid(targets[of].valid_at, targets[of].valid_since)
        found = index.nearest(self._vector, self._width, valid) if index is not None else None
        return {(of, number): cosine(score / GRID) for number, score in found} if found else None

    async def _nearest_to_question(self, targets: Sequence[SearchTarget]) -> list[Hit] | _NoVector:
        if self._vector is None:  # once, although an index may have been wrong
            self._vector = await self._embedded()
        if isinstance(self._vector, _NoVector):
            return self._vector
        vector, near = self._vector, [(of, target) for of, target in enumerate(targets) if target.vector is not None]
        if len(near) == 1:
            [(of, target)] = near
            hits_of_one = await self._nearest(target, of, vector, self._width)
            return hits_of_one if isinstance(hits_of_one, _NoVector) else hits_of_one[: self._width]
        found = await asyncio.gather(*(self._nearest(target, of, vector, self._width) for of, target in near))
        hits = [hit for each in found if not isinstance(each, _NoVector) for hit in each]
        if len(found) > 1:
            hits = _distinct(targets, sorted(hits, key=lambda hit: (-hit.score, str(hit.handle))))
        failed = next((each for each in found if isinstance(each, _NoVector)), None)
        return failed if failed is not None and not hits else hits[: self._width]

    async def _nearest(
        self, target: SearchTarget, of: int, vector: Sequence[float], limit: int
    ) -> list[Hit] | _NoVector:
        side = target.vector
        assert side is not None
        assert self._embedder is not None
        if side.dimensions not in {None, len(vector)}:
            raise _AnotherLength(
                f"the index {side.index} holds vectors of {side.dimensions} numbers, but the embedder "
                f"{self._embedder.model!r} returns {len(vector)}: use the model that filled the index, or write "
                f"dimensions: {len(vector)} in the rule that names it, and vectors of that length"
            )
        model = self._embedder.model
        index = self._indexed.get(id(target))
        near = None
        if index is not None and side.index is None:
            near = index.near(vector, limit, index.valid(target.valid_at, target.valid_since))
        if near:
            return [Hit(key, key, score, of) for score, key in near]
        if side.index is None:
            asked = statements.nearest(self._dialect, target, vector, model=model, limit=limit)
        else:
            wide = max(self._width, limit)
            asked = statements.nearest_by_index(self._dialect, target, vector, wide=wide, limit=limit)
        try:
            table = await self._ask(asked)
        except QueryFailed as error:
            if "dimension" not in str(error):
                raise
            if side.index is not None:  # it was made anew since the indexes were listed
                raise _AnotherLength(str(error)) from None
            # A vector of an earlier version, whose length is not stored, must not stop every search of the scope.
            return self._of_another_size(vector)
        if not table.rows and side.size:  # else the vectors of another length are a few
            asked = statements.of_another_size(self._dialect, target, vector, model=self._embedder.model)
            if (await self._ask(asked)).rows:
                return self._of_another_size(vector)
        return [Hit(row[1], row[-1], row[0] / GRID, of) for row in table.rows]

    def _of_another_size(self, vector: Sequence[float]) -> _NoVector:
        assert self._embedder is not None
        return _NoVector(
            f"the embedder {self._embedder.model!r} returns {len(vector)} numbers, but memories have vectors of "
            "another length under its name: rename the model, or embed the memories again"
        )

    async def _embedded(self) -> list[float] | _NoVector:
        """Return the vector of the question."""
        assert self._embedder is not None
        limit_s = self._left_s() * _EMBEDDING
        try:
            async with asyncio.timeout(limit_s):
                [vector] = await self._embedder.embed([self._query.text])
        except TimeoutError:
            return _NoVector(f"the embedder returned no vector within {limit_s:.3f} s")
        except GraphweftError as error:
            return _NoVector(str(error))
        except Exception as error:  # noqa: BLE001 - a custom embedder must not end the search
            return _NoVector(f"the embedder failed: {type(error).__name__}")
        if not any(vector) or not all(map(math.isfinite, vector)):
            return _NoVector("the embedder returned a vector that is zero or not finite")
        return vector

    async def _shown(self, targets: Sequence[SearchTarget], hits: Sequence[Hit]) -> Table:
        if hits and self._query.retrieval_query is not None:
            return await self._enriched(_by_target(targets, hits), hits, self._query.retrieval_query)
        return Table(columns=_columns(targets), rows=tuple(row for _, row in await self._rows(targets, hits)))

    async def _rows(self, targets: Sequence[SearchTarget], hits: Sequence[Hit]) -> list[tuple[Hit, tuple[Any, ...]]]:
        """Return the hits that still exist, with their rows; these have the columns of ``_columns``."""
        columns = _columns(targets)
        places = {name: place for place, name in enumerate(columns)}
        place = places.get("invalid_at")
        await self._look_up(targets, hits, [(hit.of, hit.key) for hit in hits] if place is not None else [])
        rows: list[tuple[Hit, tuple[Any, ...]]] = []
        for hit in hits:
            if (cells := self._read[hit.of, hit.handle]) is None:
                continue
            row = (cells[0], hit.score, *cells[1:])
            if place is not None:
                ended = self._ended.get((hit.of, hit.key))
                until = row[place] if ended is None else ended.until
                until = until or self._own_end(targets[hit.of], hit, row, places)
                if self._query.as_of is not None and isinstance(until, str) and until > self._now:
                    until = None  # what ended later had not ended then
                row = (*row[:place], until, *row[place + 1 :])
            doubt = self._doubts.get((hit.of, hit.key))
            if doubt is not None and (at := places.get("doubted_at")) is not None:
                row = (*row[:at], *doubt, *row[at + len(doubt) :])
            rows.append((hit, row))
        return rows

    def _own_end(self, target: SearchTarget, hit: Hit, row: Sequence[Any], places: Mapping[str, int]) -> str | None:
        """Return the end that a memory or a statement states itself, if it is over."""
        if row[places["kind"]] not in _SAID or not isinstance(text := row[places["text"]], str):
            return None
        index = self._indexed.get(id(target)) if target.turn and row[places["role"]] else None
        number = index.numbers.get(hit.key) if index is not None else None
        if index is not None and number is not None:  # it has read the text
            ends = index.ends.get(number, "")
        else:
            ends = stated_time(text, str(row[places["timestamp"]])).ends
        return f"{ends}T23:59:59.999999Z" if ends and ends < self._today.isoformat() else None

    async def _read_rows(self, targets: Sequence[SearchTarget], hits: Sequence[Hit]) -> None:
        others = _columns(targets)[len(_FIRST) :]
        parts = _by_target(targets, hits)
        tables = await self._each(statements.rows(self._dialect, target, some) for target, some in parts)
        for (target, some), table in zip(parts, tables, strict=True):
            self._read |= dict.fromkeys((hit.of, hit.handle) for hit in some)
            places = {name: place for place, name in enumerate((*target.shown, "kind", ""))}
            order = [places.get(name, places[""]) for name in others]
            of_metadata = others.index("metadata") if "metadata" in target.shown else None
            for handle, text, *cells in table.rows:
                values = (*cells, target.kind, None)
                row = [values[place] for place in order]
                if of_metadata is not None and isinstance(written := row[of_metadata], str):
                    row[of_metadata] = _map(written)
                self._read[some[0].of, handle] = (text, *row)

    async def _enriched(
        self, parts: Sequence[tuple[SearchTarget, Sequence[Hit]]], hits: Sequence[Hit], retrieval_query: str
    ) -> Table:
        """Run the retrieval query for each kind that has hits, and merge the rows by score."""
        scores = {(hit.of, hit.handle): hit for hit in falling(hits)}
        asked = [
            statements.enriched(
                self._dialect,
                target,
                [scores[hit.of, hit.handle] for hit in some],
                retrieval_query=retrieval_query,
                values=self._query.params,
            )
            for target, some in parts
        ]
        tables = [table for table in await self._each(asked) if table.columns]
        if not tables:  # the graph was deleted
            return Table(columns=_FIRST, rows=())
        table = tables[0]
        missing = [name for name in _FIRST if name not in table.columns]
        if missing:
            raise QueryFailed(
                f"the retrieval query returns {', '.join(table.columns)} but not {' and '.join(missing)}: "
                "write RETURN node.text AS text, score, …"
            )
        order = sorted(range(len(table.columns)), key=lambda at: (*(table.columns[at] != name for name in _FIRST), at))
        rows = [tuple(row[at] for at in order) for each in tables for row in each.rows]
        if len(tables) > 1 or not _ordered(retrieval_query):
            # A stable sort: servers keep the order of their input.
            rows.sort(key=_falling_score)
        return Table(columns=tuple(table.columns[at] for at in order), rows=tuple(rows))

    async def _each(self, asked: Iterable[Statement]) -> list[Table]:
        found = list(asked)
        if len(found) == 1:  # the usual case, without a task of its own
            return [await self._ask(found[0])]
        return await asyncio.gather(*map(self._ask, found))

    async def _ask(self, asked: Statement) -> Table:
        return await self._graph.read(self._app_id, asked.text, asked.params, timeout_s=self._left_s())

    def _left_s(self) -> float:
        return max(self._least_s, self._until - self._clock.monotonic())


def _may_end(target: SearchTarget) -> bool:
    """Tell whether nodes of a target end by statements. Facts of other scopes have no conversation."""
    return target.labels in _ENDING and (target.labels != (FACT,) or "user_id" in target.scope)


def _columns(targets: Sequence[SearchTarget]) -> tuple[str, ...]:
    """Return the columns of a search's rows without a retrieval query."""
    shown = dict.fromkeys(name for target in targets for name in target.shown)
    kinds = ("kind",) if any(target.kind for target in targets) else ()
    return (*_FIRST, *kinds, *sorted(shown, key=lambda name: name == "id"))


def _distinct(targets: Sequence[SearchTarget], hits: Sequence[Hit]) -> list[Hit]:
    """Return the first hit of each node: a node may belong to several scopes."""
    found: dict[tuple[tuple[str, ...], Handle], Hit] = {}
    for hit in hits:
        found.setdefault((targets[hit.of].labels, hit.handle), hit)
    return list(found.values())


def _valid(of: int, targets: Sequence[SearchTarget], indexes: Sequence[ScopeIndex]) -> Mask | None:
    """Return which of a target's nodes are valid, and of no earlier scope; None for all."""
    target, index = targets[of], indexes[of]
    valid = index.valid(target.valid_at, target.valid_since)
    for at in range(of):
        known = index.numbers.keys() & indexes[at].numbers.keys() if targets[at].labels == target.labels else ()
        if known:
            valid = np.ones(len(index.keys), dtype=np.bool_) if valid is None else valid
            valid[[index.numbers[key] for key in known]] = False
    return valid


def _newest(tables: Mapping[int, Table], limit: int) -> list[Hit]:
    """Return the first ``limit`` nodes of tables of the latest ones, which are by place of the target."""
    rows = [(row, of) for of, table in tables.items() for row in table.rows]
    if len(tables) > 1:
        rows.sort(key=lambda found: str(found[0][0] or ""), reverse=True)  # ties: the earlier target
    return _falling([Hit(row[1], row[-1], 0.0, of) for row, of in rows[:limit]])


def _falling(hits: Sequence[Hit]) -> list[Hit]:
    """Return the hits with scores that fall from 1."""
    return [hit._replace(score=1.0 - place / len(hits)) for place, hit in enumerate(hits)]


def _by_target(targets: Sequence[SearchTarget], hits: Sequence[Hit]) -> list[tuple[SearchTarget, list[Hit]]]:
    """Return each target that has hits, with these."""
    parts = [(target, [hit for hit in hits if hit.of == of]) for of, target in enumerate(targets)]
    return [part for part in parts if part[1]]


def _map(written: str) -> Any:
    """Return the map that a node stores as JSON; the text itself if somebody else wrote it."""
    try:
        return json.loads(written)
    except ValueError:
        return written


def _unscored(table: Table) -> Table:
    """Return the rows with null scores: recency is not relevance."""
    return Table(columns=table.columns, rows=tuple((row[0], None, *row[2:]) for row in table.rows))


def _falling_score(row: Sequence[Any]) -> tuple[bool, float]:
    score = row[1]
    return (False, -score) if isinstance(score, int | float) else (True, 0.0)


@lru_cache(maxsize=256)
def _ordered(statement: str) -> bool:
    """Tell whether a query has ORDER BY behind its last RETURN."""
    last = [clause.keyword for clause in outline(statement).clauses if clause.depth == 0]
    return "RETURN" in last and "ORDER" in last[len(last) - last[::-1].index("RETURN") :]

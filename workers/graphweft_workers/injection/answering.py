"""From a context request to its reply: finds the rules, gets their rows, packs them, all before the deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import structlog

from graphweft_contracts import (
    ContextReply,
    ContextRequest,
    Explanation,
    Missing,
    ReasonCode,
)
from graphweft_rules import BoundQuery, MatchedQueries, Ruleset, Skipped
from graphweft_rules.packing import Found, pack
from graphweft_rules.token_count import TokenCounter, count_characters
from graphweft_workers.bus.log import Bus
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.graph.store import GraphStore
from graphweft_workers.graphrag.retriever import HybridRetriever
from graphweft_workers.injection.asked import as_rows, asked
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.injection.cache import Cache, key_of
from graphweft_workers.injection.positions import InvalidPosition, Position, Positions, Reached
from graphweft_workers.injection.reading import Failure, Reading, Rows
from graphweft_workers.injection.versions import Versions
from graphweft_workers.retrieval.search import IndexNames, Searcher

logger = structlog.get_logger("graphweft.injection")

_ROAD_SHARE: Final = 0.1
_ROAD_S: Final = (0.005, 0.05)
"""Share of the budget, its least and its most, that is kept back for formatting and the way to the client. A hop takes
1 to 5 ms, and up to 20 ms while slow queries load the server; a reply that comes late loses every block in it."""
_WAIT_SHARE: Final = 0.6
"""Most of the budget that waiting for one's own writes may take; the rest is for the queries."""
_MOST_EVENTS: Final = 100
"""Ids of events in one explanation."""
_NO_ROWS: Final[frozenset[ReasonCode]] = frozenset({"graph_unavailable", "timeout"})
"""Reasons for which an agent gets the last good rows: the graph gave none in time."""


class Answerer:
    """Answers requests of all apps; make one for each process. It starts and connects nothing before it is asked.

    A query whose rows are missing because the graph is away, or too slow, gives its last rows instead, if they are not
    older than ``last_good_s``: the block says its age, ``missing`` names it with the reason all the same, and the reply
    is partial. With ``cache_bytes`` 0 nothing is kept, and there are no last rows either. ``off`` are the apps that get
    no context; ``*`` is all. Without ``bus`` no request can name a position, and without ``embedder`` searches go by
    words and recency only, and without ``graphrag`` queries for facts are off.
    """

    def __init__(
        self,
        rules: Ruleset,
        graph: GraphStore,
        *,
        bus: Bus | None = None,
        query_timeout_s: float = 5.0,
        embedder: Embedder | None = None,
        index_names: IndexNames | None = None,
        cache_bytes: int = 64 * 1024**2,
        graphrag: HybridRetriever | None = None,
        last_good_s: float = 600.0,
        off: frozenset[str] = frozenset(),
        count: TokenCounter = count_characters,
    ) -> None:
        self.rules = rules
        self.cache = Cache(cache_bytes)
        """Its counters are for metrics."""
        self._breaker = Breaker()
        self._background = Background()
        self._versions = Versions(graph, self._breaker, self._background)
        self._reading = Reading(
            graph,
            self.cache,
            self._versions,
            self._breaker,
            self._background,
            query_timeout_s,
            Searcher(graph, embedder, names=index_names or IndexNames()),
            graphrag or HybridRetriever(graph),
        )
        self._positions = Positions(bus, self._versions, rules, self._background) if bus is not None else None
        self._last_good_s = last_good_s
        self._off = off
        self._count = count

    async def answer(self, request: ContextRequest) -> ContextReply:
        """Return the context for ``request`` before its deadline, with a reason for whatever is missing.

        Never raises on account of graph, bus, rules or request.
        """
        started = time.perf_counter()
        left_s = request.deadline_ms / 1000 - time.time()
        left_s = max(0.001, left_s - min(max(left_s * _ROAD_SHARE, _ROAD_S[0]), _ROAD_S[1]))
        try:
            return await self._answer(request, started, time.monotonic() + left_s)
        except Exception as error:  # a defect must not cost the caller its whole budget
            logger.exception("answer_failed", workflow=request.workflow, agent=request.agent)
            return _empty(request, started, "internal_error", type(error).__name__)

    async def aclose(self) -> None:
        """End what is under way and nobody waits for. Call it before the graph and the bus are closed."""
        await self._background.aclose()

    async def _answer(self, request: ContextRequest, started: float, until: float) -> ContextReply:
        app_id = request.app_id
        if app_id in self._off or "*" in self._off:
            return _empty(request, started, "disabled", f"context is switched off for {app_id!r} by its operators")
        matched = self._matched(request, datetime.now(UTC))
        if isinstance(matched, str):
            return _empty(request, started, "invalid_request", matched)
        if request.search is None and request.workflow not in self.rules.workflows:
            known = ", ".join(sorted(self.rules.workflows)) or "none"
            detail = f"there are no rules for the workflow {request.workflow!r}; workflows with rules: {known}"
            return _empty(request, started, "no_rules", detail)
        position: Position | None = None
        if request.after is not None:
            if self._positions is None:
                detail = "this responder knows no bus, so it cannot wait for a position"
                return _empty(request, started, "invalid_request", detail)
            try:
                position = await self._positions.read(request.after, _wait_until(until, queries=True))
            except InvalidPosition as error:
                return _empty(request, started, "invalid_request", str(error))
        reached: Reached | None = None
        asks = bool(matched.queries) or position is not None
        entered = self._breaker.enter(app_id) if asks else "closed"
        if entered == "trial":
            self._versions.read(app_id)  # its queries may be too slow to tell whether the server is back
        try:
            if entered == "open":
                outcomes: list[Rows | Failure] = self._reading.away(app_id, matched.queries)
            else:
                if position is not None and self._positions is not None:
                    reached = await self._positions.reach(app_id, position, _wait_until(until, bool(matched.queries)))
                version = reached.version if reached else None
                outcomes = await self._reading.rows(app_id, matched.queries, until, version)
        finally:
            if entered == "trial":
                self._breaker.leave(app_id)
        stale_by = None
        if request.after is not None and (reached is None or reached.behind is not None):
            stale_by = await _behind(reached, until)
        return self._reply(request, started, matched, outcomes, stale_by)

    def _matched(self, request: ContextRequest, now: datetime) -> MatchedQueries | str:
        if request.search is None:
            return self.rules.match_request(request, now)
        bound = asked(request.search, now)
        return bound if isinstance(bound, str) else MatchedQueries(queries=(bound,))

    def _reply(
        self,
        request: ContextRequest,
        started: float,
        matched: MatchedQueries,
        outcomes: Sequence[Rows | Failure],
        stale_by: int | None,
    ) -> ContextReply:
        # A condition that is false because a variable is absent is a rule that does not apply, not a missing block.
        missing = [_missing_skip(skip) for skip in matched.skipped if skip.reason != "missing_variable"]
        found: list[Found] = []
        for bound, outcome in zip(matched.queries, outcomes, strict=True):
            age_ms: int | None = None
            rows = outcome
            if isinstance(outcome, Failure):
                missing.append(_missing(bound, outcome.reason, outcome.detail))
                last = self._last_good(request.app_id, bound) if outcome.reason in _NO_ROWS else None
                if last is None:
                    continue
                rows, age_ms = last
            assert isinstance(rows, Rows)
            if rows.lacks is not None:
                missing.append(_missing(bound, rows.lacks.reason, rows.lacks.detail))
            explanation = _explained(bound, rows) if request.explain else None
            found.append(
                Found(
                    bound=bound,
                    columns=rows.table.columns,
                    rows=rows.table.rows,
                    age_ms=age_ms,
                    explanation=explanation,
                )
            )
        packed = pack(found, max_tokens=request.max_tokens, count=self._count)
        missing += packed.missing
        for bound, error in packed.errors:
            logger.error(
                "block_broken", rule=bound.rule, query=bound.query.id, place=str(bound.query.place), exc_info=error
            )
        blocks, text, tokens = packed.blocks, packed.text, packed.tokens
        if request.search is not None and blocks:
            # Its one block: rows for programs, and the text without the heading, which a single block does not need.
            blocks = (as_rows(blocks[0], found[0].columns, found[0].rows),)
            text = text.partition("\n")[2]
            tokens = (count_characters if request.max_tokens is None else self._count)(text)
        return ContextReply(
            id=request.id,
            context_id=uuid4().hex,
            blocks=blocks,
            missing=tuple(missing),
            text=text,
            tokens=tokens,
            stale_by=stale_by,
            partial=bool(missing),
            reason=missing[0].reason if missing and not blocks else None,
            detail=missing[0].detail if missing and not blocks else "",
            elapsed_ms=_elapsed_ms(started),
        )

    def _last_good(self, app_id: str, bound: BoundQuery) -> tuple[Rows, int] | None:
        """Return the last rows of a query and their age in milliseconds; none of memories: they may be erased."""
        if bound.graphrag is not None or (bound.search is not None and bound.search.memory is not None):
            return None
        key = key_of(app_id, bound) if self.cache.on else None
        entry = self.cache.get(key) if key is not None else None
        if entry is None:
            return None
        age_s = max(0.0, time.monotonic() - entry.right_at)
        if age_s > self._last_good_s:
            return None
        return Rows(table=entry.table, elapsed_s=0.0, cached=True), int(age_s * 1000)


def _wait_until(until: float, queries: bool) -> float:
    now = time.monotonic()
    return now + max(0.0, until - now) * (_WAIT_SHARE if queries else 1.0)


async def _behind(reached: Reached | None, until: float) -> int:
    """Return how many events the graph did not hold, as far as that is known in time; at least 1."""
    counting = reached.behind if reached else None
    if counting is None:
        return 1
    await asyncio.wait([counting], timeout=max(0.0, until - time.monotonic()))
    return counting.result() if counting.done() and not counting.cancelled() else 1


def _explained(bound: BoundQuery, rows: Rows) -> Explanation:
    return Explanation(
        place=str(bound.query.place),
        cypher=bound.cypher.statement if bound.cypher is not None else "",
        params=_params(bound),
        found=len(rows.table.rows),
        elapsed_ms=round(rows.elapsed_s * 1000, 3),
        cached=rows.cached,
        events=_events(rows),
    )


def _params(bound: BoundQuery) -> dict[str, Any]:
    if bound.graphrag is not None:
        asked = bound.graphrag
        models = [("search", asked.search), ("memory", asked.memory)]
        shown = {name: model.model_dump(mode="json", exclude_none=True) for name, model in models if model is not None}
        return {"query": asked.text, "seeds": len(asked.seeds), **shown}
    return bound.params if bound.search is None else bound.search.model_dump(mode="json", exclude_none=True)


def _events(rows: Rows) -> tuple[str, ...]:
    """Return the event ids that rules recorded in what the rows show, each once, in the order of the rows."""
    names = [column.rpartition(".")[2].strip("`") for column in rows.table.columns]
    found: dict[str, None] = {}
    for row in rows.table.rows:
        for name, cell in zip(names, row, strict=True):
            for event in _recorded(name, cell):
                found[event] = None
                if len(found) == _MOST_EVENTS:
                    return tuple(found)
    return tuple(found)


def _recorded(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if name == "event_id":
            yield value
    elif isinstance(value, Mapping):
        for inner, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield from _recorded(str(inner), item)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list | tuple):
        # A list has the name of what it holds: the ids of `event_ids`, or maps of any name.
        each = "event_id" if name == "event_ids" else ""
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _recorded(each, item)


def _empty(request: ContextRequest, started: float, reason: ReasonCode, detail: str) -> ContextReply:
    return ContextReply(
        id=request.id,
        context_id=uuid4().hex,
        reason=reason,
        detail=detail,
        partial=reason == "internal_error",
        elapsed_ms=_elapsed_ms(started),
    )


def _elapsed_ms(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)


def _missing(bound: BoundQuery, reason: ReasonCode, detail: str) -> Missing:
    return Missing(name=bound.query.inject_as, rule=bound.rule, query=bound.query.id, reason=reason, detail=detail)


def _missing_skip(skip: Skipped) -> Missing:
    reason: ReasonCode = "missing_param" if skip.reason == "missing_param" else "condition_error"
    detail = f"{skip.place}: {skip.detail}"
    return Missing(name=skip.query, rule=skip.rule, query=skip.query, reason=reason, detail=detail)

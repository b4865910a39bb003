"""Fetch: the rows of injection queries, from the cache, from an equal query under way, or from the graph.

Cached rows carry the version of the graph that was known when their query was sent, so they include all writes up to
it. A later request gets them only if the graph is still at that version, as read after the request arrived. If no
cached rows can be valid, the query does not wait for the version, and it is read at most ten times a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from graphweft_contracts import GraphUnavailable, InvalidSettings, QueryFailed
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules import BoundQuery
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.injection.cache import Cache, Key, key_of
from graphweft_workers.injection.countdown import Countdown
from graphweft_workers.injection.query_runner import QueryRunner
from graphweft_workers.injection.rows import QueryFailure, QueryResult, RequestRows
from graphweft_workers.injection.versions import GraphVersions, Version
from graphweft_workers.ports.graph_store import OtherGraph
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.telemetry import tracing_spans

logger = get_logger("graphweft.injection")

_VERSION_SHARE: Final = 0.5
"""Largest share of the time left for reading the version; after it the query runs without one."""
_LEAST_SHARE: Final = 0.9
"""An equal query under way is joined only if it has at least this share of the time that a new one would get."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    """A query under way; its task never raises."""

    version: Version | None
    """The rows include all writes up to this version; None if it is unknown."""
    until: float
    task: asyncio.Task[QueryResult | QueryFailure] | None = None
    """Set before anybody else can see the run."""
    ended_at: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Fetch:
    """One query of one request."""

    bound: BoundQuery
    key: Key | None
    until: float
    countdown: Countdown
    run: _Run | None = None
    task: asyncio.Task[QueryResult | QueryFailure] | None = None
    """The task of ``run``, or one that waits for it."""
    rows: RequestRows | None = None
    ended: bool = False

    def end(self) -> None:
        """Tell the request that this is not waited for any more; a query that began anew tells it once."""
        if not self.ended:
            self.ended = True
            self.countdown.end()


@dataclass(slots=True)
class RowFetcher:
    """Fetches rows for the requests of all apps."""

    runner: QueryRunner
    cache: Cache
    versions: GraphVersions
    breaker: Breaker
    background: Background
    query_timeout_s: float
    clock: Clock = SYSTEM_CLOCK
    _runs: dict[Key, _Run] = field(default_factory=dict[Key, _Run])

    async def fetch(
        self, app_id: str, queries: Sequence[BoundQuery], until: float, version: Version | None
    ) -> list[RequestRows | QueryFailure]:
        """Return the rows of each query, or why there are none, by the monotonic time ``until``; in order.

        The queries run at the same time. ``version`` is the graph's, if it was read after the request arrived.
        """
        started = self.clock.monotonic()
        countdown = Countdown(len(queries))
        fetches = [self._fetch(app_id, bound, started, until, countdown) for bound in queries]
        last = self.versions.last(app_id)
        undecided: list[_Fetch] = []
        for each in fetches:
            if last is not None and self._may_be_known(each, last):
                undecided.append(each)
            else:
                self._start(app_id, each, last, started)
        if version is None and any(each.key for each in fetches):
            if undecided:
                version = await self._version(app_id, started + (until - started) * _VERSION_SHARE)
            else:
                self.versions.refresh(app_id)
        for each in undecided:
            self._decide(app_id, each, version, started)
        await countdown.wait(until - self.clock.monotonic())
        return [each.rows or _outcome(each, started) for each in fetches]

    def refuse(self, app_id: str, queries: Sequence[BoundQuery]) -> list[RequestRows | QueryFailure]:
        """Return a failure for each query without asking the graph, which is known to be unavailable."""
        failure = QueryFailure(
            reason="graph_unavailable", detail="the graph server is unavailable; it is tried again soon"
        )
        if any(bound.graphrag is not None for bound in queries):
            self.runner.skip_facts(app_id)
        return [failure for _ in queries]

    def _fetch(self, app_id: str, bound: BoundQuery, started: float, until: float, countdown: Countdown) -> _Fetch:
        limit_s = self.query_timeout_s
        if bound.timeout_ms is not None:
            limit_s = min(limit_s, bound.timeout_ms / 1000)
        key = key_of(app_id, bound) if self.cache.on else None
        return _Fetch(bound=bound, key=key, until=min(until, started + limit_s), countdown=countdown)

    def _may_be_known(self, each: _Fetch, last: Version) -> bool:
        """Tell whether there are rows, or will be soon, that are valid if the graph is still at ``last``."""
        if each.key is None:
            return False
        entry, run = self.cache.get(each.key), self._runs.get(each.key)
        return (entry is not None and entry.version is last) or (run is not None and run.version is last)

    def _decide(self, app_id: str, each: _Fetch, version: Version | None, started: float) -> None:
        """Take cached rows of the version, or join an equal query of the version, or start a query."""
        now = self.clock.monotonic()
        if version is not None and each.key is not None:
            entry = self.cache.get(each.key)
            if entry is not None and entry.version is version:
                entry.right_at = max(entry.right_at, started)
                self.cache.hits += 1
                with tracing_spans.queried(app_id, each.bound, cached=True) as span:
                    span.set({"db.response.returned_rows": len(entry.table.rows)})
                each.rows = RequestRows(table=entry.table, elapsed_s=now - started, cached=True)
                each.end()
                return
            if self._join(app_id, each, version, now):
                return
        self._start(app_id, each, version, now)

    def _join(self, app_id: str, each: _Fetch, version: Version, now: float) -> bool:
        """Wait for an equal query under way, if it is of the version and has as much time left."""
        run = self._runs.get(each.key) if each.key is not None else None
        if run is None or run.version is not version or run.until - now < (each.until - now) * _LEAST_SHARE:
            return False
        self.cache.joined += 1
        each.run = run
        each.task = self.background.start(self._follow(app_id, each, version, run))
        return True

    async def _follow(self, app_id: str, each: _Fetch, version: Version, run: _Run) -> QueryResult | QueryFailure:
        assert run.task is not None
        try:
            outcome = await self._result(run.task, each)
            now = self.clock.monotonic()
            if not isinstance(outcome, QueryFailure) or outcome.reason != "timeout" or now >= each.until:
                return outcome
            # The joined query timed out, but this one has time left: one of all that joined starts a new query.
            if not self._join(app_id, each, version, now):
                self._start(app_id, each, version, now)
            assert each.task is not None
            return await self._result(each.task, each)
        finally:
            each.end()

    def _start(self, app_id: str, each: _Fetch, version: Version | None, now: float) -> None:
        known = version if self.versions.is_settled(version, now) else None
        run = each.run = _Run(version=known, until=each.until)
        if each.key is not None:
            self.cache.misses += 1
            self._runs[each.key] = run
        each.task = run.task = self.background.begin(self._run(app_id, each, known, max(0.001, each.until - now)))

    async def _run(
        self, app_id: str, each: _Fetch, version: Version | None, limit_s: float
    ) -> QueryResult | QueryFailure:
        run, bound, sent_at = each.run, each.bound, self.clock.monotonic()
        assert run is not None
        try:
            with tracing_spans.queried(app_id, bound) as span:
                result = await self.runner.run(app_id, bound, limit_s)
                if isinstance(result, QueryFailure):
                    span.fail(result.reason)
                    return result
                span.set({"db.response.returned_rows": len(result.table.rows)})
            self.breaker.succeeded(app_id)
            if each.key is not None and result.incomplete is None:
                self.cache.put(each.key, result.table, version, sent_at)
            return result
        except InvalidSettings as error:
            self.breaker.succeeded(app_id)
            return QueryFailure(reason="invalid_request", detail=f"{bound.query.place}: {error}")
        except QueryFailed as error:
            if isinstance(error, OtherGraph):  # what was read a moment ago may be of the other app, too
                self.cache.purge_app(app_id)
            if error.code == "timeout":
                return QueryFailure(reason="timeout", detail=f"{bound.query.place}: {error}")
            self.breaker.succeeded(app_id)
            return QueryFailure(reason="query_error", detail=f"{bound.query.place}: {error}")
        except GraphUnavailable as error:
            self.breaker.failed(app_id)
            return QueryFailure(reason="graph_unavailable", detail=str(error))
        except Exception as error:  # a defect in one query must not cost the other blocks
            logger.exception("query_broken", rule=bound.rule, query=bound.query.id, place=str(bound.query.place))
            return QueryFailure(reason="internal_error", detail=f"{bound.query.place}: {type(error).__name__}")
        finally:
            run.ended_at = self.clock.monotonic()
            if each.key is not None and self._runs.get(each.key) is run:
                del self._runs[each.key]
            each.end()

    async def _version(self, app_id: str, until: float) -> Version | None:
        reading = self.versions.read(app_id)
        await asyncio.wait([reading], timeout=max(0.0, until - self.clock.monotonic()))
        if not reading.done() or reading.cancelled() or reading.exception() is not None:
            return None
        return reading.result()

    async def _result(self, task: asyncio.Task[QueryResult | QueryFailure], each: _Fetch) -> QueryResult | QueryFailure:
        await asyncio.wait([task], timeout=max(0.0, each.until - self.clock.monotonic()))
        return task.result() if task.done() else _late(each)


def _late(each: _Fetch) -> QueryFailure:
    return QueryFailure(reason="timeout", detail=f"{each.bound.query.place}: not ready at the deadline")


def _outcome(each: _Fetch, started: float) -> RequestRows | QueryFailure:
    run, task = each.run, each.task
    if run is None or task is None or not task.done() or task.cancelled():
        return _late(each)
    result = task.result()
    if isinstance(result, QueryFailure):
        return result
    elapsed_s = max(0.0, run.ended_at - started)
    return RequestRows(table=result.table, elapsed_s=elapsed_s, incomplete=result.incomplete)

"""The rows of injection queries: from the cache, from an equal query under way, or from the graph.

Rows are kept with the version of the graph that was known when their query was sent, so they hold all that was written
up to it. They are taken for a later request only if the version is still that one, read after the request came. Where
no rows are kept that could be right, the version is read beside the query instead of in front of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from graphweft_contracts import GraphUnavailable, InvalidSettings, QueryFailed, ReasonCode
from graphweft_rules import BoundQuery
from graphweft_rules.graphrag import GraphragQuery
from graphweft_rules.model import Place
from graphweft_workers.graph.store import GraphStore, Table
from graphweft_workers.graphrag.retriever import TOO_SLOW, HybridRetriever
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.injection.cache import Cache, Key, key_of
from graphweft_workers.injection.versions import Version, Versions
from graphweft_workers.retrieval.search import Found, Searcher

logger = structlog.get_logger("graphweft.injection")

_VERSION_SHARE: Final = 0.5
"""Of the time that is left, how long the version may take; then the graph is asked without it."""
_SEEDS_SHARE: Final = 0.4
"""Of the time that facts may take, the most that the search for seeds gets."""
_FACTS_SHARE: Final = 0.85
"""Of the time that facts may take, what they get: what is found by then still has to be packed."""
_LEAST_SHARE: Final = 0.9
"""Of the time that a query would get: an equal one under way that has less left is not waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What a query returned. Never to be changed: other requests get the same objects."""

    table: Table
    elapsed_s: float
    cached: bool = False
    lacks: Failure | None = None
    """What these rows were found without, and why; such rows are not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a query returned nothing, or not everything."""

    reason: ReasonCode
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    table: Table
    lacks: Failure | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    """A query on its way; its task never raises."""

    task: asyncio.Task[_Found | Failure]
    version: Version | None
    """What its rows hold, at least; None when that is not known."""
    until: float
    ended_at: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Wanted:
    bound: BoundQuery
    key: Key | None
    until: float
    run: _Run | None = None
    task: asyncio.Task[_Found | Failure] | None = None
    """The run's, or one that waits for it."""
    rows: Rows | None = None


@dataclass(slots=True)
class Reading:
    """Reads rows for requests, of all apps."""

    graph: GraphStore
    cache: Cache
    versions: Versions
    breaker: Breaker
    background: Background
    query_timeout_s: float
    searcher: Searcher
    retriever: HybridRetriever
    _runs: dict[Key, _Run] = field(default_factory=dict[Key, _Run])
    _warm: set[str] = field(default_factory=set[str])
    """Apps whose graph has been asked for facts."""

    async def rows(
        self, app_id: str, queries: Sequence[BoundQuery], until: float, version: Version | None
    ) -> list[Rows | Failure]:
        """Return for each query its rows or why there are none, all queries at once, at the monotonic time ``until``.

        ``version`` is the graph's, if it was read after the request came.
        """
        started = time.monotonic()
        wanted = [self._wanted(app_id, bound, started, until) for bound in queries]
        last = self.versions.last(app_id)
        undecided: list[_Wanted] = []
        for each in wanted:
            if last is not None and self._may_be_known(each, last):
                undecided.append(each)
            else:
                self._start(app_id, each, last, started)
        if version is None and any(each.key for each in wanted):
            reading = self.versions.read(app_id)
            if undecided:
                version = await _version(reading, started + (until - started) * _VERSION_SHARE)
        for each in undecided:
            self._decide(app_id, each, version, started)
        tasks = [each.task for each in wanted if each.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, until - time.monotonic()))
        return [each.rows or _outcome(each, started) for each in wanted]

    def away(self, app_id: str, queries: Sequence[BoundQuery]) -> list[Rows | Failure]:
        """Return why there are no rows while the graph is not even asked."""
        failure = Failure(reason="graph_unavailable", detail="the graph server is away; it is tried again soon")
        if any(bound.graphrag is not None for bound in queries):
            self.retriever.away(app_id)
        return [failure for _ in queries]

    def _wanted(self, app_id: str, bound: BoundQuery, started: float, until: float) -> _Wanted:
        limit_s = self.query_timeout_s
        if bound.timeout_ms is not None:
            limit_s = min(limit_s, bound.timeout_ms / 1000)
        key = key_of(app_id, bound) if self.cache.on else None
        return _Wanted(bound=bound, key=key, until=min(until, started + limit_s))

    def _may_be_known(self, each: _Wanted, last: Version) -> bool:
        """Tell whether there are rows, or soon will be, that are right if the graph is still at the version."""
        if each.key is None:
            return False
        entry, run = self.cache.get(each.key), self._runs.get(each.key)
        return (entry is not None and entry.version is last) or (run is not None and run.version is last)

    def _decide(self, app_id: str, each: _Wanted, version: Version | None, started: float) -> None:
        """Take the rows that are there, or wait for those of an equal query, if they are of the version; else ask."""
        now = time.monotonic()
        if version is not None and each.key is not None:
            entry = self.cache.get(each.key)
            if entry is not None and entry.version is version:
                entry.right_at = max(entry.right_at, started)
                self.cache.hits += 1
                each.rows = Rows(table=entry.table, elapsed_s=now - started, cached=True)
                return
            if self._join(app_id, each, version, now):
                return
        self._start(app_id, each, version, now)

    def _join(self, app_id: str, each: _Wanted, version: Version, now: float) -> bool:
        """Wait for an equal query under way, if there is one that is of the version and has as much time."""
        run = self._runs.get(each.key) if each.key is not None else None
        if run is None or run.version is not version or run.until - now < (each.until - now) * _LEAST_SHARE:
            return False
        self.cache.joined += 1
        each.run = run
        each.task = self.background.start(self._follow(app_id, each, version, run))
        return True

    async def _follow(self, app_id: str, each: _Wanted, version: Version, run: _Run) -> _Found | Failure:
        outcome = await _result(run.task, each)
        now = time.monotonic()
        if not isinstance(outcome, Failure) or outcome.reason != "timeout" or now >= each.until:
            return outcome
        # That one gave up, and this one need not yet. Of all who waited for it one asks.
        if not self._join(app_id, each, version, now):
            self._start(app_id, each, version, now)
        assert each.task is not None
        return await _result(each.task, each)

    def _start(self, app_id: str, each: _Wanted, version: Version | None, now: float) -> None:
        told = version if self.versions.is_told(version, now) else None
        each.task = self.background.start(self._ask(app_id, each, told, max(0.001, each.until - now)))
        each.run = _Run(task=each.task, version=told, until=each.until)
        if each.key is not None:
            self.cache.misses += 1
            self._runs[each.key] = each.run

    async def _ask(self, app_id: str, each: _Wanted, version: Version | None, limit_s: float) -> _Found | Failure:
        run, bound, asked_at = each.run, each.bound, time.monotonic()
        assert run is not None
        try:
            found = await self._found(app_id, bound, limit_s)
            if isinstance(found, Failure):
                return found
            self.breaker.succeeded(app_id)
            if each.key is not None and found.lacks is None:
                self.cache.put(each.key, found.table, version, asked_at)
            return found
        except InvalidSettings as error:
            self.breaker.succeeded(app_id)
            return Failure(reason="invalid_request", detail=f"{bound.query.place}: {error}")
        except QueryFailed as error:
            if error.code == "timeout":
                return Failure(reason="timeout", detail=f"{bound.query.place}: {error}")
            self.breaker.succeeded(app_id)
            return Failure(reason="query_error", detail=f"{bound.query.place}: {error}")
        except GraphUnavailable as error:
            self.breaker.failed(app_id)
            return Failure(reason="graph_unavailable", detail=str(error))
        except Exception as error:  # a defect, or a value that we do not understand, must not cost the other blocks
            logger.exception("query_broken", rule=bound.rule, query=bound.query.id, place=str(bound.query.place))
            return Failure(reason="internal_error", detail=f"{bound.query.place}: {type(error).__name__}")
        finally:
            run.ended_at = time.monotonic()
            if each.key is not None and self._runs.get(each.key) is run:
                del self._runs[each.key]

    async def _found(self, app_id: str, bound: BoundQuery, limit_s: float) -> _Found | Failure:
        place = bound.query.place
        if bound.graphrag is not None:
            return await self._facts(app_id, bound.graphrag, place, limit_s)
        if bound.search is not None:
            found = await self.searcher.search(app_id, bound.search, timeout_s=limit_s)
            return _Found(table=found.table, lacks=_degraded(found, place))
        assert bound.cypher is not None
        statement, enough = bound.cypher.statement, bound.query.most_rows
        return _Found(table=await self.graph.read(app_id, statement, bound.params, timeout_s=limit_s, enough=enough))

    async def _facts(self, app_id: str, asked: GraphragQuery, place: Place, limit_s: float) -> _Found | Failure:
        """Return facts as rows of one column. What is off asks nothing of the graph, not even for seeds."""
        if not self.retriever.enabled:
            self.retriever.away(app_id)
            return Failure(reason="disabled", detail=f"{place}: graphrag is off: set GRAPHRAG_ENABLED=true to have it")
        if app_id not in self._warm:  # a server that was just started plans for seconds; nobody has to wait twice
            self._warm.add(app_id)
            self.background.start(self.retriever.warm(app_id))
        until = time.monotonic() + limit_s * _FACTS_SHARE
        seeds: list[Any] = list(asked.seeds)
        lacks: Failure | None = None
        if asked.search is not None:
            try:
                found = await self.searcher.search(app_id, asked.search, timeout_s=limit_s * _SEEDS_SHARE)
            except (QueryFailed, GraphUnavailable) as error:  # the names of the question lead into the graph, too
                reason: ReasonCode = "graph_unavailable" if isinstance(error, GraphUnavailable) else "query_error"
                lacks = Failure(reason=reason, detail=f"{place}: no seeds by search: {error}")
            else:
                seeds += [dict(zip(found.table.columns, row, strict=True)) for row in found.table.rows]
                lacks = _degraded(found, place)
        left_s = max(0.001, until - time.monotonic())
        context = await self.retriever.retrieve(app_id, asked.text, seeds, left_s, memory=asked.memory)
        match context.outcome:
            case "unavailable":
                if context.reason == TOO_SLOW:
                    return Failure(reason="timeout", detail=f"{place}: the graph gave no facts in time")
                raise GraphUnavailable(f"{place}: the graph server is away")
            case "failed":
                detail = f"{place}: what the graph answered cannot be used: {context.reason}"
                return Failure(reason="query_error", detail=detail)
            case _ if context.partial:
                away: ReasonCode = "timeout" if context.reason == TOO_SLOW else "graph_unavailable"
                lacks = Failure(reason=away, detail=f"{place}: a part of the graph was not looked at: {context.reason}")
            case _:
                pass
        return _Found(table=Table(columns=("fact",), rows=tuple((fact,) for fact in context.facts)), lacks=lacks)


async def _version(reading: asyncio.Task[Version], until: float) -> Version | None:
    await asyncio.wait([reading], timeout=max(0.0, until - time.monotonic()))
    if not reading.done() or reading.cancelled() or reading.exception() is not None:
        return None
    return reading.result()


async def _result(task: asyncio.Task[_Found | Failure], each: _Wanted) -> _Found | Failure:
    await asyncio.wait([task], timeout=max(0.0, each.until - time.monotonic()))
    return task.result() if task.done() else _late(each)


def _degraded(found: Found, place: Place) -> Failure | None:
    if found.degraded is None:
        return None
    return Failure(reason="embedder_unavailable", detail=f"{place}: {found.degraded}")


def _late(each: _Wanted) -> Failure:
    return Failure(reason="timeout", detail=f"{each.bound.query.place}: not ready at the deadline")


def _outcome(each: _Wanted, started: float) -> Rows | Failure:
    run, task = each.run, each.task
    if run is None or task is None or not task.done() or task.cancelled():
        return _late(each)
    result = task.result()
    if isinstance(result, Failure):
        return result
    elapsed_s = max(0.0, run.ended_at - started)
    return Rows(table=result.table, elapsed_s=elapsed_s, lacks=result.lacks)

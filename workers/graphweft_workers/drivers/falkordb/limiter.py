"""Limits the concurrent read queries of a graph server.

A server has few threads, accepts every query, and finishes queries that nobody waits for. So the number of sent queries
is limited here, and a query keeps its place until the server answers. Quick queries should not wait for a place, and
slow queries of one app should not block the others; the last duration of a statement predicts the next one. A slow
query must also take turns with the writes of its graph (``read_turns``), so a query that is believed to be quick has a
short time limit.

Rejected: a fixed number of places per app. A small number delays quick queries by the network's latency, and a large
one gives all threads to slow queries. A number that follows the average duration reacts too late to slow queries.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from graphweft_contracts import GraphUnavailable
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.drivers.falkordb.timing import FALKORDB_TIMING, FalkorDBTiming
from graphweft_workers.support.tasks import begun, end_tasks

_ALL: Final = 64
"""Places of all apps together; each needs a connection."""
_AHEAD_MS: Final = 20.0
"""Milliseconds of work per thread that the quick queries of an app may queue at the server. It keeps the threads busy
during the network latency of 1 to 5 ms. Queries of other apps wait behind it."""
_UNKNOWN_MS: Final = 10.0
"""The assumed duration of a statement that has not run."""
_WEIGHT: Final = 0.2
"""The weight of the last duration in the prediction."""
_REMEMBERED: Final = 10_000
"""The limit of remembered statements: names of apps come from outside."""


@dataclass(slots=True, eq=False, kw_only=True)
class Query:
    """A query that waits for a place or has one."""

    app_id: str
    statement: str
    until: float
    """The monotonic time at which the caller gives up."""
    wanted: bool = True
    """Whether the caller still waits."""
    took_ms: float | None = None
    """The server's execution time, set by the sender; None if unknown."""
    aborted: bool = False
    """Set by the sender: the server ended the query at its time limit."""
    needs_ms: float = 0.0
    """The predicted duration."""
    lane: _AppQueries
    given: asyncio.Future[None]
    clock: Clock
    timing: FalkorDBTiming
    has_place: bool = False

    @property
    def is_slow(self) -> bool:
        """Whether it must take turns with the writes of its graph."""
        return self.lane.key[1]

    @property
    def limit_s(self) -> float:
        """The time limit for the server, from now on. Nobody waits for the query after it."""
        left_s = max(0.001, self.until - self.clock.monotonic())
        return left_s if self.is_slow else min(left_s, self.timing.try_s)


@dataclass(slots=True, eq=False, kw_only=True)
class _AppQueries:
    """The slow queries of an app, or its quick ones."""

    key: tuple[str, bool]
    """The app, and whether they are slow."""
    places: int = 0
    needs_ms: float = 0.0
    """The predicted duration of all queries with a place."""
    waiting: deque[Query] = field(default_factory=deque[Query])


class Places:
    """Assigns places; make one for each server.

    The quick queries of an app get places up to ``_AHEAD_MS`` of work for each thread of the server. A query is slow if
    one such query for every second thread would exceed that, or if it was aborted as a quick one; slow queries get half
    as many places as there are threads, and at least one. Queries of one kind are served in order; apps take turns.
    """

    def __init__(self, *, threads: int, clock: Clock = SYSTEM_CLOCK, timing: FalkorDBTiming = FALKORDB_TIMING) -> None:
        self._clock = clock
        self._timing = timing
        self.threads = threads
        """The server's number of threads; it may be changed at any time."""
        self._free = _ALL
        self._lanes: OrderedDict[tuple[str, bool], _AppQueries] = OrderedDict()
        """The queues with queries; the one that was served last is last."""
        self._needs: BoundedDict[tuple[str, str], float] = BoundedDict(_REMEMBERED)
        """Predicted durations in milliseconds, by app and statement."""
        self._slow_until: BoundedDict[tuple[str, str], float] = BoundedDict()
        """By app and statement: until when it counts as slow."""
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def run[Result](
        self,
        app_id: str,
        statement: str,
        ask: Callable[[Query], Coroutine[Any, Any, Result]],
        *,
        timeout_s: float,
        to_end: bool = False,
    ) -> Result:
        """Call ``ask`` once its query has a place, and return its result. The query keeps the place until it ends.

        Raises ``TimeoutError`` after ``timeout_s``, and ``GraphUnavailable`` after ``aclose``. A query that was sent
        continues after a timeout, or when the caller is cancelled. A query that is aborted as a quick one is asked
        again as a slow one. With ``to_end`` it is asked in the caller's task, which waits as long as the query runs;
        ``aclose`` cancels that task.
        """
        until = self._clock.monotonic() + timeout_s
        once = self._run_here if to_end else self._run
        while True:
            query, result = await once(app_id, statement, ask, until)
            if not query.aborted or query.is_slow or self._clock.monotonic() >= until:
                return result()

    async def _run[Result](
        self, app_id: str, statement: str, ask: Callable[[Query], Coroutine[Any, Any, Result]], until: float
    ) -> tuple[Query, Callable[[], Result]]:
        """Ask once; return the query, and what returns or raises its result."""
        query = await self._placed(app_id, statement, until)
        running = begun(ask(query))
        self._running.add(running)
        running.add_done_callback(partial(self._ended, query))
        try:
            await asyncio.wait([running], timeout=max(0.0, until - self._clock.monotonic()) + self._timing.grace_s)
        finally:
            query.wanted = False
        if not running.done():
            raise TimeoutError
        if running.cancelled():
            raise _closed()
        return query, running.result

    async def _run_here[Result](
        self, app_id: str, statement: str, ask: Callable[[Query], Coroutine[Any, Any, Result]], until: float
    ) -> tuple[Query, Callable[[], Result]]:
        """Like ``_run``, without a task for the query: one costs a tenth of a quick query's time."""
        query = await self._placed(app_id, statement, until)
        here = asyncio.current_task()
        assert here is not None
        self._running.add(here)
        try:
            found = await ask(query)
        except Exception as error:  # noqa: BLE001 - raised below, unless the query is asked again
            return query, partial(_raised, error)
        finally:
            self._running.discard(here)
            self._leave_with(query)
        return query, lambda: found

    async def _placed(self, app_id: str, statement: str, until: float) -> Query:
        """Return a query that has a place. Raises ``TimeoutError`` if there is none at ``until``."""
        query = self._enter(app_id, statement, until)
        if not query.has_place:
            async with asyncio.timeout(max(0.0, until - self._clock.monotonic())):
                await self._place(query)
        return query

    async def aclose(self) -> None:
        """Cancel all queries and accept no more; a second call does nothing."""
        self._closed = True
        for lane in self._lanes.values():
            for query in lane.waiting:
                if not query.given.done():
                    query.given.set_result(None)
        running = list(self._running)
        await end_tasks(*running)

    def _enter(self, app_id: str, statement: str, until: float) -> Query:
        """Return a query that has a place, or waits for one."""
        if self._closed:
            raise _closed()
        needs_ms = self._needs.get((app_id, statement), _UNKNOWN_MS)
        query = Query(
            app_id=app_id,
            statement=statement,
            until=until,
            lane=self._queries_of(app_id, statement, needs_ms),
            given=asyncio.get_running_loop().create_future(),
            clock=self._clock,
            timing=self._timing,
        )
        query.lane.waiting.append(query)
        self._give([query.lane])
        return query

    async def _place(self, query: Query) -> None:
        """Wait for the place of a query; an error leaves no place taken."""
        try:
            await query.given
            if self._closed:
                raise _closed()
        except BaseException:
            self._leave(query)
            raise

    def _leave(self, query: Query) -> None:
        lane, all_taken = query.lane, not self._free
        if query.has_place:
            self._free += 1
            lane.places -= 1
            lane.needs_ms -= query.needs_ms
        else:
            lane.waiting.remove(query)
        self._give(list(self._lanes.values()) if all_taken else [lane])

    def _give(self, lanes: list[_AppQueries]) -> None:
        """Assign free places to waiting queries."""
        for lane in lanes:
            # A cancelled query is still in the queue for a moment.
            while lane.waiting and self._free and not self._closed and not lane.waiting[0].given.done():
                query = lane.waiting[0]
                # The prediction may have changed while it waited.
                query.needs_ms = self._needs.get((query.app_id, query.statement), _UNKNOWN_MS)
                query.lane = self._queries_of(query.app_id, query.statement, query.needs_ms)
                if query.lane is not lane:
                    query.lane.waiting.append(lane.waiting.popleft())
                    lanes.append(query.lane)
                elif self._has_room(lane, query.needs_ms):
                    self._hold(lane.waiting.popleft())
                else:
                    break
            if not lane.places and not lane.waiting and self._lanes.get(lane.key) is lane:
                del self._lanes[lane.key]

    def _hold(self, query: Query) -> None:
        self._free -= 1
        query.lane.places += 1
        query.lane.needs_ms += query.needs_ms
        self._lanes.move_to_end(query.lane.key)
        query.has_place = True
        query.given.set_result(None)

    def _queries_of(self, app_id: str, statement: str, needs_ms: float) -> _AppQueries:
        slow = needs_ms > self.threads * _AHEAD_MS / self.most_slow
        key = app_id, slow or self._slow_until.get((app_id, statement), 0.0) > self._clock.monotonic()
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _AppQueries(key=key)
        return lane

    def _has_room(self, lane: _AppQueries, needs_ms: float) -> bool:
        _, slow = lane.key
        if slow:
            return lane.places < self.most_slow
        return not lane.places or lane.needs_ms + needs_ms <= self.threads * _AHEAD_MS

    @property
    def most_slow(self) -> int:
        """How many slow queries an app may have at the server."""
        return max(1, self.threads // 2)

    def _ended(self, query: Query, running: asyncio.Task[Any]) -> None:
        self._running.discard(running)
        self._leave_with(query)
        if not running.cancelled():
            running.exception()  # retrieve the error, or asyncio warns about it

    def _leave_with(self, query: Query) -> None:
        """Give back the place of a query that has ended, and learn from what it took."""
        key = query.app_id, query.statement
        if query.took_ms is not None:
            self._learn(key, query.took_ms)
        if query.aborted or (query.took_ms or 0.0) >= self._timing.try_s * 1000:
            self._slow_until[key] = self._clock.monotonic() + self._timing.slow_s
        self._leave(query)

    def _learn(self, key: tuple[str, str], took_ms: float) -> None:
        before = self._needs.get(key, _UNKNOWN_MS)
        self._needs[key] = before + _WEIGHT * (took_ms - before)


def _raised(error: Exception) -> Any:
    raise error


def _closed() -> GraphUnavailable:
    return GraphUnavailable("the graph store is closed")

"""Places for reading queries: which of them may be at a graph server at a time.

A server has few threads, takes every query that is sent, and works to its end also on one that nobody waits for any
longer. So what is sent is bounded here, and a query keeps its place until the server has answered, whatever becomes of
those who asked. Quick queries are not to wait for want of places, and slow ones of an app are to leave the server to
the others; how long a statement takes is known from when it ran before.

Rejected: a number of places for each app. Few make quick queries wait for their way, and many let slow ones have all
threads. A number that follows how long the queries of an app take on average comes too late where slow ones begin.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from graphweft_contracts import GraphUnavailable

_ALL: Final = 64
"""Places of all apps together; each holds a connection."""
_AHEAD_MS: Final = 20.0
"""Work for each of the server's threads that an app's quick queries may be there with: enough to keep the threads busy
while queries and replies are on their way, which takes 1 to 5 ms. Queries of other apps wait behind it."""
_UNKNOWN_MS: Final = 10.0
"""What a statement is taken to need before it ran."""
_WEIGHT: Final = 0.2
"""Of the last time in what a statement is taken to need."""
_REMEMBERED: Final = 10_000
"""Statements of apps, whose names come from outside, so there is no end of them."""
_GRACE_S: Final = 0.1
"""For the way of a reply behind the time limit, which is the server's to enforce."""


@dataclass(slots=True, eq=False, kw_only=True)
class Query:
    """A query that waits for a place, or has one."""

    app_id: str
    statement: str
    until: float
    """The monotonic time at which who asked gives up."""
    wanted: bool = True
    """Whether somebody still waits for what it returns."""
    took_ms: float | None = None
    """How long the server worked on it, to be set by who asks the server; None when that is not known."""
    needs_ms: float = 0.0
    """What it is taken to need."""
    lane: _Lane
    given: asyncio.Future[None]
    has_place: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class _Lane:
    """The slow queries of an app, or its quick ones."""

    key: tuple[str, bool]
    """The app, and whether they are slow."""
    places: int = 0
    needs_ms: float = 0.0
    """What those with places are taken to need together."""
    waiting: deque[Query] = field(default_factory=deque[Query])


class Places:
    """Gives out places; make one for each server.

    The quick queries of an app get places until they are ``_AHEAD_MS`` of work for each thread of the server. Slow ones
    are those of which one for every second thread would be more than that; they get so many places, and at least one.
    Each kind goes in the order in which it came; apps take turns.
    """

    def __init__(self, *, threads: int) -> None:
        self.threads = threads
        """Of the server; may be changed at any time."""
        self._free = _ALL
        self._lanes: OrderedDict[tuple[str, bool], _Lane] = OrderedDict()
        """Those in which a query is; the one whose turn was last is last."""
        self._needs: OrderedDict[tuple[str, str], float] = OrderedDict()
        """By app and statement, in milliseconds."""
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def run[Result](
        self, app_id: str, statement: str, ask: Callable[[Query], Coroutine[Any, Any, Result]], *, timeout_s: float
    ) -> Result:
        """Return what ``ask`` returns. It is called when its query has a place, which it keeps until it ends.

        Raises ``TimeoutError`` after ``timeout_s``; then, and when the caller is cancelled, what has begun goes on.
        Raises ``GraphUnavailable`` when this is closed meanwhile.
        """
        until = time.monotonic() + timeout_s
        async with asyncio.timeout(timeout_s):
            query = await self._enter(app_id, statement, until)
        running = asyncio.create_task(ask(query))
        self._running.add(running)
        running.add_done_callback(partial(self._ended, query))
        try:
            await asyncio.wait([running], timeout=max(0.0, until - time.monotonic()) + _GRACE_S)
        finally:
            query.wanted = False
        if not running.done():
            raise TimeoutError
        if running.cancelled():
            raise _closed()
        return running.result()

    async def aclose(self) -> None:
        """End what is under way, and let nothing begin any more; a second call does nothing."""
        self._closed = True
        for lane in self._lanes.values():
            for query in lane.waiting:
                if not query.given.done():
                    query.given.set_result(None)
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _enter(self, app_id: str, statement: str, until: float) -> Query:
        """Return a query that has a place. It has none when this raises."""
        if self._closed:
            raise _closed()
        needs_ms = self._needs.get((app_id, statement), _UNKNOWN_MS)
        query = Query(
            app_id=app_id,
            statement=statement,
            until=until,
            lane=self._lane(app_id, needs_ms),
            given=asyncio.get_running_loop().create_future(),
        )
        query.lane.waiting.append(query)
        try:
            self._give([query.lane])
            await query.given
            if self._closed:
                raise _closed()
        except BaseException:
            self._leave(query)
            raise
        return query

    def _leave(self, query: Query) -> None:
        lane, all_taken = query.lane, not self._free
        if query.has_place:
            self._free += 1
            lane.places -= 1
            lane.needs_ms -= query.needs_ms
        else:
            lane.waiting.remove(query)
        self._give(list(self._lanes.values()) if all_taken else [lane])

    def _give(self, lanes: list[_Lane]) -> None:
        """Give places to those that wait in lanes, as long as there are some for them."""
        for lane in lanes:
            # Who was cancelled is still there, and leaves in a moment.
            while lane.waiting and self._free and not self._closed and not lane.waiting[0].given.done():
                query = lane.waiting[0]
                # What it needs may have become known while it waited.
                query.needs_ms = self._needs.get((query.app_id, query.statement), _UNKNOWN_MS)
                query.lane = self._lane(query.app_id, query.needs_ms)
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

    def _lane(self, app_id: str, needs_ms: float) -> _Lane:
        key = app_id, needs_ms > self.threads * _AHEAD_MS / self._most_slow()
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key=key)
        return lane

    def _has_room(self, lane: _Lane, needs_ms: float) -> bool:
        _, slow = lane.key
        if slow:
            return lane.places < self._most_slow()
        return not lane.places or lane.needs_ms + needs_ms <= self.threads * _AHEAD_MS

    def _most_slow(self) -> int:
        return max(1, self.threads // 2)

    def _ended(self, query: Query, running: asyncio.Task[Any]) -> None:
        self._running.discard(running)
        if query.took_ms is not None:
            self._learn((query.app_id, query.statement), query.took_ms)
        self._leave(query)
        if not running.cancelled():
            running.exception()  # nobody may have waited for it, and then asyncio complains

    def _learn(self, key: tuple[str, str], took_ms: float) -> None:
        before = self._needs.pop(key, _UNKNOWN_MS)
        self._needs[key] = before + _WEIGHT * (took_ms - before)
        if len(self._needs) > _REMEMBERED:
            self._needs.popitem(last=False)


def _closed() -> GraphUnavailable:
    return GraphUnavailable("the graph store is closed")

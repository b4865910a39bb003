"""Long work of requests takes turns: one piece at a time, the apps one after the other.

Requests share an event loop and its interpreter lock. If each of 32 requests of one app worked for 7 ms between two
waits, a request of another app, which waits about nine times, would take two seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from graphweft_contracts.clock import Clock
from graphweft_workers.support.timing import ContextTiming
from graphweft_workers.support.work_pace import WorkPace


class WorkTurns:
    """The turns of one process."""

    def __init__(self, clock: Clock, timing: ContextTiming) -> None:
        self._pace = WorkPace(clock, least_s=timing.begin_s, rest=1.0, most_rest_s=timing.most_rest_s)
        self._apps: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """At most one piece of an app waits for its turn, so that each app has one."""

    @asynccontextmanager
    async def turn(self, app_id: str) -> AsyncGenerator[None]:
        """Wait for a turn, work while the block runs, and let others run as long as that took."""
        own = self._apps.get(app_id)
        if own is None:
            own = self._apps[app_id] = asyncio.Lock()
        async with own, self._pace.turn():
            yield

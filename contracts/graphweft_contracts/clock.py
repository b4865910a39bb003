"""The clock that everything reads. It is passed in, so tests choose how time passes."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Final, Protocol


class Clock(Protocol):
    """Says what time it is, and waits."""

    def now(self) -> datetime:
        """Return the date and time, in UTC: for what is written down or compared between machines."""
        ...

    def monotonic(self) -> float:
        """Return seconds that only grow: for how long something took, and when it is due."""
        ...

    def cpu(self) -> float:
        """Return seconds for which this thread had a processor: what its work costs, however busy the machine is."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...


class SystemClock:
    """The clock of this machine."""

    monotonic = staticmethod(time.monotonic)
    cpu = staticmethod(time.thread_time)

    async def sleep(self, seconds: float) -> None:
        """See ``Clock.sleep``."""
        import asyncio  # a health check reads the clock, and runs no event loop

        await asyncio.sleep(seconds)

    def now(self) -> datetime:
        """See ``Clock.now``."""
        return datetime.now(timezone.utc)


class PastClock:
    """Says that it is a moment of the past, and waits as another clock does."""

    def __init__(self, time: datetime, clock: Clock) -> None:
        self.time = time
        self.monotonic = clock.monotonic
        self.cpu = clock.cpu
        self.sleep = clock.sleep

    def now(self) -> datetime:
        """See ``Clock.now``."""
        return self.time


SYSTEM_CLOCK: Final[Clock] = SystemClock()
"""The default wherever a clock may be passed in."""

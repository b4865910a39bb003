"""Whether the clock of a host is right: requests have deadlines, so a role whose clock is wrong answers none in time.

The bus has a clock of its own. The record of a role says how its clock differs, with the time of the bus: so ``status``
and ``doctor``, which run elsewhere, name it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from graphweft_contracts import Transient
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.usage.waits import CLOCK, CLOCK_SHOWN_S, WaitRecord, old_records
from graphweft_workers.ports.bus import Bus
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, HostClockTiming

logger = get_logger("graphweft.clock")

_NEXT: Final = "synchronize the clocks of all hosts by NTP: until then context requests time out, or wait too long"


class HostClock:
    """Compares the clock of this host with that of the bus, and says on the bus how they differ."""

    def __init__(
        self, bus: Bus, role: str, *, name: str, clock: Clock = SYSTEM_CLOCK,
        timing: HostClockTiming = TIMING.host_clock,
    ) -> None:  # fmt: skip
        """``name`` is that of the process, which has the role ``role``."""
        self._bus = bus
        self._key = f"{CLOCK}{role} {name}"
        self._clock = clock
        self._timing = timing
        self._record: WaitRecord | None = None
        """What the bus says of this clock."""
        self._has_looked = self._failed = False

    async def run(self) -> None:
        """Look from time to time, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(self._timing.every_s)

    async def look(self) -> None:
        """Compare the clocks. While the bus is unavailable, what was found last counts."""
        try:
            ahead_s, told = await self._compared()
            if told is None:
                return
            if not self._has_looked:
                await self._remove_old(told)
            self._has_looked = True
            if abs(ahead_s) > self._timing.skew_s:
                await self._differ(ahead_s, told)
            elif self._record is not None:
                await self._remove()
                logger.info("clock_is_right")
            self._failed = False
        except Transient as error:
            if not self._failed:
                logger.info("clock_not_compared", error=str(error), next="`graphweft acl` prints the rights")
            self._failed = True

    async def aclose(self) -> None:
        """Remove what the bus says of this clock, if it answers in time; others remove it otherwise."""
        with suppress(Transient, TimeoutError):
            async with asyncio.timeout(self._timing.end_s):
                await self._remove()

    async def _remove(self) -> None:
        if self._record is not None:
            await self._bus.usage.put(self._key, None)
            self._record = None

    async def _compared(self) -> tuple[float, datetime | None]:
        """Return by how much this clock is surely ahead, negative if it is behind, and the time of the bus if known."""
        before = self._clock.now()
        if self._bus.time is not None:
            told: datetime | None = await self._bus.time()
        else:
            said = self._record.encode() if self._record is not None else None
            told = await self._bus.usage.put(self._key, said)
        after = self._clock.now()
        if told is None or before <= told <= after:
            return 0.0, told
        return ((before if told < before else after) - told).total_seconds(), told

    async def _differ(self, ahead_s: float, told: datetime) -> None:
        now = told.timestamp()
        since = self._record.since if self._record is not None else now
        way = "ahead of" if ahead_s > 0 else "behind"
        text = f"its clock is {abs(ahead_s):,.1f} s {way} that of the bus"
        if self._record is None:
            logger.warning("clock_differs", ahead_s=round(ahead_s, 1), bus=told.astimezone(UTC).isoformat(), next=_NEXT)
        self._record = WaitRecord(at=now, since=since, error=text)
        await self._bus.usage.put(self._key, self._record.encode())

    async def _remove_old(self, now: datetime) -> None:
        """Remove what processes have left that were killed."""
        records = (await self._bus.usage.after(None)).found
        for key in old_records(records, CLOCK, now.timestamp() - CLOCK_SHOWN_S):
            await self._bus.usage.put(key, None)

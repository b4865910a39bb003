"""Extends leases from a thread while the event loop is blocked by long work.

Usually the event loop extends its leases itself, and the thread does nothing. If the loop gives no sign of life for a
quarter of the lease, the thread extends what the worker holds. It stops ``LeaseTiming.blocked_s`` after the last sign
of life, so a worker that hangs for ever loses its partitions. A call into a library that holds Python's interpreter
lock stops the thread too.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

from graphweft_contracts import Transient
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.leases import LeaseKeeper
from graphweft_workers.support.timing import TIMING, LeaseTiming

_EXTENDS: Final = "a thread extends the leases meanwhile"
_STOOD_STILL: Final = (
    "the thread that extends the leases meanwhile stood still too: the process was stopped, the machine slept, or a "
    "call kept Python's lock. Other workers may have taken the partitions over"
)


class LeaseThread:
    """Extends leases of ``owner``. ``held`` are the partitions that it holds: the owner changes them at any time."""

    def __init__(
        self,
        keeper: LeaseKeeper,
        *,
        owner: str,
        lease_s: float,
        logger: Any,
        clock: Clock = SYSTEM_CLOCK,
        timing: LeaseTiming = TIMING.leases,
    ) -> None:
        self.held: set[int] = set()
        self._keeper = keeper
        self._owner = owner
        self._lease_s = lease_s
        self._every_s = lease_s / 4
        self._timing = timing
        self._logger = logger
        self._clock = clock
        self._seen = self._looked = clock.monotonic()
        self._blocked = self._gave_up = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="graphweft-leases", daemon=True)

    async def live(self) -> None:
        """Start the thread, and give signs of life until the task is cancelled. Then the thread ends."""
        self._thread.start()
        try:
            while True:
                self._seen = self._clock.monotonic()
                await self._clock.sleep(self._every_s / 2)
        finally:
            self._stopping.set()
            await asyncio.to_thread(self._thread.join, self._timing.join_s)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            while not self._stopping.wait(self._every_s):
                runner.run(self.look())
            runner.run(self._keeper.aclose())

    async def look(self) -> None:
        """Extend the leases if the event loop is blocked, and has not been for too long."""
        now = self._clock.monotonic()
        silent_s, stood_still = now - self._seen, now - self._looked > 2 * self._every_s
        self._looked = now
        if silent_s < self._every_s:
            self._blocked = self._gave_up = False
            return
        held = tuple(self.held)
        if not held or self._gave_up:
            return
        # After the whole process stood still, the loop has not had its turn yet.
        if silent_s > self._timing.blocked_s and not stood_still:
            self._gave_up = True
            self._logger.error(
                "event_loop_hangs", worker=self._owner, blocked_s=round(silent_s, 1), partitions=sorted(held),
                next="other workers take its partitions over; restart this process, and report what it did",
            )  # fmt: skip
            return
        if not self._blocked:
            self._blocked = True
            self._logger.warning(
                "event_loop_blocked", worker=self._owner, blocked_s=round(silent_s, 1), partitions=sorted(held),
                most_s=self._timing.blocked_s, next=_STOOD_STILL if stood_still else _EXTENDS,
            )  # fmt: skip
        try:
            async with asyncio.timeout(self._lease_s):
                await self._keeper.extend(held, self._owner, self._lease_s)
        except (Transient, TimeoutError) as error:
            self._logger.debug("leases_not_extended", worker=self._owner, error=str(error))

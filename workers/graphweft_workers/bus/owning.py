"""Owning partitions of a bus: claim, hold, give back, wait out what is away. What is done with them is the caller's."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from graphweft_contracts import Transient
from graphweft_workers.bus.log import Bus, Committed, Stretch
from graphweft_workers.cancelling import is_being_cancelled

LEASE_S: Final = 10.0
"""A dead worker's partitions are taken over after this long."""
_READ_WAIT_S: Final = 1.0
"""Longest wait for new events; below the lease, which is extended in between."""
_LAST_BACKOFF_S: Final = 5.0
_LOOK_S: Final = 5.0
"""How often it is asked whether partitions were added."""


class PartitionOwner:
    """Owns as many partitions as nobody else holds, until ``stop``; several owners share them by the bus's rules."""

    def __init__(self, bus: Bus, *, name: str, lease_s: float, logger: Any) -> None:
        self.bus = bus
        self.name = name
        self.lease_s = lease_s
        self.logger = logger
        self.stopping = asyncio.Event()

    def stop(self) -> None:
        """Let ``run`` return as soon as the work in hand has come to its end."""
        self.stopping.set()

    async def run(self, work: Callable[[Held], Awaitable[None]]) -> bool:
        """Call ``work`` for each partition that is ours, again and again, until ``stop``; False if it never began.

        Partitions that are added meanwhile are taken up. ``work`` returns when ``Held.goes_on`` is False. A
        ``Transient`` of it is waited out, longer each time until it sets ``Held.progressed``; any other error ends
        this, too.
        """
        partitions: int | None = None
        keyed = attempt = 0
        while partitions is None and not self.stopping.is_set():
            try:
                keyed = await self.bus.keyed_partitions()
                partitions = await self.bus.partitions()
            except Transient as error:
                attempt += 1
                await self._back_off("bus_away", error, attempt)
        if partitions is None:
            return False
        self.logger.info("worker_started", worker=self.name, partitions=partitions, keyed=keyed)
        async with asyncio.TaskGroup() as tasks:
            for number in range(partitions):
                tasks.create_task(self._own(number, work), name=f"partition-{number}")
            while True:
                await self.pause(_LOOK_S)
                if self.stopping.is_set():
                    return True  # when the tasks have ended
                count = partitions
                with contextlib.suppress(Transient):  # the tasks of the partitions say so
                    count = await self.bus.partitions(fresh=True)
                added = range(partitions, count)
                if not added:
                    continue
                self.logger.warning("partitions_added", partitions=[*added], keyed=keyed, worker=self.name)
                for number in added:
                    tasks.create_task(self._own(number, work), name=f"partition-{number}")
                partitions = count

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until ``stop``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()

    async def _own(self, number: int, work: Callable[[Held], Awaitable[None]]) -> None:
        attempt = 0
        while not self.stopping.is_set():
            held: Held | None = None
            try:
                if not await self.bus.claim(number, self.name, self.lease_s):
                    await self.pause(self.lease_s / 4)
                    continue
                held = Held(self, number)
                await work(held)
                attempt = 0
            except Transient as error:
                # Opening is no progress: what fails at the first batch each time must wait longer each time.
                attempt = 1 if held is not None and held.progressed else attempt + 1
                await self._back_off("partition_interrupted", error, attempt, partition=number)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                attempt += 1
                cut = Transient("the driver of the bus or of the graph gave up on an answer")
                await self._back_off("partition_interrupted", cut, attempt, partition=number)
            finally:
                if self.bus.wanted_back(number):
                    await self._release(number)
        await self._release(number)

    async def _release(self, number: int) -> None:
        try:
            await self.bus.release(number, self.name)
        except Transient:
            pass  # the lease ends by itself
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise

    async def _back_off(self, event: str, error: Transient, attempt: int, **fields: object) -> None:
        wait_s = backoff_s(error, attempt)
        self.logger.warning(event, error=str(error), retry_after_s=round(wait_s, 2), **fields)
        await self.pause(wait_s)


def backoff_s(error: Transient, attempt: int) -> float:
    """Return how long to wait after an attempt, counted from 1, failed: longer each time, and never the same."""
    longest_s: float = min(error.retry_after_s * 2 ** min(attempt - 1, 6), _LAST_BACKOFF_S)
    return longest_s * random.uniform(0.5, 1.0)


class Held:
    """One partition that was claimed."""

    def __init__(self, owner: PartitionOwner, number: int) -> None:
        self.number = number
        self.progressed = False
        """Set by the work: something was done, so what fails next is not what failed before."""
        self._owner = owner
        self._lease_until = time.monotonic() + owner.lease_s / 3  # it was claimed just now

    async def goes_on(self) -> bool:
        """Extend the lease where it is time; False when the owner is to stop, or somebody else is to have it."""
        owner = self._owner
        if owner.stopping.is_set():
            return False
        if owner.bus.wanted_back(self.number):
            owner.logger.info("partition_given_up", partition=self.number, worker=owner.name)
            return False
        now = time.monotonic()
        if now > self._lease_until:
            if not await owner.bus.claim(self.number, owner.name, owner.lease_s):
                owner.logger.warning("lease_lost", partition=self.number, worker=owner.name)
                return False
            self._lease_until = now + owner.lease_s / 3
        return True

    async def read(self, after: Committed, *, limit: int) -> Stretch:
        """Return what stands behind a position; nothing when there is nothing for a while, or at once at a stop."""
        owner = self._owner
        wait_s = min(_READ_WAIT_S, owner.lease_s / 3)
        reading = asyncio.ensure_future(owner.bus.read(self.number, after, limit=limit, wait_s=wait_s))
        stopping = asyncio.ensure_future(owner.stopping.wait())
        try:
            await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else Stretch(entries=[])
        finally:
            for task in (reading, stopping):
                task.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)

    async def finish[T](self, work: Coroutine[Any, Any, T], *, grace_s: float = 0.0) -> asyncio.Task[T] | None:
        """Do what may take longer than the lease, which is extended meanwhile; return the task when it has ended well.

        None when the partition is to be left first: then the work gets ``grace_s`` to end, and is cancelled. Raises
        what the work raises.
        """
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._owner.stopping.wait())
        try:
            while not working.done():
                await asyncio.wait(
                    [working, stopping], timeout=self._owner.lease_s / 4, return_when=asyncio.FIRST_COMPLETED
                )
                if not working.done() and not await self.goes_on():
                    await asyncio.wait([working], timeout=grace_s)
                    break
            if not working.done():
                return None
            working.result()
            return working
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    async def rest(self) -> None:
        """Wait as long as a read waits for events, or until the stop: there are some that are not to be read on."""
        await self._owner.pause(min(_READ_WAIT_S, self._owner.lease_s / 3))

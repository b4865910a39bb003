"""Leases on partitions of a bus: claim, extend, release, and wait through outages. The caller supplies the work."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Final

from graphweft_contracts import Transient
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.log.lease_thread import LeaseThread
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch, CommittedPosition
from graphweft_workers.support.backoff import backoff_s
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.support.tasks import is_being_cancelled
from graphweft_workers.support.timing import TIMING, LeaseTiming
from graphweft_workers.telemetry.metrics import LEASE_CHANGES

LEASE_S: Final = 10.0
"""Other workers take over the partitions of a dead worker after this time."""

type TellInterrupted = Callable[[int, Transient | None, float], Awaitable[None]]
"""Is given a partition, why its work fails again and again, and when it is tried again; or None when it goes on."""


async def _tell_nobody(number: int, error: Transient | None, wait_s: float) -> None:
    pass


class LeaseHolder:
    """Holds as many partitions as no other worker holds, until ``stop``; the bus divides them between workers."""

    def __init__(
        self, bus: Bus, *, name: str, lease_s: float, logger: Any, clock: Clock = SYSTEM_CLOCK,
        tell: TellInterrupted = _tell_nobody, timing: LeaseTiming = TIMING.leases,
    ) -> None:  # fmt: skip
        """``tell`` raises nothing."""
        self.bus = bus
        self.name = name
        self.lease_s = lease_s
        self.logger = logger
        self.clock = clock
        self.timing = timing
        self.stopping = asyncio.Event()
        self.interrupted: set[int] = set()
        """Held partitions whose work has failed twice in a row or more, and has read nothing since."""
        self._tell = tell
        self._thread: LeaseThread | None = None
        self._lines = LogLimit(clock=clock)

    def stop(self) -> None:
        """Make ``run`` return after the batches in hand."""
        self.stopping.set()

    async def run(self, work: Callable[[Lease], Awaitable[None]]) -> bool:
        """Call ``work`` for each leased partition, again and again, until ``stop``; False if it never began.

        Partitions that are added to the bus are included. ``work`` must return when ``Lease.goes_on`` is False. After a
        ``Transient`` of ``work`` it waits, longer each time unless ``work`` has set ``Lease.progressed``. It raises any
        other error of ``work``.
        """
        partitions: int | None = None
        keyed = attempt = 0
        while partitions is None and not self.stopping.is_set():
            try:
                keyed = (await self.bus.partitions.layout()).count
                partitions = await self.bus.partitions.count()
            except Transient as error:
                attempt += 1
                await self._back_off("bus_unavailable", error, backoff_s(error.retry_after_s, attempt))
        if partitions is None:
            return False
        self.logger.info("worker_started", worker=self.name, partitions=partitions, keyed=keyed)
        async with self._kept_in_a_thread(), asyncio.TaskGroup() as tasks:
            for number in range(partitions):
                tasks.create_task(self._hold(number, work), name=f"partition-{number}")
            while True:
                await self.pause(self.timing.look_s)
                if self.stopping.is_set():
                    return True  # once the tasks have ended
                count = partitions
                with contextlib.suppress(Transient):  # the tasks of the partitions log it
                    count = await self.bus.partitions.count(fresh=True)
                added = range(partitions, count)
                if not added:
                    continue
                self.logger.warning("partitions_added", partitions=[*added], keyed=keyed, worker=self.name)
                for number in added:
                    tasks.create_task(self._hold(number, work), name=f"partition-{number}")
                partitions = count

    @contextlib.asynccontextmanager
    async def _kept_in_a_thread(self) -> AsyncGenerator[None]:
        """Extend leases while the event loop is blocked, if the bus offers that."""
        if self.bus.lease_keeper is None:
            yield
            return
        self._thread = LeaseThread(
            self.bus.lease_keeper(),
            owner=self.name,
            lease_s=self.lease_s,
            logger=self.logger,
            clock=self.clock,
            timing=self.timing,
        )
        living = asyncio.create_task(self._thread.live(), name="graphweft-leases")
        try:
            yield
        finally:
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)
            self._thread = None

    def next_tick(self) -> float:
        """Return when leases are claimed and extended next: all at once, so that the bus gets one request."""
        every = self.lease_s / 4
        return (self.clock.monotonic() // every + 1) * every

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until ``stop``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()

    async def _hold(self, number: int, work: Callable[[Lease], Awaitable[None]]) -> None:
        attempt = 0
        while not self.stopping.is_set():
            lease: Lease | None = None
            try:
                if not await self.bus.leases.claim(number, self.name, self.lease_s):
                    await self.pause(self.next_tick() - self.clock.monotonic())
                    continue
                if self._thread is not None:
                    self._thread.held.add(number)
                lease = Lease(self, number)
                LEASE_CHANGES.add(1, "claimed")
                await work(lease)
                attempt = 0
            except Transient as error:
                # Opening a partition is not progress: a first batch that always fails must wait longer each time.
                attempt = 1 if lease is not None and lease.progressed else attempt + 1
                wait_s = backoff_s(error.retry_after_s, attempt)
                if lease is not None and attempt > 1:
                    self.interrupted.add(number)
                    await self._tell(number, error, wait_s)
                await self._back_off("partition_interrupted", error, wait_s, partition=number)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                attempt += 1
                cut = Transient("the driver of the bus or of the graph cancelled a pending call")
                await self._back_off(
                    "partition_interrupted", cut, backoff_s(cut.retry_after_s, attempt), partition=number
                )
            finally:
                if self.bus.leases.is_revoked(number):
                    await self._release(number)
        await self._release(number)

    async def end_interruption(self, number: int) -> None:
        """Note that the work of a partition fails no more, or that another worker gets it."""
        if number in self.interrupted:
            self.interrupted.discard(number)
            await self._tell(number, None, 0.0)

    async def _release(self, number: int) -> None:
        await self.end_interruption(number)
        if self._thread is not None:
            self._thread.held.discard(number)
        try:
            await self.bus.leases.release(number, self.name)
        except Transient:
            pass  # the lease expires by itself
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise

    async def _back_off(self, event: str, error: Transient, wait_s: float, **fields: object) -> None:
        self._lines.warn(self.logger, event, error, retry_after_s=round(wait_s, 2), **fields)
        await self.pause(wait_s)


class Lease:
    """One claimed partition."""

    def __init__(self, holder: LeaseHolder, number: int) -> None:
        self.number = number
        self.progressed = False
        """The work sets this when it has got further, so the next failure is a new one."""
        self._holder = holder
        self._extend_at = holder.next_tick()
        self._is_over = self._is_broken_off = False

    async def goes_on(self) -> bool:
        """Extend the lease if it is time; False after ``stop`` or if another worker has or gets the partition."""
        holder = self._holder
        if self._is_over or holder.stopping.is_set():
            return False
        if holder.bus.leases.is_revoked(self.number):
            LEASE_CHANGES.add(1, "given_up")
            holder.logger.info("partition_given_up", partition=self.number, worker=holder.name)
            self._is_over = True
        elif holder.clock.monotonic() >= self._extend_at:
            if await holder.bus.leases.claim(self.number, holder.name, holder.lease_s):
                self._extend_at = holder.next_tick()
            else:
                LEASE_CHANGES.add(1, "lost")
                holder.logger.warning("lease_lost", partition=self.number, worker=holder.name)
                self._is_over = True
        return not self._is_over

    def break_off(self) -> None:
        """Let a ``read`` that waits end when the lease is extended next."""
        self._is_broken_off = True

    async def read(
        self, after: CommittedPosition, *, limit: int, most_s: float = math.inf, quiet: bool = False
    ) -> Batch:
        """Return the events after a position; an empty batch if none arrive within some seconds, ``most_s`` at most, or
        at the end of the lease, which is extended meanwhile, or after ``break_off``.

        ``quiet`` says that the caller has nothing else to do: then it waits longer.
        """
        holder, timing, monotonic = self._holder, self._holder.timing, self._holder.clock.monotonic
        self._is_broken_off = False
        # A partition counts as interrupted until a read has ended.
        longest_s = timing.quiet_s if quiet and self.number not in holder.interrupted else timing.read_s
        until = monotonic() + min(longest_s, most_s)
        while True:
            read = holder.bus.log.read(self.number, after, limit=limit, wait_s=max(0.0, until - monotonic()))
            async with _racing(read, holder) as (reading, both):
                while not reading.done():
                    left_s = max(0.0, self._extend_at - monotonic())
                    await asyncio.wait(both, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done() and (not await self.goes_on() or self._is_broken_off):
                        return Batch(entries=[])
                batch = reading.result()
            await holder.end_interruption(self.number)
            if batch.entries or batch.lost or batch.stepped or monotonic() >= until or not await self.goes_on():
                return batch

    async def finish[T](self, work: Coroutine[Any, Any, T], *, grace_s: float = 0.0) -> asyncio.Task[T] | None:
        """Do work that may outlast the lease, which is extended meanwhile; return its task when it has succeeded.

        If the lease ends first, the work has ``grace_s`` to end and is then cancelled, and the result is None. Raises
        the work's error.
        """
        holder = self._holder
        async with _racing(work, holder) as (working, both):
            while not working.done():
                await asyncio.wait(both, timeout=holder.lease_s / 4, return_when=asyncio.FIRST_COMPLETED)
                if not working.done() and not await self.goes_on():
                    await asyncio.wait([working], timeout=grace_s)
                    break
            if not working.done():
                return None
            working.result()
            return working


@contextlib.asynccontextmanager
async def _racing[T](
    work: Coroutine[Any, Any, T], holder: LeaseHolder
) -> AsyncGenerator[tuple[asyncio.Task[T], list[asyncio.Task[Any]]]]:
    """Run work beside a task that ends at the holder's ``stop``; cancel both at the end of the block."""
    working = asyncio.create_task(work)
    both: list[asyncio.Task[Any]] = [working, asyncio.create_task(holder.stopping.wait())]
    try:
        yield working, both
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)

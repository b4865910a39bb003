"""Runs a job on the log: reads a partition in order, appends the job's events to the bus, then commits the position.

The position is committed only after the bus has confirmed the events. An interruption between the two repeats events
with equal ids: the mutation worker drops them as copies, or they set the same values again. A repeated dead letter
replaces the first one.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from itertools import batched
from typing import Final

from graphweft.tracing import with_trace
from graphweft.transport import Outgoing, Transport
from graphweft_contracts import BusUnavailable, DeadLetter, Event, InvalidEvent, PartitionRefused, Transient, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.log.duplicates import RecentEvents, identity_of
from graphweft_workers.engine.log.leases import LEASE_S, Lease, LeaseHolder
from graphweft_workers.engine.log.turns import TurnClock
from graphweft_workers.engine.usage.job_account import JobAccount, WaitKey
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition, Entry
from graphweft_workers.ports.job import Job, JobEvent, JobOutcome, JobSkip
from graphweft_workers.support.backoff import backoff_s
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, Timing
from graphweft_workers.telemetry import tracing_spans
from graphweft_workers.telemetry.metrics import BUS_DURATION, DEAD_LETTERS_WRITTEN, JOB_EVENTS

_BATCH_EVENTS: Final = 200
"""Also the most entries whose work is repeated after an interruption."""
_APPEND_AT_ONCE: Final = 100


class JobWorker:
    """Leases as many partitions as no other worker of the job's group holds; runs the job on them until ``stop``."""

    def __init__(
        self,
        bus: Bus,
        transport: Transport,
        job: Job,
        *,
        name: str,
        batch_events: int = _BATCH_EVENTS,
        lease_s: float = LEASE_S,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = TIMING,
    ) -> None:
        """``bus`` is open for ``job.group``. The worker closes none of its arguments."""
        self._bus = bus
        self._transport = transport
        self._job = job
        self._batch_events = batch_events
        self._clock = clock
        self._timing = timing.jobs
        self._logger = get_logger("graphweft.memory").bind(group=job.group)
        self._leases = LeaseHolder(
            bus, name=name, lease_s=lease_s, logger=self._logger, clock=clock, timing=timing.leases
        )
        self.account = JobAccount(bus.usage, job.group, name=name, logger=self._logger, clock=clock, timing=timing.jobs)
        """What the job waits for, and what it left out."""
        self._appended: Counter[int] = Counter()
        """By partition: events, dead letters and skips that the job has yielded and the bus holds."""
        self.emitted: int = 0
        """Events appended to the bus, repeated ones included."""

    @property
    def interrupted(self) -> Collection[int]:
        """See ``LeaseHolder.interrupted``."""
        return self._leases.interrupted

    def stop(self) -> None:
        """Make ``run`` return after the batch in hand, or after 5 s."""
        self._leases.stop()

    async def run(self) -> None:
        """Work until ``stop``. Waits while the bus, or a server that the job needs, is unavailable; raises defects."""
        if await self._leases.run(self._work):
            self._logger.info("worker_stopped", worker=self._leases.name, emitted=self.emitted)

    async def _work(self, lease: Lease) -> None:
        await self.account.begin()
        try:
            await self._work_on(lease)
        finally:
            await self.account.leaves((lease.number, "events"), (lease.number, "tick"))

    async def _work_on(self, lease: Lease) -> None:
        number = lease.number
        position = await self._bus.partitions.committed(number)
        # A copy of an event from before the position is handled again; its results are copies too.
        recent = RecentEvents()
        await self._job.begin(number)
        tick_at, failed = self._clock.monotonic() + self._job.tick_s, 0
        while await lease.goes_on():
            batch = await lease.read(position, limit=self._batch_events)
            if batch.lost:
                self._logger.error(
                    "events_lost", partition=number, events=batch.lost, after=position.offset,
                    message="the bus trimmed these events before they were read: their results are missing",
                )  # fmt: skip
                await self.account.skips(Counter({("", "events_lost"): batch.lost}))
            seen = await self._seen(number, batch.entries, recent)
            if seen and not await self._handle(lease, seen):
                return
            if batch.lost or batch.entries or batch.stepped:
                last = batch.entries[-1].offset if batch.entries else position.offset
                position = CommittedPosition(offset=last, count=position.count + batch.lost + len(batch.entries))
                await self._bus.partitions.commit(number, position)
                lease.progressed = True
            if self._job.tick_s and self._clock.monotonic() >= tick_at:
                failed, wait_s = await self._tick(lease, failed)
                tick_at = self._clock.monotonic() + wait_s

    async def _seen(self, number: int, entries: Iterable[Entry], recent: RecentEvents) -> list[JobEvent]:
        """Return the events for the job. The mutation worker reports entries that are not valid events."""
        found: list[JobEvent] = []
        turns = TurnClock(self._clock)
        for entry in entries:
            await turns.rest()
            try:
                event = entry.event()
                copy = recent.is_copy(identity_of(entry, event))
            except InvalidEvent:
                recent.is_copy(None)
                continue
            if event.type in self._job.types and not copy:
                position = f"{number}:{entry.offset}"
                retried = wire.retry_of(entry.fields)
                found.append(JobEvent(event=event, position=position, retried=retried, entry=entry))
        return found

    async def _handle(self, lease: Lease, seen: Sequence[JobEvent]) -> bool:
        """Run the job on a batch, however long that takes; False if the batch is left to the next owner."""
        attempt = 0
        while True:
            outcomes = self._job.handle(seen)
            before = self._appended[lease.number]
            try:
                with tracing_spans.handled(lease.number, self._job.group, seen):
                    done = (
                        await lease.finish(self._append_all(outcomes, lease.number), grace_s=self._timing.grace_s)
                        is not None
                    )
            except BusUnavailable:
                raise
            except Transient as error:
                attempt = attempt + 1 if self._appended[lease.number] == before else 1
                # Never earlier than the server asks for.
                wait_s = backoff_s(error.retry_after_s, attempt, longest_s=self._timing.last_wait_s, spread=(1.0, 1.2))
                await self.account.waits((lease.number, "events"), error, wait_s)
            else:
                if done:
                    await self.account.goes_on((lease.number, "events"))
                return done
            if await lease.finish(self._clock.sleep(wait_s)) is None:
                return False

    async def _tick(self, lease: Lease, failed: int) -> tuple[int, float]:
        """Run the job's tick, which has failed so many times in a row. Return that number, and when the next is due."""
        key: WaitKey = (lease.number, "tick")
        outcomes = self._job.tick(lease.number, await self._bus.partitions.count())
        try:
            await lease.finish(self._append_all(outcomes, lease.number), grace_s=self._timing.grace_s)
        except BusUnavailable:
            raise
        except Transient as error:
            wait_s = backoff_s(error.retry_after_s, failed + 1, longest_s=self._timing.last_wait_s)
            wait_s = min(wait_s, self._job.tick_s)
            await self.account.waits(key, error, wait_s)
            return failed + 1, wait_s
        await self.account.leaves(key)
        return 0, self._job.tick_s

    async def _append_all(self, outcomes: AsyncGenerator[Sequence[JobOutcome]], number: int) -> None:
        async with contextlib.aclosing(outcomes):
            async for each in outcomes:
                for events in batched((one for one in each if isinstance(one, Event)), _APPEND_AT_ONCE):
                    await self._append(events)
                letters = [one for one in each if isinstance(one, DeadLetter)]
                if letters:
                    await self._bus.dead_letters.put(letters)
                for letter in letters:
                    DEAD_LETTERS_WRITTEN.add(1, letter.reason, app=letter.app_id or "")
                await self.account.skips(Counter((one.app_id, one.reason) for one in each if isinstance(one, JobSkip)))
                self._appended[number] += len(each)

    async def _append(self, events: Sequence[Event]) -> None:
        """Append events to the bus; an event that the bus refuses is logged and dropped.

        Raises ``Transient`` if it is their partition that takes none until it is mended.
        """
        try:
            outgoing = [Outgoing(key=event.key, fields=wire.encode(with_trace(event))) for event in events]
            with BUS_DURATION.timed("append", clock=self._clock):
                await self._transport.append(outgoing)
        except (InvalidEvent, PartitionRefused) as error:
            if len(events) > 1:  # append each alone to find the refused one
                for event in events:
                    await self._append([event])
                return
            if isinstance(error, PartitionRefused):
                raise Transient(str(error), retry_after_s=self._timing.refused_s) from error
            self._logger.error("event_refused", event_id=events[0].id, event_type=events[0].type, error=str(error))
            await self.account.skips(Counter({(events[0].appid, "event_refused"): 1}))
            return
        self.emitted += len(events)
        JOB_EVENTS.add(len(events), self._job.group)

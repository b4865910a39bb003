"""Runs a job on the log: reads a partition in order, puts what the job makes of it on the bus, then moves the position.

The position moves only behind what the bus has confirmed. An interruption between the two repeats events, with equal
ids: the mutation worker drops them as copies, or they set again what they have set. A dead letter takes the place of
the same one from before.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import batched
from typing import Final

import structlog

from graphweft.transport import Outgoing, Transport
from graphweft_contracts import BusUnavailable, DeadLetter, Event, InvalidEvent, Transient, wire
from graphweft_workers.bus.log import Bus, Committed, Entry, Stretch
from graphweft_workers.bus.owning import LEASE_S, Held, PartitionOwner
from graphweft_workers.memory.job import Job, Seen
from graphweft_workers.mutation.duplicates import RecentEvents, identity_of

logger = structlog.get_logger("graphweft.memory")

_BATCH_EVENTS: Final = 200
"""Entries whose work is done again, at most, after an interruption."""
_APPEND_AT_ONCE: Final = 100
_GRACE_S: Final = 5.0
"""How long a batch in hand may still take when the worker is to stop, or to give the partition up."""
_LAST_WAIT_S: Final = 60.0


class JobWorker:
    """Owns as many partitions as nobody else of the job's group holds, and does the job on them until ``stop``."""

    def __init__(
        self,
        bus: Bus,
        transport: Transport,
        job: Job,
        *,
        name: str,
        batch_events: int = _BATCH_EVENTS,
        lease_s: float = LEASE_S,
    ) -> None:
        """``bus`` is open for ``job.group``; nothing that is given here is closed."""
        self._bus = bus
        self._transport = transport
        self._job = job
        self._batch_events = batch_events
        self._owner = PartitionOwner(bus, name=name, lease_s=lease_s, logger=logger.bind(group=job.group))
        self._logger = logger.bind(group=job.group)
        self._waits = False
        self._made: Counter[int] = Counter()
        """Partition -> events and dead letters that were put on the bus."""
        self.emitted: int = 0
        """Events that were put on the bus, those that were repeated included."""

    def stop(self) -> None:
        """Ask the worker to finish the batch in hand, if that does not take long, and return from ``run``."""
        self._owner.stop()

    async def run(self) -> None:
        """Work until ``stop``. Outages of the bus and of what the job needs are waited out; a defect ends it early."""
        if await self._owner.run(self._own):
            self._logger.info("worker_stopped", worker=self._owner.name, emitted=self.emitted)

    async def _own(self, held: Held) -> None:
        number = held.number
        position = await self._bus.committed(number)
        # A copy from before this is worked on once more, and what comes of it is a copy, too.
        recent = RecentEvents()
        await self._job.begin(number)
        tick_at = time.monotonic() + self._job.tick_s
        while await held.goes_on():
            stretch = await held.read(position, limit=self._batch_events)
            if stretch.lost:
                self._tell_lost(number, position, stretch)
            seen = self._seen(number, stretch.entries, recent)
            if seen and not await self._handle(held, seen):
                return
            if stretch.lost or stretch.entries or stretch.stepped:
                last = stretch.entries[-1].offset if stretch.entries else position.offset
                count = position.count + stretch.lost + len(stretch.entries)
                position = Committed(offset=last, count=count)
                await self._bus.commit(number, position)
                held.progressed = True
            if self._job.tick_s and time.monotonic() >= tick_at:
                await self._tick(held, await self._bus.partitions())
                tick_at = time.monotonic() + self._job.tick_s

    def _seen(self, number: int, entries: Iterable[Entry], recent: RecentEvents) -> list[Seen]:
        """Return what the job is to see of the entries; what is no event is the mutation worker's to report."""
        found: list[Seen] = []
        for entry in entries:
            try:
                event = wire.decode(entry.fields, received=entry.received)
                copy = recent.is_copy(identity_of(entry, event))
            except InvalidEvent:
                recent.is_copy(None)
                continue
            if event.type in self._job.types and not copy:
                position = f"{number}:{entry.offset}"
                retried = wire.retry_of(entry.fields)
                found.append(Seen(event=event, position=position, retried=retried, entry=entry))
        return found

    async def _handle(self, held: Held, seen: Sequence[Seen]) -> bool:
        """Do the job on a batch, however long that takes; False when it is to be left to the next owner."""
        attempt = 0
        while True:
            made = self._job.handle(seen)
            before = self._made[held.number]
            try:
                done = await held.finish(self._put(made, held.number), grace_s=_GRACE_S) is not None
            except BusUnavailable:
                raise
            except Transient as error:
                if self._made[held.number] != before:
                    attempt = 0
                wait_s = min(error.retry_after_s * 2 ** min(attempt, 10), _LAST_WAIT_S) * random.uniform(1.0, 1.2)
                attempt += 1
                self._tell_waiting(error)
            else:
                if done:
                    self._tell_going_on()
                return done
            if await held.finish(asyncio.sleep(wait_s)) is None:
                return False

    async def _tick(self, held: Held, partitions: int) -> None:
        try:
            await held.finish(self._put(self._job.tick(held.number, partitions), held.number), grace_s=_GRACE_S)
        except BusUnavailable:
            raise
        except Transient as error:
            self._tell_waiting(error)

    async def _put(self, made: AsyncGenerator[Sequence[Event | DeadLetter]], number: int) -> None:
        async with contextlib.aclosing(made):
            async for outcomes in made:
                events = [each for each in outcomes if isinstance(each, Event)]
                for some in batched(events, _APPEND_AT_ONCE):
                    await self._append(some)
                letters = [each for each in outcomes if isinstance(each, DeadLetter)]
                if letters:
                    await self._bus.bury(letters)
                self._made[number] += len(outcomes)

    async def _append(self, events: Sequence[Event]) -> None:
        """Put events on the bus, and be sure of it; one that the bus never takes is told of and left out."""
        try:
            await self._transport.append([Outgoing(key=event.key, fields=wire.encode(event)) for event in events])
        except InvalidEvent as error:
            if len(events) > 1:  # which one it is shows when each is sent alone
                for event in events:
                    await self._append([event])
                return
            self._logger.error("event_refused", event_id=events[0].id, event_type=events[0].type, error=str(error))
            return
        self.emitted += len(events)

    def _tell_lost(self, number: int, position: Committed, stretch: Stretch) -> None:
        self._logger.error(
            "events_lost", partition=number, events=stretch.lost, after=position.offset,
            message="these events were trimmed from the bus before they were read: what follows from them is missing",
        )  # fmt: skip

    def _tell_waiting(self, error: Transient) -> None:
        """Say once for an outage, whatever number of partitions it stops."""
        level = self._logger.debug if self._waits else self._logger.warning
        self._waits = True
        level("job_waits", error=str(error))

    def _tell_going_on(self) -> None:
        if self._waits:
            self._waits = False
            self._logger.info("job_goes_on")

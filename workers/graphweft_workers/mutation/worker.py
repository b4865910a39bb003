"""The mutation worker: reads partitions in order, applies, buries what cannot be applied, commits what is on disk.

The graph's own mark is the truth about what took effect; the bus's position only says where to begin reading. So the
order of steps is fixed: effect and mark (one query), dead letter before the mark moves over a failed write, commit
only behind what the graph has on disk. Whatever is interrupted, the next owner finds a mark and goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from graphweft_contracts import DeadLetterReason, InvalidEvent, QueryFailed, Transient, wire
from graphweft_rules import Ruleset
from graphweft_rules.core_schema import CORE_KEYS
from graphweft_workers.bus.log import Bus, Committed, Entry
from graphweft_workers.graph.store import START, GraphStore, Mark
from graphweft_workers.mutation.duplicates import WINDOW, Identity, RecentEvents
from graphweft_workers.mutation.plan import (
    EventWork,
    PlannedWrite,
    identity_of,
    letter_for,
    read_range,
    writes_after,
)

__all__ = ("MutationWorker",)

logger = structlog.get_logger("graphweft.mutation")

_LEASE_S: Final = 10.0
"""A dead worker's partitions are taken over after this long."""
_READ_WAIT_S: Final = 1.0
"""Longest wait for new events; far below the lease, which is extended in between."""
_LAST_BACKOFF_S: Final = 5.0
_BURY_AT_ONCE: Final = 500
_PAGE: Final = 100
"""Entries that are in memory at once while a worker that starts reads back."""
_REMEMBERED: Final = 1_000
"""Workflows and causes of which a worker remembers that it has warned."""


@dataclass(slots=True, kw_only=True)
class _Partition:
    """What the owner of a partition knows about it; forgotten whenever something went wrong."""

    number: int
    cursor: Committed
    recent: RecentEvents
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])
    lease_until: float = 0.0
    committed: Committed = field(default_factory=Committed)
    commit: asyncio.Task[None] | None = None


class MutationWorker:
    """Owns as many partitions as nobody else holds and keeps them applied until ``stop`` is called."""

    def __init__(self, bus: Bus, graph: GraphStore, rules: Ruleset, *, name: str, batch_events: int = 200) -> None:
        self._bus = bus
        self._graph = graph
        self._rules = rules
        self._name = name
        self._batch_events = batch_events
        self._stopping = asyncio.Event()
        self._unknown: set[str | None] = set()
        self._warned: set[tuple[str, ...]] = set()
        self._buried: dict[tuple[str, ...], int] = {}
        self.applied_events = 0

    def stop(self) -> None:
        """Ask the worker to finish the batch in hand, commit it and return from ``run``."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until ``stop``. Outages of bus and graph are waited out; only a defect of ours ends it early."""
        partitions: int | None = None
        attempt = 0
        while partitions is None and not self._stopping.is_set():
            try:
                partitions = await self._bus.partitions()
            except Transient as error:
                attempt += 1
                await self._back_off("bus_away", error, attempt)
        if partitions is None:
            return
        logger.info("worker_started", worker=self._name, partitions=partitions)
        async with asyncio.TaskGroup() as tasks:
            for number in range(partitions):
                tasks.create_task(self._own(number), name=f"partition-{number}")
        logger.info("worker_stopped", worker=self._name, events=self.applied_events)

    async def _own(self, number: int) -> None:
        attempt = 0
        while not self._stopping.is_set():
            partition: _Partition | None = None
            opened = Committed()
            try:
                if not await self._bus.claim(number, self._name, _LEASE_S):
                    await self._pause(_LEASE_S / 4)
                    continue
                await self._graph.check()
                partition = await self._open(number)
                opened = partition.cursor
                await self._work(partition)
                attempt = 0
            except Transient as error:
                # Opening is no progress: what fails at the first batch each time must wait longer each time.
                attempt = 1 if partition is not None and partition.cursor != opened else attempt + 1
                await self._back_off("partition_interrupted", error, attempt, partition=number)
        with contextlib.suppress(Transient):
            await self._bus.release(number, self._name)

    async def _open(self, number: int) -> _Partition:
        committed = await self._bus.committed(number)
        recent = RecentEvents()
        for identity in await self._identities_before(number, committed.offset):
            recent.is_copy(identity)
        logger.debug("partition_opened", partition=number, position=committed.offset)
        return _Partition(number=number, cursor=committed, recent=recent, committed=committed)

    async def _identities_before(self, number: int, offset: str) -> Sequence[Identity | None]:
        """Read the window back page by page and keep the identities only: events may be large."""
        found: deque[Identity | None] = deque()
        first = True
        while len(found) < WINDOW:
            page = await self._bus.before(number, offset, limit=_PAGE)
            fresh = page if first else page[:-1]  # ``before`` includes the offset, which is known by now
            first = False
            if not fresh:
                break
            for entry in reversed(fresh):
                try:
                    found.appendleft(identity_of(entry, wire.decode(entry.fields, received=entry.received)))
                except InvalidEvent:
                    found.appendleft(None)
            offset = fresh[0].offset
        return found

    async def _work(self, partition: _Partition) -> None:
        try:
            while not self._stopping.is_set():
                now = time.monotonic()
                if now > partition.lease_until:
                    if not await self._bus.claim(partition.number, self._name, _LEASE_S):
                        logger.warning("lease_lost", partition=partition.number, worker=self._name)
                        return
                    partition.lease_until = now + _LEASE_S / 3
                entries = await self._read(partition)
                if entries:
                    await self._apply(partition, entries)
                    partition.cursor = Committed(offset=entries[-1].offset, count=partition.cursor.count + len(entries))
                    self.applied_events += len(entries)
                await self._commit(partition)
        finally:
            await self._last_commit(partition)

    async def _read(self, partition: _Partition) -> Sequence[Entry]:
        """Return the next entries; none when there are none for a while, or at once when we are to stop."""
        reading = asyncio.ensure_future(
            self._bus.read(partition.number, partition.cursor.offset, limit=self._batch_events, wait_s=_READ_WAIT_S)
        )
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else []
        finally:
            # Nothing is taken off by reading, so what a cancelled read would have returned is read again later.
            for task in (reading, stopping):
                task.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)

    async def _apply(self, partition: _Partition, entries: Sequence[Entry]) -> None:
        planned = read_range(partition.number, entries, self._rules, partition.recent)
        for start in range(0, len(planned.letters), _BURY_AT_ONCE):
            await self._bus.bury(planned.letters[start : start + _BURY_AT_ONCE])
        for letter in planned.letters:
            logger.error("event_buried", position=letter.position, reason=letter.reason, message=letter.message)
        for workflow in planned.unknown - self._unknown:
            if len(self._unknown) >= _REMEMBERED:  # names come from outside, so memory has a bound
                break
            self._unknown.add(workflow)
            logger.warning("workflow_without_rules", workflow=workflow, known=sorted(self._rules.workflows))
        for event, skip in planned.skipped:
            # Once per rule and cause: the same rule usually misses the same thing in every event.
            cause = (skip.rule, skip.query, skip.reason, skip.detail)
            level = logger.debug if cause in self._warned else logger.warning
            if len(self._warned) < _REMEMBERED:
                self._warned.add(cause)
            level(
                "mutation_skipped", rule=skip.rule, mutation=skip.query, reason=skip.reason, detail=skip.detail,
                place=str(skip.place), event_id=event.id, event_type=event.type,
            )  # fmt: skip
        for app_id, works in planned.apps.items():
            await self._apply_app(partition, app_id, works)

    async def _apply_app(self, partition: _Partition, app_id: str, works: Sequence[EventWork]) -> None:
        if app_id not in partition.marks:
            try:
                await self._graph.prepare(app_id, self._rules.keys | CORE_KEYS)
                partition.marks[app_id] = await self._graph.mark(app_id, partition.number)
            except QueryFailed as failure:
                # There is no graph and so no mark; the other apps of the partition must not wait for that.
                for planned in writes_after(START, works, self._bus.is_after):
                    await self._bury(partition.number, planned, failure)
                return
        writes = writes_after(partition.marks[app_id], works, self._bus.is_after)
        size = len(writes)
        while writes:
            part = writes[:size]
            applied = await self._graph.apply(app_id, partition.number, [planned.write for planned in part])
            if applied.count:
                partition.marks[app_id] = part[applied.count - 1].write.after
            if applied.failure is None:
                writes = writes[applied.count :]
                size *= 2
                continue
            failed = part[applied.count]
            await self._bury(partition.number, failed, applied.failure)
            await self._graph.skip(app_id, partition.number, failed.write)
            partition.marks[app_id] = failed.write.after
            writes = writes[applied.count + 1 :]
            # What was sent behind the failed write had no effect: a rule that fails for every event must not make us
            # send the rest of the batch again for each of them.
            size = applied.count + 1

    async def _bury(self, number: int, failed: PlannedWrite, failure: QueryFailed) -> None:
        bound = failed.mutation
        rule = bound.mutation.rule if bound else None
        mutation = bound.mutation.id if bound else None
        place = str(bound.mutation.place) if bound else None
        reason: DeadLetterReason = "timeout" if failure.code == "timeout" else "query_error"
        event = failed.work.event
        letter = letter_for(
            number,
            failed.work.entry,
            reason,
            str(failure),
            event=event,
            rule=rule,
            mutation=mutation,
            place=place,
        )
        await self._bus.bury([letter])
        cause = (rule or "", mutation or "", reason)
        times = self._buried[cause] = self._buried.get(cause, 0) + 1
        if len(self._buried) > _REMEMBERED:
            self._buried.clear()
        # The 1st, 10th, 100th … of a rule: dead letters have them all, and a broken rule must not drown the log.
        level = logger.error if str(times).strip("0") == "1" else logger.debug
        level(
            "mutation_buried", times=times, rule=rule, mutation=mutation, place=place, reason=reason,
            message=str(failure), event_id=event.id, position=letter.position,
        )  # fmt: skip

    async def _commit(self, partition: _Partition) -> None:
        """Start to commit the cursor unless a commit is on its way; waiting for the disk must not hold up reading."""
        if partition.commit is not None:
            if not partition.commit.done():
                return
            task, partition.commit = partition.commit, None
            task.result()
        if partition.cursor != partition.committed:
            partition.commit = asyncio.create_task(self._commit_now(partition, partition.cursor))

    async def _commit_now(self, partition: _Partition, cursor: Committed) -> None:
        await self._graph.durable()
        await self._bus.commit(partition.number, cursor)
        partition.committed = cursor

    async def _last_commit(self, partition: _Partition) -> None:
        with contextlib.suppress(Transient):
            if partition.commit is not None:
                await partition.commit
            if self._stopping.is_set() and partition.cursor != partition.committed:
                await self._commit_now(partition, partition.cursor)

    async def _back_off(self, event: str, error: Transient, attempt: int, **fields: object) -> None:
        wait_s = min(error.retry_after_s * 2 ** min(attempt - 1, 6), _LAST_BACKOFF_S) * random.uniform(0.5, 1.0)
        logger.warning(event, error=str(error), retry_after_s=round(wait_s, 2), **fields)
        await self._pause(wait_s)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

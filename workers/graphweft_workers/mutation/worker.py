"""The mutation worker: reads partitions in order, applies, buries what cannot be applied, commits what is on disk.

The graph's own mark is the truth about what took effect; the bus's position only says where to begin reading. So the
order of steps is fixed: effect and mark (one query), dead letter after the write that leaves a row out, commit only
behind what the graph has on disk and behind the dead letters of what was skipped. Whatever is interrupted, the next
owner finds a mark and goes on from there.

Behind a backlog, the next batch is read, decoded and matched while the graph applies one. The apps of a partition
advance on lanes of their own, see ``lanes``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from graphweft_contracts import Transient
from graphweft_rules import Ruleset
from graphweft_workers.bus.log import Bus, Committed, Stretch
from graphweft_workers.bus.owning import LEASE_S, Held, PartitionOwner
from graphweft_workers.graph.store import GraphStore
from graphweft_workers.mutation.applying import Applier
from graphweft_workers.mutation.duplicates import RecentEvents
from graphweft_workers.mutation.history import known_before
from graphweft_workers.mutation.lanes import Engine, Lanes
from graphweft_workers.mutation.order import Arranger
from graphweft_workers.mutation.position_note import PositionNote
from graphweft_workers.mutation.reading import Missed, Range, defect_of, letter_of_lost, read_range
from graphweft_workers.mutation.set_aside import set_aside_id
from graphweft_workers.mutation.skips import Skips

logger = structlog.get_logger("graphweft.mutation")

_BACKLOG: Final = 100
"""Events of a batch from which on the next one is read while it is applied."""
_BURY_AT_ONCE: Final = 500
_REMEMBERED: Final = 10_000
"""Causes of which a warning was logged."""
_DEFECT_RETRY_S: Final = 5.0
_MOST_PENDING: Final = 10_000
"""Skips in memory beyond which a partition waits until they are in dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A stretch of a partition and what it amounts to."""

    read: Range
    without: frozenset[str]
    """Apps that were parked when it was matched."""
    end: Committed
    events: int


@dataclass(slots=True, kw_only=True)
class _Partition:
    """What the owner of a partition knows about it; forgotten whenever something went wrong."""

    held: Held
    run: str
    """Which run of the graph server this is about; what an earlier one had in memory only may be gone."""
    cursor: Committed
    """Behind what has been read."""
    recent: RecentEvents
    lanes: Lanes
    skips: Skips
    before: PositionNote
    """What the owner before had told when it stopped."""
    set_aside: frozenset[str]
    committed: Committed
    commit: asyncio.Task[None] | None = None
    stepped: bool = False
    """Whether the reader stepped over something since the last commit began: Kafka's marks of transactions."""

    @property
    def number(self) -> int:
        return self.held.number


class MutationWorker:
    """Owns as many partitions as nobody else holds and keeps them applied until ``stop`` is called."""

    def __init__(
        self,
        bus: Bus,
        graph: GraphStore,
        rules: Ruleset,
        *,
        name: str,
        batch_events: int = 1_000,
        lease_s: float = LEASE_S,
    ) -> None:
        self._bus = bus
        self._graph = graph
        self._rules = rules
        self._batch_events = batch_events
        self._owner = PartitionOwner(bus, name=name, lease_s=lease_s, logger=logger)
        self._warned: set[tuple[str | None, ...]] = set()
        applier = Applier(bus, graph, Arranger(rules, graph.dialect))
        self._engine = Engine(bus=bus, graph=graph, rules=rules, applier=applier, batch_events=batch_events)
        self.applied_events: int = 0

    def stop(self) -> None:
        """Ask the worker to finish the batch in hand, commit it and return from ``run``."""
        self._owner.stop()

    async def run(self) -> None:
        """Work until ``stop``. Outages of bus and graph are waited out.

        An error that nobody expected holds up its partition only, which is opened anew: it is logged each time.
        """
        if await self._owner.run(self._own):
            logger.info("worker_stopped", worker=self._owner.name, events=self.applied_events)

    async def _own(self, held: Held) -> None:
        run = await self._graph.check()
        try:
            # It reads thousands of entries back, and those with vectors in them are long.
            opened = await held.finish(self._open(held, run))
            if opened is not None:
                await self._work(opened.result())
        except Transient:
            raise
        except Exception as error:
            defect = defect_of(error)
            logger.error(
                "partition_failed", partition=held.number, error=defect.kind, frames=defect.frames,
                next="please report it; `graphweft dlq skip` passes over an event that causes it",
            )  # fmt: skip
            raise Transient(f"partition {held.number} failed: {defect.kind}", retry_after_s=_DEFECT_RETRY_S) from error

    async def _open(self, held: Held, run: str) -> _Partition:
        number = held.number
        committed = await self._bus.committed(number)
        recent = await known_before(self._bus, number, committed.offset)
        aside = await self._bus.dead_letter(set_aside_id(number))
        set_aside = frozenset(aside.offsets if aside is not None else ())
        skips = Skips(number, self._bus.is_after)
        before = PositionNote.decode(committed.note)
        lanes = Lanes(
            self._engine, number, run=run, skips=skips, position=committed, before=before, set_aside=set_aside,
            progressed=lambda: self._start_commit(opened),
        )  # fmt: skip
        logger.debug("partition_opened", partition=number, position=committed.offset)
        opened = _Partition(
            held=held,
            run=run,
            cursor=committed,
            recent=recent,
            lanes=lanes,
            skips=skips,
            before=before,
            set_aside=set_aside,
            committed=committed,
        )
        return opened

    async def _work(self, partition: _Partition) -> None:
        lanes, began = partition.lanes, partition.committed
        try:
            async with contextlib.aclosing(self._batches(partition)) as batches:
                async for batch in batches:
                    if batch is not None:
                        parked, missed = await self._report(partition, batch)
                        lanes.give(batch.read.apps, missed, batch.end, batch.without | parked)
                        self.applied_events += batch.events
                    await partition.held.finish(lanes.settle())  # apps that may not be parked hold it up for long
                    if lanes.floor.offset != began.offset:
                        partition.held.progressed = True
                    await self._commit(partition)
                    if partition.skips.pending > _MOST_PENDING and partition.commit is not None:
                        await asyncio.wait([partition.commit])  # they hold whole events
            await lanes.drain()
        finally:
            await lanes.aclose()
            await self._last_commit(partition)

    async def _batches(self, partition: _Partition) -> AsyncGenerator[_Batch | None]:
        """Yield what stands on the partition; None when there is nothing for a while.

        With a backlog it reads one batch ahead. Without one that would only cut small batches smaller, and let what has
        come meanwhile wait for a batch that came before it. Ends when the worker is to stop, or when somebody else is
        to have the partition.
        """
        ahead: asyncio.Task[_Batch | None] | None = None
        try:
            while await partition.held.goes_on():
                batch = await (ahead or asyncio.create_task(self._read(partition)))
                behind = batch is not None and batch.events >= _BACKLOG
                ahead = asyncio.create_task(self._read(partition)) if behind else None
                yield batch
        finally:
            # Nothing is taken off by reading, so what a cancelled read would have returned is read again later.
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def _read(self, partition: _Partition) -> _Batch | None:
        """Return the next batch; none when there is none for a while, or at once when we are to stop."""
        stretch = await partition.held.read(partition.cursor, limit=self._batch_events)
        partition.stepped |= stretch.stepped
        if stretch.lost:
            await self._tell_lost(partition, stretch)
        entries = stretch.entries
        without = partition.lanes.parked
        count = partition.cursor.count + stretch.lost + len(entries)
        last = entries[-1].offset if entries else partition.cursor.offset
        partition.cursor = Committed(offset=last, count=count)
        if not entries:
            return None
        read = read_range(
            partition.number, entries, self._rules, partition.recent,
            without=without, set_aside=partition.set_aside,
        )  # fmt: skip
        return _Batch(read=read, without=without, end=partition.cursor, events=len(entries))

    async def _tell_lost(self, partition: _Partition, stretch: Stretch) -> None:
        next_offset = stretch.entries[0].offset if stretch.entries else None
        letter = letter_of_lost(partition.number, partition.cursor.offset, stretch.lost, next_offset)
        await self._bus.bury([letter])
        logger.error(
            "events_lost", partition=partition.number, events=stretch.lost, after=partition.cursor.offset,
            message=letter.message,
        )  # fmt: skip

    async def _report(
        self, partition: _Partition, batch: _Batch
    ) -> tuple[frozenset[str], Mapping[str, Sequence[Missed]]]:
        """Bury what cannot be read, and count what is skipped; not again what the owner before had told already.

        Return the apps that were left out of this, because they are parked: they read the batch again. And return, by
        app, the skips that are to be counted behind works of the app.
        """
        read, lanes = batch.read, partition.lanes
        for app_id in {missed.event.appid for missed in read.missed if missed.reason == "no_rules"} - lanes.parked:
            if await lanes.is_half_done(app_id):
                lanes.hold(app_id)
        parked = lanes.parked
        letters = [
            letter for letter in read.letters
            if letter.app_id not in parked and self._is_news(partition, letter.app_id, letter.offset)
        ]  # fmt: skip
        for start in range(0, len(letters), _BURY_AT_ONCE):
            await self._bus.bury(letters[start : start + _BURY_AT_ONCE])
        for letter in letters:
            logger.error("event_buried", position=letter.position, reason=letter.reason, message=letter.message)
        for defect in read.defects:
            logger.error("defect", partition=partition.number, error=defect.kind, frames=defect.frames)
        later: dict[str, list[Missed]] = {}
        for missed in read.missed:
            app_id = missed.event.appid
            if app_id not in parked and self._is_news(partition, app_id, missed.entry.offset):
                self._warn(missed)
                if app_id in read.apps or app_id in later or lanes.is_busy(app_id):
                    later.setdefault(app_id, []).append(missed)
                else:
                    partition.skips.add(missed)
        return parked, later

    def _is_news(self, partition: _Partition, app_id: str | None, offset: str) -> bool:
        return self._bus.is_after(offset, partition.before.told_of(app_id))

    def _warn(self, missed: Missed) -> None:
        """Log a skip: once per rule and cause, for the same rule usually misses the same thing in every event."""
        event = missed.event
        if missed.reason == "no_rules":
            cause: tuple[str | None, ...] = (event.workflow,)
            fields: dict[str, object] = {"workflow": event.workflow, "known": sorted(self._rules.workflows)}
        else:
            cause = (event.workflow, missed.rule, missed.mutation, missed.message)
            fields = {"rule": missed.rule, "mutation": missed.mutation, "place": missed.place}
        level = logger.debug if cause in self._warned else logger.warning
        if len(self._warned) < _REMEMBERED:  # names come from outside, so memory has a bound
            self._warned.add(cause)
        level(
            "workflow_without_rules" if missed.reason == "no_rules" else "mutation_skipped", **fields,
            detail=missed.message, event_id=event.id, event_type=event.type,
            next="graphweft status counts them; after a fix and a restart graphweft dlq retry --all brings them back",
        )  # fmt: skip

    async def _commit(self, partition: _Partition) -> None:
        """Start to commit, unless a commit is on its way: waiting for the disk must not hold up reading."""
        if partition.commit is not None and partition.commit.done():
            task, partition.commit = partition.commit, None
            task.result()
        self._start_commit(partition)

    def _start_commit(self, partition: _Partition) -> None:
        if partition.commit is None and (partition.stepped or self._position(partition) != _kept(partition.committed)):
            partition.stepped = False
            partition.commit = asyncio.create_task(self._commit_now(partition))

    def _position(self, partition: _Partition) -> tuple[str, int, str]:
        lanes = partition.lanes
        parked = lanes.status()
        done = lanes.floor_without(parked).offset if parked else ""
        note = PositionNote(told=lanes.told_without(parked), parked=parked, done=done).encode()
        return lanes.floor.offset, lanes.floor.count, note

    async def _commit_now(self, partition: _Partition) -> None:
        offset, count, note = self._position(partition)
        await partition.skips.write(self._bus)
        await self._graph.durable(partition.run)
        committed = Committed(offset=offset, count=count, note=note)
        await self._bus.commit(partition.number, committed)
        partition.committed = committed

    async def _last_commit(self, partition: _Partition) -> None:
        with contextlib.suppress(Transient):
            if partition.commit is not None:
                await partition.commit
            if self._position(partition) != _kept(partition.committed):
                await self._commit_now(partition)


def _kept(committed: Committed) -> tuple[str, int, str]:
    return committed.offset, committed.count, committed.note

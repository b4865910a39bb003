"""The mutation worker: reads partitions in order, applies, buries what cannot be applied, commits what is on disk.

The graph's own mark is the truth about what took effect; the bus's position only says where to begin reading. So the
order of steps is fixed: effect and mark (one query), dead letter after the write that leaves a row out, commit only
behind what the graph has on disk. Whatever is interrupted, the next owner finds a mark and goes on from there.

Behind a backlog, the next batch is read, decoded and matched while the graph applies one; never more is in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from graphweft_contracts import BusUnavailable, GraphUnavailable, QueryFailed, Transient
from graphweft_rules import Ruleset
from graphweft_rules.core_schema import CORE_KEYS
from graphweft_rules.packs.pack import Pack
from graphweft_workers.bus.log import Bus, Committed, Stretch
from graphweft_workers.bus.owning import LEASE_S, Held, PartitionOwner
from graphweft_workers.graph.store import GraphStore, Mark, Progress
from graphweft_workers.graphrag.safe_cypher import KEYS as FACT_KEYS
from graphweft_workers.mutation.applying import Applier
from graphweft_workers.mutation.duplicates import RecentEvents
from graphweft_workers.mutation.history import between, known_before
from graphweft_workers.mutation.order import Arranger
from graphweft_workers.mutation.plan import planned_end
from graphweft_workers.mutation.reading import EventWork, Range, letter_of_lost, read_range

__all__ = ("LEASE_S", "MutationWorker")

logger = structlog.get_logger("graphweft.mutation")

_BACKLOG: Final = 100
"""Events of a batch from which on the next one is read while it is applied."""
_BURY_AT_ONCE: Final = 500
_APPS_AT_ONCE: Final = 16
"""Graphs of one partition that are written at the same time."""
_REMEMBERED: Final = 10_000
"""Apps whose marks, and causes of which a warning, a worker keeps in mind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A stretch of a partition and what it amounts to."""

    read: Range
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
    applied: Committed
    """Behind what has taken effect."""
    recent: RecentEvents
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])
    committed: Committed = field(default_factory=Committed)
    commit: asyncio.Task[None] | None = None

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
        self._unknown: set[str | None] = set()
        self._awaits_rules = False
        self._warned: set[tuple[str, ...]] = set()
        self._packed: set[tuple[str, Pack]] = set()
        """Apps that have the indexes of a pack."""
        self._applier = Applier(bus, graph, Arranger(rules, graph.dialect))
        self.applied_events: int = 0

    def stop(self) -> None:
        """Ask the worker to finish the batch in hand, commit it and return from ``run``."""
        self._owner.stop()

    async def run(self) -> None:
        """Work until ``stop``. Outages of bus and graph are waited out; only a defect of ours ends it early."""
        if await self._owner.run(self._own):
            logger.info("worker_stopped", worker=self._owner.name, events=self.applied_events)

    async def _own(self, held: Held) -> None:
        run = await self._graph.check()
        # It reads thousands of entries back, and those with vectors in them are long.
        opened = await held.finish(self._open(held, run))
        if opened is not None:
            await self._work(opened.result())

    async def _open(self, held: Held, run: str) -> _Partition:
        committed = await self._bus.committed(held.number)
        recent = await known_before(self._bus, held.number, committed.offset)
        logger.debug("partition_opened", partition=held.number, position=committed.offset)
        return _Partition(held=held, run=run, cursor=committed, applied=committed, recent=recent, committed=committed)

    async def _work(self, partition: _Partition) -> None:
        try:
            async with contextlib.aclosing(self._batches(partition)) as batches:
                async for batch in batches:
                    if batch is not None:
                        await self._apply(partition, batch)
                        partition.applied = batch.end
                        partition.held.progressed = True
                        self.applied_events += batch.events
                    await self._commit(partition)
        finally:
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
        if stretch.lost:
            await self._tell_lost(partition, stretch)
        entries = stretch.entries
        read = read_range(partition.number, entries, self._rules, partition.recent) if entries else None
        if read is not None and read.waiting is not None:
            offset, workflow = read.waiting
            entries = [entry for entry in entries if self._bus.is_after(offset, entry.offset)]
            await self._wait_for_rules(partition, workflow, at_once=not entries)
        count = partition.cursor.count + stretch.lost + len(entries)
        last = entries[-1].offset if entries else partition.cursor.offset
        partition.cursor = Committed(offset=last, count=count)
        if read is None or not entries:
            return None
        return _Batch(read=read, end=partition.cursor, events=len(entries))

    async def _wait_for_rules(self, partition: _Partition, workflow: str, *, at_once: bool) -> None:
        """Say once that there are events which need rules; ``at_once``: they are the next ones."""
        if not self._awaits_rules:
            self._awaits_rules = True
            logger.warning(
                "rules_awaited", workflow=workflow, partition=partition.number,
                message="events of this workflow need rules and there are none at all: they wait on the bus, and those "
                "behind them, until a worker is started with some",
            )  # fmt: skip
        if at_once:
            await partition.held.rest()

    async def _tell_lost(self, partition: _Partition, stretch: Stretch) -> None:
        next_offset = stretch.entries[0].offset if stretch.entries else None
        letter = letter_of_lost(partition.number, partition.cursor.offset, stretch.lost, next_offset)
        await self._bus.bury([letter])
        logger.error(
            "events_lost", partition=partition.number, events=stretch.lost, after=partition.cursor.offset,
            message=letter.message,
        )  # fmt: skip

    async def _apply(self, partition: _Partition, batch: _Batch) -> None:
        works = {app_id: list(found) for app_id, found in batch.read.apps.items()}
        await self._report(batch.read)
        opened = await self._open_apps(partition, works)
        await self._reach(partition, works, opened)
        await self._prepare_packs(works)
        gate = asyncio.Semaphore(_APPS_AT_ONCE)

        async def one(app_id: str) -> None:
            async with gate:
                await self._apply_app(partition, app_id, works[app_id], opened.get(app_id))

        await _all(one(app_id) for app_id in works)

    async def _report(self, read: Range) -> None:
        for start in range(0, len(read.letters), _BURY_AT_ONCE):
            await self._bus.bury(read.letters[start : start + _BURY_AT_ONCE])
        for letter in read.letters:
            logger.error("event_buried", position=letter.position, reason=letter.reason, message=letter.message)
        for workflow in read.unknown - self._unknown:
            if len(self._unknown) >= _REMEMBERED:  # names come from outside, so memory has a bound
                break
            self._unknown.add(workflow)
            logger.warning("workflow_without_rules", workflow=workflow, known=sorted(self._rules.workflows))
        for event, skip in read.skipped:
            # Once per rule and cause: the same rule usually misses the same thing in every event.
            cause = (skip.rule, skip.query, skip.reason, skip.detail)
            level = logger.debug if cause in self._warned else logger.warning
            if len(self._warned) < _REMEMBERED:
                self._warned.add(cause)
            level(
                "mutation_skipped", rule=skip.rule, mutation=skip.query, reason=skip.reason, detail=skip.detail,
                place=str(skip.place), event_id=event.id, event_type=event.type,
            )  # fmt: skip

    async def _open_apps(
        self, partition: _Partition, works: dict[str, list[EventWork]]
    ) -> dict[str, Progress | QueryFailed]:
        """Return how far apps are that come for the first time, or why they have no graph."""
        if len(partition.marks) > _REMEMBERED:
            partition.marks.clear()
        found: dict[str, Progress | QueryFailed] = {}
        gate = asyncio.Semaphore(_APPS_AT_ONCE)

        async def one(app_id: str) -> None:
            async with gate:
                try:
                    facts = FACT_KEYS if self._rules.asks_for_facts else frozenset[tuple[str, str]]()
                    await self._graph.prepare(app_id, self._rules.keys | facts | CORE_KEYS)
                    progress = await self._graph.progress(app_id, partition.number)
                except QueryFailed as failure:
                    found[app_id] = failure
                    return
                offset = progress.mark.offset
                if self._bus.is_after(offset, works[app_id][-1].entry.offset):
                    await self._check_end(partition.number, app_id, offset)
                found[app_id] = progress

        await _all(one(app_id) for app_id in works if app_id not in partition.marks)
        return found

    async def _prepare_packs(self, works: dict[str, list[EventWork]]) -> None:
        """Give apps the indexes of packs that they have events for: only few have, and an index costs each write."""
        for app_id, found in works.items():
            for pack in self._rules.packs_for({work.event.type for work in found}):
                if (app_id, pack) not in self._packed:
                    with contextlib.suppress(QueryFailed):  # an app without a graph: its events are refused below
                        await self._graph.prepare(app_id, pack.keys, pack.indexes)
                    if len(self._packed) >= _REMEMBERED:
                        self._packed.clear()
                    self._packed.add((app_id, pack))

    async def _check_end(self, number: int, app_id: str, offset: str) -> None:
        """Stop where a graph stands behind the end of the log: events there would be taken for done."""
        end = next((status.end for status in await self._bus.status() if status.id == number), "")
        if self._bus.is_after(offset, end):
            raise BusUnavailable(
                f"the graph of {app_id!r} stands at {offset} of partition {number}, which ends at {end or 'nothing'}: "
                "the log was made anew or lost its end. Restore it, or rebuild the graph from it",
                retry_after_s=5.0,
            )

    async def _reach(
        self, partition: _Partition, works: dict[str, list[EventWork]], opened: dict[str, Progress | QueryFailed]
    ) -> None:
        """Add to ``works`` the events up to the end of the plans under way, where those lie behind the batch."""
        for app_id, progress in opened.items():
            if isinstance(progress, QueryFailed):
                continue
            end = planned_end(progress)
            last = works[app_id][-1].entry.offset
            if end is not None and self._bus.is_after(end, last):
                works[app_id] += await self._between(partition.number, app_id, last, end)

    async def _between(self, number: int, app_id: str, after: str, end: str) -> list[EventWork]:
        """Return the app's works behind ``after`` up to ``end``, from the log itself."""
        entries = [entry async for page in between(self._bus, number, after, end) for entry in page]
        # Copies need no look here: a plan names the events it has rows of, and a copy has none.
        read = read_range(number, entries, self._rules, RecentEvents())
        if read.waiting is not None:
            raise GraphUnavailable(
                f"the graph of {app_id!r} holds a half-done batch of events of the workflow {read.waiting[1]!r}, "
                "which needs its rules, and there are none: start a worker with the rules that it was begun with",
                retry_after_s=5.0,
            )
        return read.apps.get(app_id, [])

    async def _apply_app(
        self, partition: _Partition, app_id: str, works: Sequence[EventWork], opened: Progress | QueryFailed | None
    ) -> None:
        if isinstance(opened, QueryFailed):
            # There is no graph and so no mark; the other apps of the partition must not wait for that.
            await self._applier.refuse(partition.number, works, opened)
            return
        mark = partition.marks[app_id] if opened is None else opened.mark
        if opened is not None and mark.plan:
            mark = await self._applier.resume(partition.number, app_id, opened, works)
        behind = [work for work in works if self._bus.is_after(work.entry.offset, mark.offset)]
        partition.marks[app_id] = await self._applier.apply(partition.number, app_id, mark, behind)

    async def _commit(self, partition: _Partition) -> None:
        """Start to commit the cursor unless a commit is on its way; waiting for the disk must not hold up reading."""
        if partition.commit is not None:
            if not partition.commit.done():
                return
            task, partition.commit = partition.commit, None
            task.result()
        if partition.applied != partition.committed:
            partition.commit = asyncio.create_task(self._commit_now(partition))

    async def _commit_now(self, partition: _Partition) -> None:
        applied = partition.applied
        await self._graph.durable(partition.run)
        await self._bus.commit(partition.number, applied)
        partition.committed = applied

    async def _last_commit(self, partition: _Partition) -> None:
        with contextlib.suppress(Transient):
            if partition.commit is not None:
                await partition.commit
            if partition.applied != partition.committed:
                await self._commit_now(partition)


async def _all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run calls at the same time; wait for all of them, then raise the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result

"""The mutation worker: reads partitions in order, applies their events, writes dead letters, commits positions.

The graph's checkpoint decides which events took effect; the position on the bus only says where to begin reading. So
the order is fixed: (1) effect and checkpoint, in one query; (2) the dead letter, after the write that drops a row; (3)
the commit, after the graph is on disk and the dead letters of skips are written. After any interruption the next owner
continues from the checkpoint.

With a backlog, the next batch is read, decoded, matched and arranged while the graph applies the last one. Each app of
a partition advances in a queue of its own, see ``app_queues``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import batched
from typing import Final

from graphweft_contracts import GraphUnavailable, InvalidEvent, QueryFailed, Transient
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules import RuleSet
from graphweft_rules.matching.explain import named
from graphweft_workers.apps import Quotas
from graphweft_workers.engine.app_queues import AppQueues
from graphweft_workers.engine.app_writer import AppWriter, WorkerState
from graphweft_workers.engine.compile_ahead import match_compiled
from graphweft_workers.engine.duplicates import REACH, RecentEvents
from graphweft_workers.engine.history import known_before
from graphweft_workers.engine.leases import LEASE_S, Lease, LeaseHolder
from graphweft_workers.engine.letter_quota import LetterQuota
from graphweft_workers.engine.memory_quota import MemoryQuota
from graphweft_workers.engine.name_quota import NameQuota
from graphweft_workers.engine.older_graph import Obstacle, is_graph_behind, no_obstacle
from graphweft_workers.engine.passed_over import PassedOver
from graphweft_workers.engine.position_note import PositionNote
from graphweft_workers.engine.read import Range, Skip, defect_of, letter_of_lost
from graphweft_workers.engine.reading_window import APP_COST, ReadingWindow, TakenEntries, WindowsTogether
from graphweft_workers.engine.retries import retry
from graphweft_workers.engine.series_store import MARKS_EVERY, is_outdated, read_marks, write_marks
from graphweft_workers.engine.set_aside import counted_letter
from graphweft_workers.engine.skips import Skips
from graphweft_workers.engine.turns import TurnClock, decode_in_turns
from graphweft_workers.engine.usage_reporter import MeasuredGraphs, UsageReporter
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count, letter_with
from graphweft_workers.ports.event_log import Batch, Committed
from graphweft_workers.ports.graph_store import GraphStore, PositionMove
from graphweft_workers.ports.offsets import is_after, later
from graphweft_workers.rule_sets.active_rules import ActiveRules, FixedRules, RulesCursor
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, Timing

logger = get_logger("graphweft.mutation")

_BACKLOG: Final = 100
"""The next batch is read during the application of a batch with at least this many events."""
_LETTERS_AT_ONCE: Final = 500
_START: Final = Committed()
_RECENT: Final = 500
"""Of the last entries, some may have a trace in the graphs."""
_MOST_LETTERS: Final = 10_000
_MOST_PENDING: Final = 10_000
"""Skips in memory; with more, the partition waits until they are written to dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A batch of a partition, decoded and matched."""

    read: Range
    without: frozenset[str]
    """Apps that were parked when the batch was matched."""
    taken: TakenEntries


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the reader of a partition begins."""

    start: Committed
    again: str
    kept: Committed | None
    """See ``_Partition``."""


@dataclass(slots=True, kw_only=True)
class _Partition:
    """The state of an opened partition; discarded after an error."""

    lease: Lease
    run: str
    """The run of the graph server; a later run may have lost unsaved writes."""
    window: ReadingWindow
    recent: RecentEvents
    writer: AppWriter
    queues: AppQueues
    skips: Skips
    before: PositionNote
    """The note of the last owner."""
    passed_over: PassedOver
    committed: Committed
    """The position on the bus."""
    at: str
    """The last entry up to it."""
    kept: Committed | None
    """What the graph server says of the partition; None if its store keeps no positions."""
    again: str
    """Up to this offset, events may take effect again: the graph was older than the log."""
    rules: RulesCursor
    commit: asyncio.Task[None] | None = None
    is_replaced: bool = False
    """Whether the graph server says of the partition something else than ``kept``: its data is not what it was."""
    is_outdated: bool = False
    """Whether entries were erased since it was opened, so that ``recent`` knows what the log no longer has."""
    stepped: bool = False
    """Whether the reader has stepped over anything but entries since the last commit began; see ``Batch``."""

    @property
    def number(self) -> int:
        return self.lease.number


class MutationWorker:
    """Leases as many partitions as no other worker holds, and applies their events until ``stop``."""

    def __init__(
        self,
        bus: Bus,
        graph: GraphStore,
        rules: RuleSet | ActiveRules,
        *,
        name: str,
        batch_events: int = 1_000,
        lease_s: float = LEASE_S,
        index_keys: frozenset[tuple[str, str]] = frozenset(),
        fact_keys: frozenset[tuple[str, str]] = frozenset(),
        quotas: Callable[[str], Quotas] = lambda _: Quotas(),
        obstacle: Obstacle = no_obstacle,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = TIMING,
    ) -> None:
        """``index_keys`` are (label, property) of indexes for every app's graph, beside those for rules.

        ``fact_keys`` are for apps whose rules ask for facts. ``quotas`` returns the quotas of an app. ``obstacle`` says
        of an app whose graph is older than the log why the log alone does not help. The worker closes neither ``bus``
        nor ``graph``.
        """
        self._bus = bus
        self._graph = graph
        self._rules = FixedRules(rules) if isinstance(rules, RuleSet) else rules
        self._batch_events = batch_events
        self._clock = clock
        self._timing = timing
        self._leases = LeaseHolder(bus, name=name, lease_s=lease_s, logger=logger, clock=clock, timing=timing.leases)
        self._warned: BoundedDict[tuple[str | None, ...], None] = BoundedDict()
        measured = graph if isinstance(graph, MeasuredGraphs) else None
        self._usage = UsageReporter(bus, measured, clock=clock, every_s=timing.usage_s)
        self._letters = LetterQuota(bus.dead_letters, self._usage, lambda app_id: quotas(app_id).dead_letters)
        self._state = WorkerState(
            log=bus.log,
            partitions=bus.partitions,
            letters=self._letters,
            purges=bus.purges,
            graph=graph,
            rules=self._rules,
            batch_events=batch_events,
            index_keys=index_keys,
            fact_keys=fact_keys,
            names=None if measured is None else NameQuota(measured, lambda app_id: quotas(app_id).property_names),
            memory=None
            if measured is None
            else MemoryQuota(measured, lambda app_id: quotas(app_id).graph_bytes, clock=clock, timing=timing.quota),
            clock=clock,
            timing=timing,
            obstacle=obstacle,
        )
        self.applied_events: int = 0
        self._windows = WindowsTogether()
        self._open_partitions: dict[int, _Partition] = {}
        self._rules_changed = asyncio.Event()
        """Set when parked events may have rules now."""
        self._known_rules = 0
        """How many rule sets were known at the last read; a lost one that is found again counts, too."""

    def stop(self) -> None:
        """Make ``run`` return after the batch in hand is applied and committed."""
        self._leases.stop()

    async def run(self) -> None:
        """Work until ``stop``; while the bus or the graph is unavailable, wait.

        An unexpected error is logged and stops its partition only, which is opened again after 5 s.
        """
        applying = asyncio.create_task(self._apply_parked(), name="graphweft-parked-events")
        reporting = asyncio.create_task(self._usage.run(), name="graphweft-usage")
        watching = asyncio.create_task(self._watch_graph(), name="graphweft-graph")
        try:
            ended = await self._leases.run(self._own)
        finally:
            for task in (applying, reporting, watching):
                task.cancel()
            await asyncio.gather(applying, reporting, watching, return_exceptions=True)
        if ended:
            logger.info("worker_stopped", worker=self._leases.name, events=self.applied_events)

    async def _own(self, lease: Lease) -> None:
        run = await self._graph.check()
        try:
            # Opening may outlast the lease: it reads thousands of entries, and entries with vectors are large.
            opened = await lease.finish(self._open(lease, run))
            if opened is not None:
                await self._work(opened.result())
        except Transient:
            raise
        except Exception as error:
            defect = defect_of(error)
            logger.error(
                "partition_failed", partition=lease.number, error=defect.kind, frames=defect.frames,
                next="report it; `graphweft dlq skip` sets aside an event that causes it",
            )  # fmt: skip
            raise Transient(
                f"partition {lease.number} failed: {defect.kind}", retry_after_s=self._timing.defect_s
            ) from error

    async def _open(self, lease: Lease, run: str) -> _Partition:
        number = lease.number
        committed = await self._bus.partitions.committed(number)
        await self._rules.refresh()
        before = PositionNote.decode(committed.note)
        place = await self._place(number, run, committed, before)
        start, again = place.start, place.again
        reach = REACH if again else before.reach  # how far windows reach back from there is not known
        stored = await read_marks(self._bus.series)
        records = None if stored is None else stored.get(number, ())
        recent = await known_before(self._bus.log, number, start.offset, reach=reach, records=records)
        if before.reach > REACH:
            logger.warning(
                "copies_forgotten", partition=number, entries=before.reach, read_back=REACH,
                message="apps that sent little lie further back than is read: if they repeat an event from there, it "
                "takes effect again",
            )  # fmt: skip
        aside = await counted_letter(
            self._bus, self._graph, number, committed.offset, timeout_s=self._timing.checkpoints_s
        )

        async def as_lived(after: Committed = _START) -> PassedOver:
            return await PassedOver.as_lived(self._bus, number, after=after)

        passed_over = await as_lived(start) if again else PassedOver.of_set_aside(number, aside)
        await self._usage.open(number)
        skips = Skips(number)
        reached = None if place.kept is None else await self._graph.reached(number)
        writer = AppWriter(
            self._state, number, passed_over, recent, reached=reached, as_lived=as_lived, again=again
        )  # fmt: skip
        queues = AppQueues(
            writer, run=run, check=self._graph.check, skips=skips, position=start, before=before,
            progressed=lambda: self._start_commit(opened), clock=self._clock, timing=self._timing.queues,
        )  # fmt: skip
        logger.debug("partition_opened", partition=number, position=start.offset)
        opened = _Partition(
            lease=lease,
            run=run,
            window=ReadingWindow(start, self._windows),
            recent=recent,
            writer=writer,
            queues=queues,
            skips=skips,
            before=before,
            passed_over=passed_over,
            committed=committed,
            at=before.at or committed.offset,
            kept=place.kept,
            again=again,
            rules=self._rules.cursor(number, start.offset),
        )
        return opened

    async def _place(self, number: int, run: str, committed: Committed, before: PositionNote) -> _Place:
        """Return where to begin: where the graphs are complete, if that is before the position on the bus."""
        positions = await self._graph.positions()
        if positions is None:
            return _Place(start=committed, again="", kept=None)
        kept = positions.get(number)
        held = Committed() if kept is None else kept
        again = before.again
        at = before.at or committed.offset
        start = held if is_after(at, held.offset) else replace(committed, note="")
        if is_graph_behind(committed.offset, before, kept):
            again = later(again, later(at, before.done))
        if kept is None:
            if await self._may_trust(number, start, committed):
                start, again = replace(committed, note=""), before.again
            # At once: who finds nothing later knows that the server has lost it.
            await self._graph.durable(run, PositionMove(partition=number, before=None, after=start))
            held = start
        if again and not is_after(again, start.offset):
            again = ""
        if is_after(at, start.offset):
            logger.warning(
                "graph_is_behind", partition=number, graph=start.offset, position=committed.offset,
                entries=committed.count - start.count,
                message="the graph server was restored, emptied or replaced: the events between the two are read "
                "again, and those that its graphs hold are passed over",
            )  # fmt: skip
        return _Place(start=start, again=again, kept=held)

    async def _may_trust(self, number: int, start: Committed, committed: Committed) -> bool:
        """Tell whether to take graphs for complete although the graph server says nothing of a partition.

        It is new or was emptied, or its graphs were made by an earlier version or a rebuild. To read everything again
        is right in any case. Where the log does not reach back so far, graphs with recent events are complete as far
        as can be told.
        """
        if not is_after(committed.offset, start.offset) or not (await self._bus.log.read(number, start, limit=1)).lost:
            return False
        page = await self._bus.log.before(number, committed.offset, limit=_RECENT)
        apps: set[str] = set()
        for entry in page:
            with contextlib.suppress(InvalidEvent):
                apps.add(entry.event().appid)
        for app_id in apps:
            with contextlib.suppress(QueryFailed):
                found = await self._graph.checkpoints(app_id, timeout_s=self._timing.checkpoints_s)
                if number in found and not is_after(page[0].offset, found[number].offset):
                    return True
        return False

    async def _work(self, partition: _Partition) -> None:
        queues, began = partition.queues, partition.queues.given
        self._open_partitions[partition.number] = partition
        self._rules_changed.set()
        try:
            async with contextlib.aclosing(self._batches(partition)) as batches:
                async for batch in batches:
                    if batch is not None:
                        parked, skips = await self._report(partition, batch)
                        taken = batch.taken
                        queues.give(batch.read.apps, skips, taken.end, taken.ends, batch.without | parked)
                        self.applied_events += taken.count
                    if partition.is_outdated:
                        raise GraphUnavailable("entries were erased: the partition is opened again")
                    if partition.is_replaced:
                        raise GraphUnavailable(
                            "the graph server was emptied, restored or replaced: the partition is opened again"
                        )
                    await partition.lease.finish(queues.settle())  # long if more apps fail than may be parked
                    if queues.floor.offset != began.offset:
                        partition.lease.progressed = True
                    await self._commit(partition)
                    if partition.skips.pending > _MOST_PENDING and partition.commit is not None:
                        await asyncio.wait([partition.commit])  # each pending skip holds a whole event
            await queues.drain()
        finally:
            self._open_partitions.pop(partition.number, None)
            partition.window.clear()
            await queues.aclose()
            self._state.applier.forget(partition.number)
            await self._last_commit(partition)
            await self._usage.close(partition.number)

    async def _batches(self, partition: _Partition) -> AsyncGenerator[_Batch | None]:
        """Yield the batches of the partition, and None after a while without events, until the lease ends.

        With a backlog it reads one batch ahead. Without one, that would only make small batches smaller and delay new
        events behind older ones.
        """
        ahead: asyncio.Task[_Batch | None] | None = None
        try:
            while await partition.lease.goes_on():
                batch = await (ahead or asyncio.create_task(self._read(partition)))
                behind = batch is not None and (batch.taken.count >= _BACKLOG or len(partition.window) > 0)
                ahead = asyncio.create_task(self._read(partition, behind=True)) if behind else None
                yield batch
        finally:
            # Reading removes nothing: the entries of a cancelled read are read again.
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def _read(self, partition: _Partition, *, behind: bool = False) -> _Batch | None:
        """Return the next batch; None after a while without events, and at ``stop``.

        ``behind`` says that the graph takes the batch before it meanwhile: then its rows are arranged, too.
        """
        window, number = partition.window, partition.number
        found = False
        while not window.is_full:
            if window or found:
                batch = await self._bus.log.read(number, window.cursor, limit=self._batch_events, wait_s=0)
            else:
                batch = await partition.lease.read(window.cursor, limit=self._batch_events)
            found |= bool(batch.entries or batch.lost)  # what was lost up to the end is passed, too
            size = await self._add(partition, batch)
            # A bus may give less than there is. Without a backlog, another request would only cost time.
            short = len(batch.entries) < self._batch_events and size < APP_COST
            if not batch.entries or (short and len(window) < _BACKLOG):
                break
        if not window and not found:
            return None
        without = partition.queues.parked
        taken = window.take(self._batch_events, free=without)
        read = await match_compiled(
            number,
            taken.entries,
            partition.recent,
            without=without,
            passed_over=partition.passed_over,
            costs=self._state.costs,
        )
        if behind:
            for events in read.apps.values():
                if len(events) >= _BACKLOG:
                    await self._state.applier.prepare(number, events)
        self._usage.add_copies(number, read.copied)
        return _Batch(read=read, without=without, taken=taken)

    async def _add(self, partition: _Partition, batch: Batch) -> int:
        """Decode entries and add them to the window; return their cost."""
        partition.stepped |= batch.stepped
        entries, after = batch.entries, partition.window.cursor.offset
        if batch.lost:
            next_offset = entries[0].offset if entries else None
            again = bool(later(partition.again, partition.queues.again))
            letter = letter_of_lost(partition.number, after, batch.lost, next_offset, again=again)
            await self._letters.put([letter])
            logger.error(
                "events_lost", partition=partition.number, events=batch.lost, after=after, message=letter.message
            )
        await self._rules.refresh(entries)
        if self._rules.known != self._known_rules:
            self._known_rules = self._rules.known
            self._rules_changed.set()
        decoded = await decode_in_turns(entries, partition.rules, turns=TurnClock(self._clock, self._timing.turn_s))
        start = self._bus.offsets.entries_up_to(partition.window.cursor)
        cost = partition.window.add(decoded, lost=batch.lost)
        self._usage.add(partition.number, decoded, start, self._bus.offsets.entries_up_to(partition.window.cursor))
        return cost

    async def _report(
        self, partition: _Partition, batch: _Batch
    ) -> tuple[frozenset[str], Mapping[str, Sequence[Skip]]]:
        """Write dead letters and count skips, except those that the last owner has reported.

        Return the parked apps, which are not included since they read the batch again; and, by app, the skips to count
        after the app's events.
        """
        read, queues = batch.read, partition.queues
        for app_id in read.lost:
            queues.park(app_id)
        for app_id in read.dear:
            queues.park_dear(app_id)
        for app_id in {skip.event.appid for skip in read.skips if skip.reason == "no_rules"} - queues.parked:
            if await partition.writer.is_half_done(app_id):
                queues.park(app_id)
        parked = queues.parked
        letters = [
            letter for letter in read.letters
            if letter.app_id not in parked and self._is_new(partition, letter.app_id, letter.offset)
        ]  # fmt: skip
        for some in batched(letters, _LETTERS_AT_ONCE):
            await self._letters.put(some)
        for letter in letters:
            logger.error("dead_letter", position=letter.position, reason=letter.reason, message=letter.message)
        for defect in read.defects:
            logger.error("defect", partition=partition.number, error=defect.kind, frames=defect.frames)
        later: dict[str, list[Skip]] = {}
        for skip in read.skips:
            app_id = skip.event.appid
            if app_id not in parked and self._is_new(partition, app_id, skip.entry.offset):
                self._warn(skip)
                if app_id in read.apps or app_id in later or queues.is_busy(app_id):
                    later.setdefault(app_id, []).append(skip)
                else:
                    partition.skips.add(skip)
        return parked, later

    def _is_new(self, partition: _Partition, app_id: str | None, offset: str) -> bool:
        return is_after(offset, partition.before.reported_of(app_id))

    def _warn(self, skip: Skip) -> None:
        """Log a skip as a warning once per rule and cause: a rule usually lacks the same value in every event."""
        event = skip.event
        if skip.reason == "no_rules":
            cause: tuple[str | None, ...] = (event.workflow,)
            known = named(self._rules.current(event.appid).workflows)
            fields: dict[str, object] = {"workflow": event.workflow, "known": known}
        else:
            cause = (event.workflow, skip.rule, skip.mutation, skip.message)
            fields = {"rule": skip.rule, "mutation": skip.mutation, "place": skip.place}
        level = logger.debug if cause in self._warned else logger.warning
        self._warned[cause] = None
        level(
            "workflow_without_rules" if skip.reason == "no_rules" else "mutation_skipped", **fields,
            detail=skip.message, event_id=event.id, event_type=event.type,
            next="`graphweft status` counts them; after a fix run: graphweft rules push, graphweft dlq retry --all",
        )  # fmt: skip

    async def _apply_parked(self) -> None:
        """Publish the events again that had no rules, once their workflow has some."""
        if not self._rules.change:
            return
        while True:
            await self._rules_changed.wait()
            self._rules_changed.clear()
            await self._clock.sleep(
                self._timing.rules.rescan_s
            )  # all partitions pass an activation at about the same time
            with contextlib.suppress(Transient):
                await self._apply_known()

    def _has_rules(self, app_id: str, workflow: str) -> bool:
        """Tell whether a workflow has rules now; those that are not compiled yet may turn out to be faulty."""
        rules = self._rules.current(app_id)
        return workflow in rules.workflows and (not rules.is_compiled(workflow) or rules.problem(workflow) is None)

    async def _apply_known(self) -> None:
        if not await letter_count(self._bus.dead_letters):
            return
        # Without the events, which may be gigabytes: only that of a letter that is published is read.
        for bare in await self._bus.dead_letters.read(limit=_MOST_LETTERS, whole=False):
            app_id, workflow = bare.app_id, bare.workflow
            if bare.reason != "no_rules" or app_id is None or bare.partition not in self._open_partitions:
                continue
            rules = self._rules.current(app_id)
            if workflow is None or workflow not in rules.workflows:
                continue
            if not rules.is_compiled(workflow):
                await asyncio.to_thread(rules.compile, [workflow])
            if rules.problem(workflow) is None:
                letter = await letter_with(self._bus.dead_letters, bare.id)
                if letter is None:  # retried or dropped meanwhile
                    continue
                retried = await retry(self._bus, letter, partial=True, without_keys=True)
                logger.info(
                    "parked_events_published", app_id=app_id, workflow=workflow, events=retried.events,
                    kept=retried.kept,
                )  # fmt: skip

    async def _commit(self, partition: _Partition) -> None:
        """Start a commit unless one is under way: reading must not wait for the disk."""
        if partition.commit is not None and partition.commit.done():
            task, partition.commit = partition.commit, None
            task.result()
        self._start_commit(partition)

    def _start_commit(self, partition: _Partition) -> None:
        if partition.commit is None and (partition.stepped or self._is_new_position(partition)):
            partition.stepped = False
            partition.commit = asyncio.create_task(self._commit_now(partition))

    def _is_new_position(self, partition: _Partition) -> bool:
        graph, bus = self._positions(partition)
        kept = partition.kept
        return _as_tuple(bus) != _as_tuple(partition.committed) or (
            kept is not None and _as_tuple(graph) != _as_tuple(kept)
        )

    def _positions(self, partition: _Partition) -> tuple[Committed, Committed]:
        """Return the positions to store on the graph server and on the bus, which never goes back."""
        queues, before = partition.queues, partition.before
        floor, parked = queues.floor, queues.status()
        done = queues.floor_without(parked).offset if parked else ""
        reported, shown = before.resumed(queues.reported_without(parked), parked, floor.offset)
        again = later(partition.again, queues.again)
        if not is_after(again, floor.offset):
            again = ""
        is_behind = is_after(partition.at, floor.offset)
        note = PositionNote(
            reported=reported,
            parked=shown,
            done=done or (floor.offset if shown else ""),
            reach=partition.recent.reach_at(floor.offset),
            at=partition.at if is_behind else floor.offset,
            again=again,
            again_at=floor.offset if again else "",
        ).encode()
        on_bus = partition.committed if is_behind else floor
        return replace(floor, note=done), replace(on_bus, note=note)

    async def _commit_now(self, partition: _Partition, *, least: int = MARKS_EVERY) -> None:
        graph, bus = self._positions(partition)
        reached = partition.queues.take_reached()
        await partition.skips.write(self._letters)
        if any(self._has_rules(*each) for each in partition.skips.take_without_rules()):
            self._rules_changed.set()  # it had none at the place of the event
        move = None
        if partition.kept is not None:
            move = PositionMove(partition=partition.number, before=partition.kept, after=graph, reached=reached)
        # Before the position is stored anywhere: who finds a position must find the marks for it.
        await write_marks(self._bus.series, partition.number, partition.recent, graph.offset, least=least)
        await self._graph.durable(partition.run, move)
        if move is not None:
            partition.kept = graph
        await self._bus.partitions.commit(partition.number, bus)
        partition.committed, partition.at = bus, later(partition.at, graph.offset)

    async def _watch_graph(self) -> None:
        """Look whether the graph server still says what it was told: else its data was restored or emptied."""
        while True:
            await self._clock.sleep(self._timing.graph_look_s)
            before = {number: (each, each.kept) for number, each in self._open_partitions.items()}
            found: Mapping[int, Committed] | None = None
            with contextlib.suppress(Transient):
                found = await self._graph.positions()
            if found is not None:
                for number, (partition, kept) in before.items():
                    is_at_rest = partition.commit is None or partition.commit.done()
                    if kept is not None and is_at_rest and partition.kept is kept:
                        partition.is_replaced = found.get(number) != kept
            if not any(partition.recent.has_series for partition, _ in before.values()):
                continue
            with contextlib.suppress(Transient):
                stored = await read_marks(self._bus.series)
                for number, (partition, _) in before.items():
                    partition.is_outdated |= is_outdated(stored, number, partition.recent)

    async def _last_commit(self, partition: _Partition) -> None:
        with contextlib.suppress(Transient):
            if partition.commit is not None:
                await partition.commit
            if self._is_new_position(partition) or partition.recent.due(1):
                await self._commit_now(partition, least=1)


def _as_tuple(committed: Committed) -> tuple[str, int, str]:
    return committed.offset, committed.count, committed.note

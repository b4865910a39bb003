"""The way of events through a partition, from top to bottom: read, decode, match, arrange, apply, commit.

The graph's checkpoint decides which events took effect; the position on the bus only says where to begin reading. So
the order is fixed: (1) effect and checkpoint, in one query; (2) the dead letter, after the write that drops a row; (3)
the commit, after the graph is on disk and the dead letters of skips are written. After any interruption the next owner
continues from the checkpoint.

With a backlog, the next batch is read, decoded, matched and arranged while the graph applies the last one. Each app of
the partition applies its events in a task of its own, see ``app_queues``.

What is not ordinary has a module of its own, which the way calls in one place:

===========================  =======================================================================
where a worker begins        ``opening``
skips, dead letters          ``batch_reports``
a graph that is opened       ``graph_opening``: ``half_done`` plans, ``seals``, ``strikes``, ``older_graph``
rows that fail               ``failing_rows``, called by ``apply``: ``quarantine``, ``row_letters``
an app in trouble            ``app_troubles``, called by ``app_queues``; a parked one: ``parked_apps``
rules that were missing      ``returned_rules``
===========================  =======================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from graphweft_contracts import GraphUnavailable, QueryFailed, Transient
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.channels import MUTATION_GROUP
from graphweft_workers.engine.apply.app_queues import AppQueues
from graphweft_workers.engine.apply.graph_opening import GraphOpening
from graphweft_workers.engine.apply.half_done import HalfDonePlans
from graphweft_workers.engine.apply.older_graph import OlderGraphs
from graphweft_workers.engine.apply.parked_apps import ParkedApps
from graphweft_workers.engine.apply.worker_state import WorkerState
from graphweft_workers.engine.batch_reports import BatchReports, Warned
from graphweft_workers.engine.failures.returned_rules import ReturnedRules
from graphweft_workers.engine.failures.skips import Skips
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.log.leases import Lease
from graphweft_workers.engine.log.ledger_reader import ledger_as_lived
from graphweft_workers.engine.log.read import LoggedEvent, Range, ReadEntry, letter_of_lost
from graphweft_workers.engine.log.reading_window import APP_COST, ReadingWindow, TakenEntries, WindowsTogether
from graphweft_workers.engine.log.series_store import MARKS_EVERY, write_marks
from graphweft_workers.engine.log.turns import TurnClock, decode_in_turns, match_in_turns
from graphweft_workers.engine.opening import Opening
from graphweft_workers.engine.stored_positions import StoredPositions
from graphweft_workers.engine.usage.usage_reporter import UsageReporter
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch, CommittedPosition
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, PositionMove
from graphweft_workers.ports.offsets import is_after, later
from graphweft_workers.ports.purges import Purge, put_purge
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_context import ids_of
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.telemetry import tracing_spans
from graphweft_workers.telemetry.metrics import BUS_DURATION, DB_DURATION, DUPLICATES

logger = get_logger("graphweft.mutation")

_BACKLOG: Final = 100
"""The next batch is read during the application of a batch with at least this many events."""
_MOST_PENDING: Final = 10_000
"""Skips in memory; with more, the partition waits until they are written to dead letters."""
_START: Final = CommittedPosition()


@dataclass(slots=True, kw_only=True)
class PartitionParts:
    """What the partitions of a worker share, beside its state."""

    bus: Bus
    graph: GraphStore
    state: WorkerState
    usage: UsageReporter
    returned_rules: ReturnedRules
    windows: WindowsTogether
    warned: Warned
    lines: LogLimit
    applied: Callable[[int], None]
    """Called with the number of entries of each batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MatchedBatch:
    """A batch of a partition, decoded and matched."""

    read: Range
    without: frozenset[str]
    """Apps that were parked when the batch was matched."""
    taken: TakenEntries


class Partition:
    """A partition that a worker holds; it is opened anew after an error."""

    def __init__(self, lease: Lease, opening: Opening, parts: PartitionParts) -> None:
        self.number: int = lease.number
        self.recent: RecentEvents = opening.recent
        self.positions: StoredPositions = StoredPositions(opening)
        self._must_reopen = ""
        self._lease = lease
        self._parts = parts
        self._state = parts.state
        self._run = opening.run
        self._again = opening.again
        self._passed_over = opening.passed_over
        self._window = ReadingWindow(opening.start, parts.windows)
        self._rules = parts.state.rules.cursor(self.number, opening.start.offset)
        self._skips = Skips(self.number)
        self._writer = writer = AppWriter(
            parts.state, self.number, opening.passed_over, opening.recent,
            reached=opening.reached, as_lived=self._as_lived, again=opening.again,
        )  # fmt: skip
        self._queues = AppQueues(
            writer, run=opening.run, check=parts.graph.check, skips=self._skips, position=opening.start,
            before=opening.before, progressed=self._commit_rest, clock=self._state.clock,
            timing=self._state.timing.queues,
        )  # fmt: skip
        self._reports = BatchReports(
            parts.state, self.number, self._queues, writer.half_done, self._skips, before=opening.before,
            warned=parts.warned, lines=parts.lines,
        )  # fmt: skip
        self._commit: asyncio.Task[None] | None = None
        self._is_closing = False
        self._arrived = 0.0
        """When the first entries of the next batch were there, in Unix time; 0 before that."""
        self._stepped = False
        """Whether the reader has stepped over anything but entries since the last commit began; see ``Batch``."""

    async def run(self) -> None:
        """Read and apply events until the lease ends."""
        queues, began = self._queues, self._queues.given
        try:
            async with contextlib.aclosing(self._batches()) as batches:
                async for batch in batches:
                    if batch is not None:
                        await self._give(batch)
                    if self._must_reopen:
                        raise GraphUnavailable(f"{self._must_reopen}: the partition is opened again")
                    await self._lease.finish(queues.settle())  # long if more apps fail than may be parked
                    if queues.floor.offset != began.offset:
                        self._lease.progressed = True
                    self._commit_soon()
                    if self._skips.pending > _MOST_PENDING and self._commit is not None:
                        await asyncio.wait([self._commit])  # each pending skip holds a whole event
            await queues.drain()
        finally:
            await self._close()

    def reopen(self, why: str) -> None:
        """Let the partition be opened anew soon; see ``graph_watch``."""
        self._must_reopen = why
        self._lease.break_off()

    @property
    def reached(self) -> Mapping[str, str]:
        """See ``OlderGraphs.reached``."""
        return self._writer.older.reached

    async def read_again(self, app_id: str, offset: str) -> None:
        """Read the events of an app again, whose graph stands at an offset that is before ``reached``.

        An app that has events in hand notices it by itself. Raises ``BusUnavailable``.
        """
        await self._queues.read_again(app_id, offset)

    # Read, decode, match, arrange

    async def _batches(self) -> AsyncGenerator[_MatchedBatch | None]:
        """Yield the batches of the partition, and None after a while without events, until the lease ends.

        With a backlog it reads one batch ahead. Without one, that would only make small batches smaller and delay new
        events behind older ones.
        """
        ahead: asyncio.Task[_MatchedBatch | None] | None = None
        try:
            while await self._lease.goes_on():
                batch = await (ahead or asyncio.create_task(self._next()))
                behind = batch is not None and (batch.taken.count >= _BACKLOG or len(self._window) > 0)
                ahead = asyncio.create_task(self._next(behind=True)) if behind else None
                yield batch
        finally:
            # Reading removes nothing: the entries of a cancelled read are read again.
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def _next(self, *, behind: bool = False) -> _MatchedBatch | None:
        """Return the next batch; None after a while without events, and at ``stop``.

        ``behind`` says that the graph takes the batch before it meanwhile: then its rows are arranged, too.
        """
        if not await self._read():
            return None
        without = self._queues.parked
        taken = self._window.take(self._state.batch_events, free=without)
        read = await match_in_turns(
            self.number, taken.entries, self.recent,
            without=without, passed_over=self._passed_over, costs=self._state.costs,
        )  # fmt: skip
        began, self._arrived = self._arrived, 0.0
        with tracing_spans.received(self.number, MUTATION_GROUP, read.apps.values(), began=began or None):
            pass
        if behind:
            for events in read.apps.values():
                if len(events) >= _BACKLOG:
                    await self._state.applier.prepare(self.number, events)
        self._parts.usage.add_copies(self.number, read.copied)
        DUPLICATES.add(read.copies)
        return _MatchedBatch(read=read, without=without, taken=taken)

    async def _read(self) -> bool:
        """Fill the window with decoded entries; tell whether there are any, or were any that the log has lost."""
        window, limit, found = self._window, self._state.batch_events, False
        while not window.is_full:
            if window or found:
                batch = await self._parts.bus.log.read(self.number, window.cursor, limit=limit, wait_s=0)
            else:
                batch = await self._lease.read(window.cursor, limit=limit, quiet=self._is_quiet)
            found |= bool(batch.entries or batch.lost)  # what was lost up to the end is passed, too
            size = await self._decode(batch)
            # A bus may give less than there is. Without a backlog, another request would only cost time.
            short = len(batch.entries) < limit and size < APP_COST
            if not batch.entries or (short and len(window) < _BACKLOG):
                break
        return bool(window) or found

    async def _decode(self, batch: Batch) -> int:
        """Decode entries and add them to the window; return their cost."""
        self._stepped |= batch.stepped
        if batch.entries:
            self._arrived = self._arrived or self._state.clock.now().timestamp()
        if batch.lost:
            await self._report_lost(batch)
        await self._state.rules.refresh(batch.entries)
        self._parts.returned_rules.look()
        turns = TurnClock(self._state.clock, self._state.timing.turn_s)
        decoded: Sequence[ReadEntry] = await decode_in_turns(batch.entries, self._rules, turns=turns)
        count = self._parts.bus.offsets.entries_up_to
        start = count(self._window.cursor)
        cost = self._window.add(decoded, lost=batch.lost)
        self._parts.usage.add(self.number, decoded, start, count(self._window.cursor))
        return cost

    # Give the events to their apps, whose tasks apply them

    async def _give(self, batch: _MatchedBatch) -> None:
        parked, skips = await self._reports.report(batch.read)
        taken = batch.taken
        self._queues.give(batch.read.apps, skips, taken.end, taken.ends, batch.without | parked)
        self._parts.applied(taken.count)

    # Commit

    def _commit_soon(self) -> None:
        """Start a commit unless one is under way: reading must not wait for the disk."""
        if self._commit is not None and self._commit.done():
            task, self._commit = self._commit, None
            task.result()
        self._start_commit()

    def _start_commit(self) -> None:
        if self._commit is None and (
            self._stepped or self.positions.is_new(*self.positions.next(self._queues, self.recent))
        ):
            self._stepped = False
            self._commit = asyncio.create_task(self._commit_now())
            self._commit.add_done_callback(lambda _: self._commit_rest())

    def _commit_rest(self) -> None:
        """Commit what took effect beside the last commit, once nothing else is to do: the next read may wait long.

        While apps are at work, the next batch does so. What a commit raises is raised there, too.
        """
        commit = self._commit
        if self._is_closing:
            return
        if commit is not None and commit.done() and self._queues.are_idle:
            if commit.cancelled() or commit.exception() is not None:
                return
            self._commit = None
        self._start_commit()

    async def _commit_now(self, *, least: int = MARKS_EVERY) -> None:
        graph, bus = self.positions.next(self._queues, self.recent)
        reached = self._queues.take_reached()
        await self._skips.write(self._state.letters)
        if any(self._parts.returned_rules.are_there(*each) for each in self._skips.take_without_rules()):
            self._parts.returned_rules.look_soon()  # it had none at the place of the event
        move, kept = None, self.positions.kept
        if kept is not None:
            move = PositionMove(partition=self.number, before=kept, after=graph, reached=reached)
        # Before the position is stored anywhere: who finds a position must find the marks for it.
        await write_marks(self._parts.bus.series, self.number, self.recent, graph.offset, least=least)
        effects = self._state.effects
        said = {} if effects is None else effects.take(self.number)  # what is applied from now on may not be on disk
        with DB_DURATION.timed("durable", clock=self._state.clock):
            await self._parts.graph.durable(self._run, move)
        self.positions.kept_on_graph(graph)
        if effects is not None:
            await effects.write(self.number, said)
        with BUS_DURATION.timed("commit", clock=self._state.clock):
            await self._parts.bus.partitions.commit(self.number, bus)
        self.positions.committed_on_bus(graph, bus)

    # The end, and what the log no longer has

    @property
    def _is_quiet(self) -> bool:
        """Whether nothing is to do until the next event: no app has any in hand, and all positions are stored."""
        if self._commit is not None or self._must_reopen or not self._queues.are_idle:
            return False
        return not self.positions.is_new(*self.positions.next(self._queues, self.recent))

    @property
    def is_at_rest(self) -> bool:
        """Whether no commit is under way."""
        return self._commit is None or self._commit.done()

    async def _close(self) -> None:
        """Give up what waits, and commit what took effect."""
        self._is_closing = True
        self._window.clear()
        await self._queues.aclose()
        self._state.applier.forget(self.number)
        with contextlib.suppress(Transient):
            if self._commit is not None:
                await self._commit
            if self.positions.is_new(*self.positions.next(self._queues, self.recent)) or self.recent.due(1):
                await self._commit_now(least=1)
        if self._state.effects is not None:
            self._state.effects.forget(self.number)

    async def _as_lived(self, after: CommittedPosition = _START) -> EffectLedger:
        return await ledger_as_lived(self._parts.bus, self.number, after=after)

    async def _report_lost(self, batch: Batch) -> None:
        after = self._window.cursor.offset
        next_offset = batch.entries[0].offset if batch.entries else None
        again = bool(later(self._again, self._queues.again))
        letter = letter_of_lost(self.number, after, batch.lost, next_offset, again=again)
        await self._state.letters.put([letter])
        level = logger.debug if self._parts.lines.admit(("events_lost", self.number)) is None else logger.error
        level("events_lost", partition=self.number, events=batch.lost, after=after, message=letter.message)


class AppWriter:
    """Applies the events of the apps of one partition to their graphs."""

    def __init__(
        self,
        state: WorkerState,
        number: int,
        passed_over: EffectLedger,
        recent: RecentEvents | None = None,
        *,
        reached: Mapping[str, str] | None = None,
        as_lived: Callable[[], Awaitable[EffectLedger]] | None = None,
        again: str = "",
    ) -> None:
        """``recent`` are the recent events of the partition at the place of its reader; others: see ``OlderGraphs``."""
        self.state: WorkerState = state
        self.number: int = number
        self.older: OlderGraphs = OlderGraphs(
            number, passed_over, state.obstacle, reached=reached, as_lived=as_lived, again=again
        )
        self.half_done: HalfDonePlans = HalfDonePlans(state, number, self.older)
        self.parked: ParkedApps = ParkedApps(state, number, self.older, self.half_done, recent)
        self._opening = GraphOpening(state, number, self.older, self.half_done)
        self._checkpoints: BoundedDict[str, Checkpoint] = BoundedDict()
        """Where the graphs of apps stand, as far as that is known."""

    async def apply(self, app_id: str, events: Sequence[LoggedEvent]) -> Checkpoint | None:
        """Apply events of an app, after the rest of a plan that its graph holds; return where the graph stands.

        None if the app has no graph. Raises ``GraphUnavailable``; a further call continues from the graph's checkpoint.
        """
        reached: Checkpoint | None = None
        with tracing_spans.processed(app_id, self.number, MUTATION_GROUP, events), ids_of(events):
            for _, some in groupby(events, key=attrgetter("rules")):
                reached = await self._apply(app_id, list(some))
        return reached

    async def _apply(self, app_id: str, events: Sequence[LoggedEvent]) -> Checkpoint | None:
        """Apply events that have the same rules."""
        checkpoint, strikes = self._checkpoints.pop(app_id, None), 0  # unknown until the call returns
        if checkpoint is None:
            opened = await self._opening.open(app_id, events, self._prepare)
            if opened is None:
                return None
            checkpoint, strikes, events = opened
        await self._prepare(app_id, events)
        if not is_after(events[0].entry.offset, checkpoint.offset):
            events = [event for event in events if is_after(event.entry.offset, checkpoint.offset)]
        await self.older.check_obstacle(app_id, events)
        reached = await self.state.applier.apply(self.number, app_id, checkpoint, events, strikes=strikes)
        self._checkpoints[app_id] = reached
        self.older.reach(app_id, reached.offset)
        return reached

    def forget(self, app_id: str) -> None:
        """Ask the graph of an app again where it stands."""
        self._checkpoints.pop(app_id, None)

    async def _prepare(self, app_id: str, events: Sequence[LoggedEvent]) -> None:
        """Create the indexes that events need, and announce erasures, before the first row."""
        with contextlib.suppress(QueryFailed):
            await self.state.indexes.prepare(app_id, events)
        await self.state.indexes.prepare_packs(app_id, events)
        await self._announce_erasures(app_id, events)

    async def _announce_erasures(self, app_id: str, events: Sequence[LoggedEvent]) -> None:
        """Tell responders to drop cached rows, before anything is erased: so nobody is told that it is, and then reads
        it in a responder that does not know. A batch that is applied again after a crash is announced again.
        """
        if self.state.purges is None or not events:
            return
        rules = events[0].rules  # all have the same
        if any(map(rules.erases, {each.plain.type for each in events})):
            last = next(each for each in reversed(events) if rules.erases(each.plain.type))
            await put_purge(self.state.purges, Purge(app_id=app_id, partition=self.number, offset=last.entry.offset))

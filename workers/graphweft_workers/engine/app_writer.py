"""Applies the events of single apps to their graphs, and reads the events of parked apps again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final

from graphweft_contracts import Fenced, GraphUnavailable, QueryFailed, wire
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.app_costs import AppCosts
from graphweft_workers.engine.app_indexes import AppIndexes
from graphweft_workers.engine.app_queue import REREAD_EVENTS, Parking, QueuedBatch, RereadPage, size_of
from graphweft_workers.engine.apply import Applier
from graphweft_workers.engine.arrangers import Arrangers
from graphweft_workers.engine.compile_ahead import match_compiled, read_compiled
from graphweft_workers.engine.duplicates import REACH, RecentEvents
from graphweft_workers.engine.graph_marks import has_plan, have_same_seal, is_sealed, of_generation
from graphweft_workers.engine.history import in_order, known_before
from graphweft_workers.engine.memory_quota import MemoryQuota
from graphweft_workers.engine.name_quota import NameQuota
from graphweft_workers.engine.older_graph import NeedsRebuild, Obstacle, OlderGraph, no_obstacle
from graphweft_workers.engine.passed_over import PassedOver
from graphweft_workers.engine.plan import begun_events, planned_end
from graphweft_workers.engine.read import Decoded, MatchedEvent, Range, letter_of_lost
from graphweft_workers.engine.turns import TurnClock, decode_in_turns
from graphweft_workers.ports.dead_letters import DeadLetters
from graphweft_workers.ports.event_log import Batch, Committed, Entry, EventLog
from graphweft_workers.ports.graph_store import Checkpoint, PartitionGraph, Progress, Write
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import pages
from graphweft_workers.ports.partitions import Partitions
from graphweft_workers.ports.purges import Purge, put_purge
from graphweft_workers.ports.records import RecordLog
from graphweft_workers.rule_sets.active_rules import ActiveRules, RulesCursor
from graphweft_workers.rule_sets.lost_rules import MissingRules, RulesLost
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, Timing

logger = get_logger("graphweft.mutation")

_REREAD_BYTES: Final = 1024**2
"""Of the entries that are decoded and matched at once for one app, while the others wait."""


@dataclass(slots=True, kw_only=True)
class WorkerState:
    """What all partitions of a worker share."""

    log: EventLog
    partitions: Partitions
    letters: DeadLetters
    graph: PartitionGraph
    rules: ActiveRules
    batch_events: int
    index_keys: frozenset[tuple[str, str]]
    """(label, property) of the indexes that every app's graph gets, beside those of its rules."""
    fact_keys: frozenset[tuple[str, str]]
    """The same, for apps whose rules ask for facts."""
    purges: RecordLog | None = None
    """Where an erasure is announced to responders; None for a replay, whose graph no responder reads."""
    strikes: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    """By partition and app: how often in a row the server did not answer a write."""
    stuck_at: dict[tuple[int, str], Checkpoint] = field(default_factory=dict[tuple[int, str], Checkpoint])
    """Where the graph stood at the last strike."""
    seals: dict[tuple[int, str], tuple[Checkpoint, float]] = field(
        default_factory=dict[tuple[int, str], tuple[Checkpoint, float]]
    )
    """By partition and app: a seal in the graph, and when it was first seen on this machine's monotonic clock."""
    names: NameQuota | None = None
    """The quota of names of properties; None without one."""
    memory: MemoryQuota | None = None
    """The quota of the memory of a graph; None without one."""
    quarantine: bool = True
    """Whether mutations that fail again and again are left out for a while."""
    clock: Clock = SYSTEM_CLOCK
    timing: Timing = TIMING
    obstacle: Obstacle = no_obstacle
    costs: AppCosts = field(init=False)
    applier: Applier = field(init=False)
    indexes: AppIndexes = field(init=False)

    def __post_init__(self) -> None:
        arrangers = Arrangers(self.rules, self.graph.dialect)
        self.applier = Applier(
            self.log, self.letters, self.graph, arrangers, quarantine=self.quarantine, names=self.names,
            memory=self.memory, clock=self.clock, timing=self.timing,
        )  # fmt: skip
        self.costs = AppCosts(self.clock, self.timing.costs)
        self.indexes = AppIndexes(self.graph, self.index_keys, self.fact_keys)


class AppWriter:
    """Writes the events of one partition, one app at a time."""

    def __init__(
        self,
        state: WorkerState,
        number: int,
        passed_over: PassedOver,
        recent: RecentEvents | None = None,
        *,
        reached: Mapping[str, str] | None = None,
        as_lived: Callable[[], Awaitable[PassedOver]] | None = None,
        again: str = "",
    ) -> None:
        """``recent`` are the recent events of the partition at the place of its reader.

        ``reached`` says which checkpoints the graphs of apps have reached, and ``as_lived`` returns what had no effect,
        for an app whose graph has not. Events up to ``again`` may take effect again.
        """
        self._reached = dict(reached or {})
        self._older = set[str]()
        """Apps whose events are read again since their graph was lost."""
        self._as_lived = as_lived
        self._again = again
        self._without_obstacle: BoundedDict[str, None] = BoundedDict()
        self.state = state
        self.log = state.log
        self.number = number
        self._passed_over = passed_over
        self._recent = recent
        self._checkpoints: BoundedDict[str, Checkpoint] = BoundedDict()
        """Where the graphs of apps stand, as far as that is known."""
        self._has_rules: BoundedDict[str, None] = BoundedDict()
        """Apps whose graph holds no unfinished plan for rules that are not loaded."""

    async def is_half_done(self, app_id: str) -> bool:
        """Tell whether an app's graph may hold an unfinished plan: its events then wait for the plan's rules."""
        if app_id in self._has_rules:
            return False
        try:
            checkpoint = (await self.state.graph.checkpoints(app_id, timeout_s=self.state.timing.checkpoints_s)).get(
                self.number
            )
        except QueryFailed:
            checkpoint = None
        except GraphUnavailable:
            return True  # its own queue waits until the graph answers
        if checkpoint is not None and (has_plan(checkpoint) or is_sealed(checkpoint)):
            return True
        self._has_rules[app_id] = None
        return False

    async def reread(self, app_id: str, parking: Parking, given: Committed) -> RereadPage:
        """Return the next events of a parked app, up to ``given`` at most.

        Skips and dead letters that are written already are not written again. Raises ``RulesLost`` if the next event
        needs a lost rule set.
        """
        log, position = self.log, parking.position
        if parking.recent is None:
            with contextlib.suppress(QueryFailed):  # the app has no graph: ``apply`` refuses its events
                await self._check_rules(app_id, await self.state.graph.progress(app_id, self.number))
        batch = await log.read(self.number, position, limit=parking.page)
        entries = [entry for entry in batch.entries if not is_after(entry.offset, given.offset)]
        entries = _bounded(parking, entries)
        if batch.lost:
            await self._report_lost(app_id, position.offset, batch)
        decoded = await decode_in_turns(entries, self._cursor(position.offset))
        if (found := self._first_lost(app_id, decoded)) is not None:
            number, digest = found
            if not number and not self._may_be_copy(parking, decoded[0]):
                raise RulesLost(digest)
            entries, decoded = entries[: number or 1], decoded[: number or 1]
            if not number:
                parking.page = 1  # each of the copies ends a page
        before = position.count + batch.lost
        end = Committed(offset=entries[-1].offset, count=before + len(entries)) if entries else given
        if parking.recent is None:
            if not any(_may_concern(app_id, each) for each in decoded):
                return RereadPage(None, end)  # any number of apps may wait for a lost rule set: none reads back for it
            reach = REACH if self._recent is None else self._recent.reach
            records = () if self._recent is None else self._recent.records
            parking.recent = await known_before(
                log, self.number, position.offset, reach=reach, only=app_id, records=records
            )
        read = await self._matched(app_id, decoded, parking.recent)
        read.check_rules(app_id)  # it was no copy
        if read.entries < len(entries):
            parking.page = read.entries
            end = Committed(offset=entries[read.entries - 1].offset, count=before + read.entries)
        letters = [letter for letter in read.letters if letter.app_id == app_id]
        letters = [letter for letter in letters if is_after(letter.offset, parking.reported)]
        if letters:
            await self.state.letters.put(letters)
        skips = [skip for skip in read.skips if is_after(skip.entry.offset, parking.reported)]
        events = read.apps.get(app_id, [])
        return RereadPage(QueuedBatch(start=position, events=events, skips=skips) if events or skips else None, end)

    async def _matched(self, app_id: str, decoded: Sequence[Decoded], recent: RecentEvents) -> Range:
        """Match events of a parked app, as many as fit a page; one app of the worker does so after the other."""
        costs, timing = self.state.costs, self.state.timing
        async with costs.pace.turn():
            return await match_compiled(
                self.number,
                decoded,
                recent,
                only=app_id,
                passed_over=self._passed_over,
                turns=TurnClock(self.state.clock, timing.turn_s),
                costs=costs,
                most_s=timing.costs.page_s,
            )

    def _first_lost(self, app_id: str, entries: Sequence[Decoded]) -> tuple[int, str] | None:
        """Return the number of the app's first entry that needs a lost rule set, and the digest; None without one."""
        for number, each in enumerate(entries):
            if isinstance(each.rules, MissingRules) and each.event is not None and each.event.appid == app_id:
                offset = each.entry.offset
                if not self._passed_over.unread(offset, app_id) and not self._passed_over.event(offset, app_id):
                    return number, each.rules.digest
        return None

    def _may_be_copy(self, parking: Parking, each: Decoded) -> bool:
        """Tell whether an event that needs a lost rule set may be a copy: one has no effect, so it needs no rules.

        Without the app's recent events, only an event that the reader has met twice may be one: to read back for each
        would take too long.
        """
        if parking.recent is not None:
            return True
        return self._recent is not None and each.identity is not None and self._recent.is_repeated(each.identity)

    async def _report_lost(self, app_id: str, after: str, batch: Batch) -> None:
        next_offset = batch.entries[0].offset if batch.entries else None
        letter = letter_of_lost(self.number, after, batch.lost, next_offset, app_id=app_id, again=app_id in self._older)
        await self.state.letters.put([letter])
        logger.error("events_lost", partition=self.number, app_id=app_id, message=letter.message)

    async def apply(self, app_id: str, events: Sequence[MatchedEvent]) -> Checkpoint | None:
        """Apply events of an app, after the rest of a plan that its graph holds; return where the graph stands.

        None if the app has no graph. Raises ``GraphUnavailable``; a further call continues from the graph's checkpoint.
        """
        reached: Checkpoint | None = None
        for _, some in groupby(events, key=attrgetter("rules")):
            reached = await self._apply(app_id, list(some))
        return reached

    async def _apply(self, app_id: str, events: list[MatchedEvent]) -> Checkpoint | None:
        """Apply events that have the same rules."""
        checkpoint = self._checkpoints.pop(app_id, None)  # unknown until the call returns
        opened: Progress | None = None
        if checkpoint is None:
            found = await self._open(app_id, events)
            if isinstance(found, QueryFailed):  # no graph, and so no checkpoint
                await self.state.applier.refuse(self.number, events, found)
                return None
            opened = found
            await self._check_rules(app_id, opened)
            events += await self._planned_after(app_id, events, opened)
        with contextlib.suppress(QueryFailed):
            await self.state.indexes.prepare(app_id, events)
        await self.state.indexes.prepare_packs(app_id, events)
        await self._announce_erasures(app_id, events)
        applier = self.state.applier
        strikes = 0
        if opened is not None:
            applier.opened(self.number, app_id, opened)
            checkpoint, strikes = opened.checkpoint, self._strikes(app_id, opened.checkpoint)
            if has_plan(checkpoint):
                checkpoint = await applier.resume(self.number, app_id, opened, events, strikes=strikes)
                strikes = 0
        assert checkpoint is not None
        rest = events
        if not is_after(events[0].entry.offset, checkpoint.offset):
            rest = [event for event in events if is_after(event.entry.offset, checkpoint.offset)]
        await self._check_obstacle(app_id, rest)
        reached = await applier.apply(self.number, app_id, checkpoint, rest, strikes=strikes)
        self._checkpoints[app_id] = reached
        return reached

    async def _announce_erasures(self, app_id: str, events: Sequence[MatchedEvent]) -> None:
        """Tell responders to drop cached rows, before anything is erased: so nobody is told that it is, and then reads
        it in a responder that does not know. A batch that is applied again after a crash is announced again.
        """
        if self.state.purges is None or not events:
            return
        rules = events[0].rules  # all have the same
        last = next((each for each in reversed(events) if rules.erases(each.event.type)), None)
        if last is not None:
            await put_purge(self.state.purges, Purge(app_id=app_id, partition=self.number, offset=last.entry.offset))

    async def _open(self, app_id: str, events: Sequence[MatchedEvent]) -> Progress | QueryFailed:
        """Return how far the app's graph is, or why the app has none."""
        try:
            self.state.indexes.forget(app_id)
            await self.state.indexes.prepare(app_id, events)
            progress = await self.state.graph.progress(app_id, self.number)
        except QueryFailed as failure:
            return failure
        await self._wait_if_sealed(app_id, progress.checkpoint)
        offset = progress.checkpoint.offset
        self._check_age(app_id, offset)
        if is_after(offset, events[-1].entry.offset):
            await self._check_end(app_id, offset)
        return progress

    def _check_age(self, app_id: str, offset: str) -> None:
        """Raise ``OlderGraph`` if the graph has not reached what it had."""
        reached = self._reached.get(app_id, "")
        if is_after(reached, offset):
            del self._reached[app_id]
            self._older.add(app_id)
            raise OlderGraph(
                f"the graph of {app_id!r} stands at {offset or 'the start'} of partition {self.number} and was at "
                f"{reached}: it was deleted or replaced by an older one. All events of the app are read again"
            )

    async def _check_obstacle(self, app_id: str, events: Sequence[MatchedEvent]) -> None:
        """Raise ``NeedsRebuild`` if events are to take effect again, and the log alone does not bring them all back."""
        if app_id in self._without_obstacle or not (self._again or app_id in self._older):
            return
        if app_id in self._older or any(not is_after(event.entry.offset, self._again) for event in events):
            reason = await self.state.obstacle(app_id, self.number)
            if reason:
                raise NeedsRebuild(reason, retry_after_s=5.0)
            self._without_obstacle[app_id] = None

    async def pass_over_as_lived(self) -> None:
        """From now on pass over what had no effect before, too: events may be applied that took effect before."""
        if self._as_lived is not None:
            self._passed_over = await self._as_lived()

    async def _wait_if_sealed(self, app_id: str, checkpoint: Checkpoint) -> None:
        """Raise while another graph is about to take the place of the app's; lift the seal of a rebuild that died."""
        key, now = (self.number, app_id), self.state.clock.monotonic()
        if not is_sealed(checkpoint):
            self.state.seals.pop(key, None)
            return
        seen, since = self.state.seals.get(key, (None, now))
        if seen != checkpoint:
            self.state.seals[key] = (checkpoint, now)
        elif now - since >= self.state.timing.seal_s:
            # Alone, before anything else is written: if the graphs are exchanged now, the lift may reach the old one.
            lift = Write(before=checkpoint, after=of_generation(checkpoint))
            await self.state.graph.apply(app_id, self.number, [lift])
            await self._lift_others(app_id, checkpoint)
            logger.warning(
                "seal_lifted", partition=self.number, app_id=app_id,
                message=f"a rebuild has not finished its swap within {self.state.timing.seal_s:.0f} s: it was killed",
            )  # fmt: skip
        raise GraphUnavailable(
            f"a rebuild is putting another graph in the place of that of {app_id!r}: the worker waits",
            retry_after_s=0.2,
        )

    async def _lift_others(self, app_id: str, seal: Checkpoint) -> None:
        """Lift the same rebuild's seals of other partitions, which may get no event for long."""
        found = await self.state.graph.checkpoints(app_id, timeout_s=self.state.timing.checkpoints_s)
        for number, checkpoint in found.items():
            if have_same_seal(checkpoint, seal):
                lift = Write(before=checkpoint, after=of_generation(checkpoint))
                with contextlib.suppress(Fenced):
                    await self.state.graph.apply(app_id, number, [lift])

    async def _check_end(self, app_id: str, offset: str) -> None:
        """Raise if a graph stands after the end of the log: new events would be taken for applied ones."""
        end = next((status.end for status in await self.state.partitions.status() if status.id == self.number), "")
        if is_after(offset, end):
            raise GraphUnavailable(
                f"the graph of {app_id!r} stands at {offset} of partition {self.number}, which ends at "
                f"{end or 'nothing'}: the log was recreated or lost its end. Restore the log, or rebuild the graph "
                "from it",
                retry_after_s=5.0,
            )

    async def _check_rules(self, app_id: str, progress: Progress) -> None:
        """Raise if the graph holds an unfinished plan for a workflow whose rules are not loaded."""
        rules = self._cursor("")
        begun = in_order({*begun_events(progress)})
        for entry in await self.log.entries(self.number, begun):
            event = wire.decode(entry.fields, received=entry.received)
            active = rules.at(event.appid, entry.offset)
            if isinstance(active, MissingRules):
                raise RulesLost(active.digest)
            if event.workflow is not None and not active.is_compiled(event.workflow):
                await asyncio.to_thread(active.compile, [event.workflow])
            if not active.knows(event):
                raise GraphUnavailable(
                    f"the graph of {app_id!r} holds a half-done batch of events of the workflow "
                    f"{event.workflow!r}, whose rules are not loaded: start a worker with the rules that it began with",
                    retry_after_s=5.0,
                )
        self._has_rules[app_id] = None

    async def _planned_after(
        self, app_id: str, events: Sequence[MatchedEvent], progress: Progress
    ) -> Sequence[MatchedEvent]:
        """Return the events of the graph's unfinished plan after ``events``, read from the log."""
        end, last = planned_end(progress), events[-1].entry.offset
        if end is None or not is_after(end, last):
            return ()
        planned = {*begun_events(progress)}
        unread = pages(self.log, self.number, last, to=end)
        entries: list[Entry] = [entry async for page in unread for entry in page if entry.offset in planned]
        # No search for copies: a plan names its events, and a copy has no rows.
        read = await read_compiled(
            self.number, entries, self._cursor(last), RecentEvents(), only=app_id, passed_over=self._passed_over
        )
        read.check_rules(app_id)
        return read.apps.get(app_id, [])

    def _cursor(self, after: str) -> RulesCursor:
        return self.state.rules.cursor(self.number, after)

    def note_strike(self, app_id: str, error: GraphUnavailable) -> None:
        """Count a write that the server did not answer in time; other errors do not count."""
        if _timed_out(error):
            key = (self.number, app_id)
            self.state.strikes[key] = self.state.strikes.get(key, 0) + 1

    def forget_strikes(self, app_id: str) -> None:
        """Start to count anew: a write succeeded."""
        self.state.strikes.pop((self.number, app_id), None)
        self.state.stuck_at.pop((self.number, app_id), None)

    def _strikes(self, app_id: str, checkpoint: Checkpoint) -> int:
        """Return how often in a row the server did not answer the write after ``checkpoint``."""
        key = (self.number, app_id)
        strikes = self.state.strikes.get(key, 0)
        if strikes and self.state.stuck_at.get(key) != checkpoint:
            self.state.stuck_at[key], strikes = checkpoint, 1
            self.state.strikes[key] = strikes
        return strikes


def _may_concern(app_id: str, each: Decoded) -> bool:
    """Tell whether an entry is an event of an app, or one that cannot be decoded."""
    return each.error is not None or (each.event is not None and each.event.appid == app_id)


def _bounded(parking: Parking, entries: list[Entry]) -> list[Entry]:
    """Return the first entries up to ``_REREAD_BYTES``, at least one, and fit the next page to their size."""
    size = 0
    for number, entry in enumerate(entries):
        size += size_of((entry,))
        if size > _REREAD_BYTES:
            parking.page = max(1, number)
            return entries[: max(1, number)]
    parking.page = min(REREAD_EVENTS, 2 * parking.page)
    return entries


def _timed_out(error: BaseException) -> bool:
    """Tell whether a server did not answer in time, in contrast to a connection that was cut."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, TimeoutError) or type(found).__name__ == "TimeoutError":
            return True
        found = found.__cause__
    return False

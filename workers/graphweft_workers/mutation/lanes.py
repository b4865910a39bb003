"""The apps of one partition, each on a lane of its own: one that is slow or fails does not hold up the others.

A lane applies what it is given in order. Usually all lanes are done with a batch before the next one is read. A lane
that is not gets no more than a short wait; its work queues up, and where the queue is full, the app is *parked*: its
events are dropped from memory, and read again from the log as soon as the lane gets to them.

The position that may be committed is the smallest one of all lanes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

import structlog

from graphweft_contracts import DeadLetter, GraphUnavailable, QueryFailed, wire
from graphweft_rules import Ruleset
from graphweft_rules.core_schema import CORE_KEYS
from graphweft_rules.packs.pack import Pack
from graphweft_workers.bus.log import Bus, Committed, Entry, Stretch
from graphweft_workers.bus.owning import backoff_s
from graphweft_workers.cancelling import is_being_cancelled
from graphweft_workers.graph.store import GraphStore, Mark, Progress
from graphweft_workers.graphrag.safe_cypher import KEYS as FACT_KEYS
from graphweft_workers.mutation.applying import Applier
from graphweft_workers.mutation.duplicates import RecentEvents
from graphweft_workers.mutation.history import between, known_before
from graphweft_workers.mutation.plan import planned_end, planned_events
from graphweft_workers.mutation.position_note import Parked, PositionNote
from graphweft_workers.mutation.reading import EventWork, Missed, letter_of_lost, read_range
from graphweft_workers.mutation.skips import Skips

logger = structlog.get_logger("graphweft.mutation")

_PATIENCE_S: Final = 0.1
"""How long the apps of a partition wait for the slowest of them."""
_PARK_S: Final = 1.0
"""A lane whose queue is full is parked when it has been busy with the same work for so long."""
_COOL_DOWN_S: Final = 30.0
"""A lane that took longer than ``_PARK_S``, or failed, is not waited for in this time."""
_MOST_PARKED: Final = 24
"""Apps of a partition that may be parked at once; beyond that the partition waits. Their names must fit into a note,
where no more are listed, however many have to be read again for other reasons."""
_APPS_AT_ONCE: Final = 16
"""Graphs of one partition that are written at the same time, not counting those that are slow."""
_REREAD_EVENTS: Final = 200
_QUEUED_BYTES: Final = 16 * 1024**2
"""Of the events that wait for slow apps of a partition; beyond that, or a batch of events, apps are parked."""
_DRAIN_S: Final = 10.0
_MARKS_S: Final = 5.0
_REMEMBERED: Final = 10_000
"""Lanes whose checkpoints, and packs whose indexes, are kept in mind."""


@dataclass(slots=True, kw_only=True)
class Engine:
    """What all partitions of a worker share."""

    bus: Bus
    graph: GraphStore
    rules: Ruleset
    applier: Applier
    batch_events: int
    packed: set[tuple[str, Pack]] = field(default_factory=set[tuple[str, Pack]])
    """Apps that have the indexes of a pack."""
    strikes: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    """By partition and app: how often in a row the server did not answer a write."""
    stuck_at: dict[tuple[int, str], Mark] = field(default_factory=dict[tuple[int, str], Mark])
    """Where the graph stood at the last strike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """What one batch holds for an app; ``start`` is the position in front of the batch."""

    start: Committed
    works: Sequence[EventWork] = ()
    missed: Sequence[Missed] = ()
    """What is skipped; it is counted once the works have taken effect, since other rules may apply until then."""
    size: int = 0
    """Bytes of the entries."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Lane:
    """One app of the partition."""

    app_id: str
    mark: Mark | None = None
    queue: deque[_Load] = field(default_factory=deque[_Load])
    load: list[_Load] = field(default_factory=list[_Load])
    """What is being applied."""
    busy_since: float = 0.0
    slow_until: float = 0.0
    trouble: str = "slow"
    troubled_at: float = 0.0
    """Wall-clock time at which the app fell behind."""
    behind: Committed | None = None
    """The app is parked, and its events behind this position are to be read again."""
    told: str = ""
    """Of a parked app: up to here skips and dead letters are written."""
    recent: RecentEvents | None = None
    end: Committed | None = None
    """Behind what was read again for ``load``; None if it was queued."""
    gated: bool = False
    waits: bool = False
    """Whether it waits for its turn at the gate."""
    opened: bool = False
    """Whether its checkpoint was read."""
    task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        return bool(self.load or self.queue or self.behind is not None)

    @property
    def floor(self) -> Committed | None:
        """The position in front of the first event that has not taken effect."""
        if self.load:
            return self.load[0].start
        if self.behind is not None:
            return self.behind
        return self.queue[0].start if self.queue else None

    @property
    def told_of_parked(self) -> str:
        """Where it is parked: up to here its skips are counted, those of what is being applied not among them."""
        if self.end is None and any(load.missed for load in self.load):
            return self.load[0].start.offset
        return self.told

    @property
    def queued(self) -> int:
        return sum(len(load.works) for load in self.queue)

    @property
    def queued_bytes(self) -> int:
        return sum(load.size for load in self.queue)


class Lanes:
    """The lanes of one partition that is held.

    A failure that concerns more than one app is raised by ``settle``: all lanes have to be made anew then.
    """

    def __init__(
        self,
        engine: Engine,
        number: int,
        *,
        run: str,
        skips: Skips,
        position: Committed,
        before: PositionNote,
        set_aside: Set[str],
        progressed: Callable[[], None],
    ) -> None:
        """``position`` is where the partition's reader begins, ``before`` what was told by then.

        ``progressed`` is called when ``floor`` may move.
        """
        self._engine = engine
        self._number = number
        self._run = run
        self._skips = skips
        self._before = before
        self._set_aside = set_aside
        self._progressed = progressed
        self._lanes: dict[str, _Lane] = {}
        self._busy: dict[str, _Lane] = {}
        """Those that are not done. There may be thousands of others, and these are looked at with every batch."""
        self._gate = asyncio.Semaphore(_APPS_AT_ONCE)
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._whole: set[str] = set()
        """Apps of whose graph it is known that it holds no half-done plan."""
        self.given: Committed = position
        """Everything up to here was given to the lanes."""

    @property
    def parked(self) -> frozenset[str]:
        """Apps whose events are not to be given: they are read again later."""
        return frozenset(lane.app_id for lane in self._busy.values() if lane.behind is not None)

    @property
    def floor(self) -> Committed:
        """The position up to which everything took effect."""
        return self.floor_without(frozenset())

    def floor_without(self, apps: Collection[str]) -> Committed:
        """Return the position up to which everything took effect in other apps than these."""
        floor = self.given
        for lane in self._busy.values():
            mine = lane.floor if lane.app_id not in apps else None
            if mine is not None and self._engine.bus.is_after(floor.offset, mine.offset):
                floor = mine
        return floor

    def is_busy(self, app_id: str) -> bool:
        """Tell whether an app has works that have not taken effect."""
        return app_id in self._busy

    def status(self) -> dict[str, Parked]:
        """Return the apps that are behind the others, and how far."""
        now = time.monotonic()
        found: dict[str, Parked] = {}
        for lane in self._busy.values():
            floor = lane.floor
            late = lane.trouble == "unavailable" or now - lane.busy_since >= _PARK_S
            if floor is not None and (lane.behind is not None or (late and self._is_slow(lane, now))):
                told = lane.told_of_parked if lane.behind is not None else None
                found[lane.app_id] = Parked(at=floor.offset, told=told, why=lane.trouble, since=int(lane.troubled_at))
        if len(found) > _MOST_PARKED:  # those that are parked first; see ``told_without`` for what does not fit
            found = dict(sorted(found.items(), key=lambda item: item[1].told is None)[:_MOST_PARKED])
        return found

    def told_without(self, apps: Collection[str]) -> str:
        """Return up to where skips and dead letters are written in other apps than these, parked or not."""
        is_after, told = self._engine.bus.is_after, self.given.offset
        for lane in self._busy.values():
            if lane.behind is not None:
                mine = lane.told_of_parked if lane.app_id not in apps else told
            else:  # skips are counted behind the works beside them
                waits = any(load.missed for load in (*lane.load, *lane.queue))
                mine = (lane.floor or self.given).offset if waits else told
            if is_after(told, mine):
                told = mine
        return told

    def give(
        self,
        works: Mapping[str, Sequence[EventWork]],
        missed: Mapping[str, Sequence[Missed]],
        end: Committed,
        without: Set[str] = frozenset(),
    ) -> None:
        """Hand out the works, and the skips beside them, of a batch that begins behind ``given`` and ends at ``end``.

        ``without`` are the apps that were parked when the batch was matched, or when its skips were counted. One that
        has caught up meanwhile has to read it again, and so has one that was parked meanwhile.
        """
        for app_id in without:
            self.hold(app_id)
        for app_id in dict.fromkeys((*works, *missed)):
            lane = self._lane(app_id)
            if lane.behind is None:
                if not lane.busy:
                    lane.busy_since = time.monotonic()
                mine, skipped = works.get(app_id, ()), missed.get(app_id, ())
                size = _size(each.entry for each in mine) + _size(each.entry for each in skipped)
                lane.queue.append(_Load(start=self.given, works=mine, missed=skipped, size=size))
                self._start(lane)
        self.given = end
        if len(self._lanes) > _REMEMBERED:
            self._lanes = dict(self._busy)

    async def is_half_done(self, app_id: str) -> bool:
        """Tell whether an app's graph holds a half-done plan from before; its events then wait for their rules."""
        lane = self._lanes.get(app_id)
        if app_id in self._whole or (lane is not None and lane.opened):
            return False
        try:
            mark = (await self._engine.graph.marks(app_id, timeout_s=_MARKS_S)).get(self._number)
        except QueryFailed:
            mark = None
        except GraphUnavailable:
            return True  # nobody knows yet: its own lane waits until it does
        if mark is None or not mark.plan:
            if len(self._whole) < _REMEMBERED:
                self._whole.add(app_id)
            return False
        return True

    def hold(self, app_id: str) -> None:
        """Park an app: it reads again what it has not begun with, and the next batch."""
        lane = self._lane(app_id)
        if lane.behind is None:
            if not lane.busy:
                lane.busy_since = time.monotonic()
            lane.behind = lane.queue[0].start if lane.queue else self.given
            told = self._before.told_of(lane.app_id)
            lane.told = told if self._engine.bus.is_after(told, lane.behind.offset) else lane.behind.offset
            lane.recent = None
            lane.queue.clear()
            self._start(lane)

    async def settle(self) -> None:
        """Return when the next batch may be given: all lanes are done, or need no waiting for."""
        while True:
            self._changed.clear()
            self._raise_failure()
            due = self._due(time.monotonic())
            if due is None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.001, due - time.monotonic())):
                    await self._changed.wait()

    async def drain(self) -> None:
        """Wait for a while until all lanes that are not slow are done; what is not is left to the next owner."""
        now = time.monotonic()
        tasks = [lane.task for lane in self._busy.values() if lane.task is not None and lane.slow_until <= now]
        if tasks and self._failure is None:
            await asyncio.wait(tasks, timeout=_DRAIN_S)

    async def aclose(self) -> None:
        """End what is under way; the graph's checkpoint says how far it got."""
        tasks = [lane.task for lane in self._busy.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _lane(self, app_id: str) -> _Lane:
        return self._lanes.get(app_id) or self._lanes.setdefault(app_id, _Lane(app_id=app_id))

    def _start(self, lane: _Lane) -> None:
        self._busy[lane.app_id] = lane
        if lane.task is None:
            lane.task = asyncio.create_task(self._work(lane), name=f"app-{self._number}-{lane.app_id}")

    def _due(self, now: float) -> float | None:
        """Return when to look again at the latest; None when nothing is to be waited for."""
        dues: list[float] = []
        slow: list[_Lane] = []
        for lane in self._busy.values():
            if not lane.busy:
                continue
            if lane.waits:
                dues.append(now + _PATIENCE_S)
            elif self._is_slow(lane, now):
                self._leave_gate(lane)
                slow.append(lane)
            else:
                dues.append(lane.busy_since + _PATIENCE_S)
        while (
            sum(lane.queued for lane in slow) >= self._engine.batch_events
            or sum(lane.queued_bytes for lane in slow) >= _QUEUED_BYTES
        ):
            longest = max(slow, key=lambda lane: (lane.queued_bytes >= _QUEUED_BYTES, lane.queued, lane.queued_bytes))
            ready = longest.slow_until > now or now - longest.busy_since >= _PARK_S
            if not ready or len(self.parked) >= _MOST_PARKED:
                dues.append(max(now + _PATIENCE_S, longest.busy_since + _PARK_S))
                break
            self._park(longest)
        return min(dues) if dues else None

    def _is_slow(self, lane: _Lane, now: float) -> bool:
        slow = now - lane.busy_since > _PATIENCE_S or lane.slow_until > now
        if slow and not lane.troubled_at:
            lane.troubled_at = time.time()
        return slow

    def _park(self, lane: _Lane) -> None:
        self.hold(lane.app_id)
        logger.warning(
            "app_parked", partition=self._number, app_id=lane.app_id, why=lane.trouble,
            message="its events are read again when its graph has caught up; other apps go on",
        )  # fmt: skip

    def _leave_gate(self, lane: _Lane) -> None:
        if lane.gated:
            lane.gated = False
            self._gate.release()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _work(self, lane: _Lane) -> None:
        attempt = 0
        try:
            while lane.busy:
                if not lane.gated and lane.slow_until <= time.monotonic():
                    lane.waits = True
                    await self._gate.acquire()
                    lane.gated, lane.waits, lane.busy_since = True, False, time.monotonic()
                try:
                    await self._take(lane)
                    if lane.load:
                        await self._apply(lane)
                    self._done(lane)
                    attempt = 0
                except GraphUnavailable as error:
                    self._strike(lane, error)
                    await self._check_server(error)
                    attempt += 1
                    await self._back_off(lane, error, attempt)
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            self._failure = self._failure or GraphUnavailable(
                "the graph's driver gave up an answer that was waited for"
            )
        except BaseException as error:  # noqa: BLE001 - raised by ``settle``, in the partition's own task
            self._failure = self._failure or error
        finally:
            self._leave_gate(lane)
            lane.task = None
            if not lane.busy:
                self._busy.pop(lane.app_id, None)
            self._changed.set()

    async def _take(self, lane: _Lane) -> None:
        """Fill ``lane.load`` with what comes next; what failed before is tried again."""
        if lane.load:
            return
        if lane.behind is not None:
            lane.end = await self._reread(lane)
        else:
            lane.load.extend(lane.queue)
            lane.queue.clear()

    def _done(self, lane: _Lane) -> None:
        now = time.monotonic()
        if now - lane.busy_since >= _PARK_S:
            lane.slow_until, lane.trouble = now + _COOL_DOWN_S, "slow"
        for missed in (each for load in lane.load for each in load.missed):
            self._skips.add(missed)
        lane.load.clear()
        self._engine.strikes.pop((self._number, lane.app_id), None)
        self._engine.stuck_at.pop((self._number, lane.app_id), None)
        lane.busy_since = now
        end, lane.end = lane.end, None
        if end is not None:
            lane.behind = end
            if self._engine.bus.is_after(end.offset, lane.told):
                lane.told = end.offset
            if not self._engine.bus.is_after(self.given.offset, end.offset):
                lane.behind = lane.recent = None
                logger.info("app_caught_up", partition=self._number, app_id=lane.app_id)
        if not lane.busy and lane.slow_until <= now:
            lane.troubled_at = 0.0
        self._changed.set()
        self._progressed()

    async def _reread(self, lane: _Lane) -> Committed:
        """Read the next events of a parked app; what is behind those given so far is left to the partition's reader."""
        assert lane.behind is not None
        bus = self._engine.bus
        if lane.recent is None:
            with contextlib.suppress(QueryFailed):  # an app without a graph: its events are refused below
                await self._check_rules(lane, await self._engine.graph.progress(lane.app_id, self._number))
            lane.recent = await known_before(bus, self._number, lane.behind.offset)
        given = self.given
        stretch = await bus.reread(self._number, lane.behind, limit=_REREAD_EVENTS)
        entries = [entry for entry in stretch.entries if not bus.is_after(entry.offset, given.offset)]
        if stretch.lost:
            await self._tell_lost(lane, stretch)
        count = lane.behind.count + stretch.lost + len(entries)
        end = Committed(offset=entries[-1].offset, count=count) if entries else given
        read = read_range(
            self._number, entries, self._engine.rules, lane.recent, only=lane.app_id, set_aside=self._set_aside
        )
        letters = [letter for letter in read.letters if letter.app_id == lane.app_id]
        letters = [letter for letter in letters if bus.is_after(letter.offset, lane.told)]
        if letters:
            await bus.bury(letters)
        missed = [each for each in read.missed if bus.is_after(each.entry.offset, lane.told)]
        works = read.apps.get(lane.app_id, [])
        if works or missed:
            lane.load.append(_Load(start=lane.behind, works=works, missed=missed))
        return end

    async def _tell_lost(self, lane: _Lane, stretch: Stretch) -> None:
        assert lane.behind is not None
        next_offset = stretch.entries[0].offset if stretch.entries else None
        letter: DeadLetter = letter_of_lost(
            self._number, lane.behind.offset, stretch.lost, next_offset, app_id=lane.app_id
        )
        await self._engine.bus.bury([letter])
        logger.error("events_lost", partition=self._number, app_id=lane.app_id, message=letter.message)

    async def _apply(self, lane: _Lane) -> None:
        works = [work for load in lane.load for work in load.works]
        if not works:
            return
        opened: Progress | None = None
        if lane.mark is None:
            found = await self._open(lane, works)
            if isinstance(found, QueryFailed):
                # There is no graph and so no checkpoint.
                await self._engine.applier.refuse(self._number, works, found)
                return
            opened = found
            await self._check_rules(lane, opened)
            works += await self._reach(lane, works, opened)
        await self._prepare_packs(lane.app_id, works)
        bus, applier = self._engine.bus, self._engine.applier
        mark, strikes = lane.mark, 0
        if opened is not None:
            mark, strikes = opened.mark, self._strikes(lane, opened.mark)
            if mark.plan:
                mark, strikes = await applier.resume(self._number, lane.app_id, opened, works, strikes=strikes), 0
        assert mark is not None
        behind = [work for work in works if bus.is_after(work.entry.offset, mark.offset)]
        lane.mark = None  # unknown until this has come to its end
        lane.mark = await applier.apply(self._number, lane.app_id, mark, behind, strikes=strikes)

    async def _open(self, lane: _Lane, works: Sequence[EventWork]) -> Progress | QueryFailed:
        """Return how far the app is, or why it has no graph."""
        engine = self._engine
        try:
            facts = FACT_KEYS if engine.rules.asks_for_facts else frozenset[tuple[str, str]]()
            await engine.graph.prepare(lane.app_id, engine.rules.keys | facts | CORE_KEYS)
            progress = await engine.graph.progress(lane.app_id, self._number)
        except QueryFailed as failure:
            return failure
        offset = progress.mark.offset
        if engine.bus.is_after(offset, works[-1].entry.offset):
            await self._check_end(lane.app_id, offset)
        return progress

    async def _check_end(self, app_id: str, offset: str) -> None:
        """Stop where a graph stands behind the end of the log: events there would be taken for done."""
        bus = self._engine.bus
        end = next((status.end for status in await bus.status() if status.id == self._number), "")
        if bus.is_after(offset, end):
            raise GraphUnavailable(
                f"the graph of {app_id!r} stands at {offset} of partition {self._number}, which ends at "
                f"{end or 'nothing'}: the log was made anew or lost its end. Restore it, or rebuild the graph from it",
                retry_after_s=5.0,
            )

    async def _check_rules(self, lane: _Lane, progress: Progress) -> None:
        """Raise where a half-done plan is about workflows of which no rules are loaded: they were when it began."""
        for entry in await self._engine.bus.entries(self._number, planned_events(progress)):
            event = wire.decode(entry.fields, received=entry.received)
            if not self._engine.rules.knows(event):
                raise GraphUnavailable(
                    f"the graph of {lane.app_id!r} holds a half-done batch of events of the workflow "
                    f"{event.workflow!r}, whose rules are not loaded: start a worker with the rules that it began with",
                    retry_after_s=5.0,
                )
        lane.opened = True

    async def _reach(self, lane: _Lane, works: Sequence[EventWork], progress: Progress) -> Sequence[EventWork]:
        """Return the events from behind ``works`` up to the end of the plan under way, from the log itself."""
        end, last = planned_end(progress), works[-1].entry.offset
        bus = self._engine.bus
        if end is None or not bus.is_after(end, last):
            return ()
        entries: list[Entry] = [entry async for page in between(bus, self._number, last, end) for entry in page]
        # Copies need no look here: a plan names the events it has rows of, and a copy has none.
        read = read_range(
            self._number, entries, self._engine.rules, RecentEvents(), only=lane.app_id, set_aside=self._set_aside
        )
        return read.apps.get(lane.app_id, [])

    async def _prepare_packs(self, app_id: str, works: Sequence[EventWork]) -> None:
        """Give an app the indexes of packs that it has events for: only few have, and an index costs each write."""
        engine = self._engine
        for pack in engine.rules.packs_for({work.event.type for work in works}):
            if (app_id, pack) not in engine.packed:
                with contextlib.suppress(QueryFailed):
                    await engine.graph.prepare(app_id, pack.keys, pack.indexes)
                if len(engine.packed) >= _REMEMBERED:
                    engine.packed.clear()
                engine.packed.add((app_id, pack))

    def _strike(self, lane: _Lane, error: GraphUnavailable) -> None:
        if _was_silent(error):
            key = (self._number, lane.app_id)
            self._engine.strikes[key] = self._engine.strikes.get(key, 0) + 1

    def _strikes(self, lane: _Lane, mark: Mark) -> int:
        """Return how often in a row the server did not answer what comes behind ``mark``."""
        key = (self._number, lane.app_id)
        strikes = self._engine.strikes.get(key, 0)
        if strikes and self._engine.stuck_at.get(key) != mark:
            self._engine.stuck_at[key], strikes = mark, 1
            self._engine.strikes[key] = strikes
        return strikes

    async def _check_server(self, error: GraphUnavailable) -> None:
        """Raise where the whole server is unavailable, or was started again: then the partition is to be reopened."""
        run = await self._engine.graph.check()
        if run != self._run:
            raise GraphUnavailable("the graph server was started again: the position is read again") from error

    async def _back_off(self, lane: _Lane, error: GraphUnavailable, attempt: int) -> None:
        now = time.monotonic()
        lane.mark = None
        lane.slow_until, lane.trouble = now + _COOL_DOWN_S, "unavailable"
        lane.troubled_at = lane.troubled_at or time.time()
        self._leave_gate(lane)
        self._changed.set()
        wait_s = backoff_s(error, attempt)
        logger.warning(
            "app_waits", partition=self._number, app_id=lane.app_id, error=str(error), retry_after_s=round(wait_s, 2)
        )
        await asyncio.sleep(wait_s)


def _size(entries: Iterable[Entry]) -> int:
    return sum(len(value) for entry in entries for value in entry.fields.values())


def _was_silent(error: BaseException) -> bool:
    """Tell whether a server was asked and did not answer in time, which a connection that was cut does not show."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, TimeoutError) or type(found).__name__ == "TimeoutError":
            return True
        found = found.__cause__
    return False

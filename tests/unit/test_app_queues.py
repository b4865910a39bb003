"""Which apps a partition waits for, and what a parked app reads again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final, cast, override

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.services.virtual_time import VIRTUAL, VirtualClock, run

from graphweft_contracts import Event, GraphUnavailable
from graphweft_workers.engine.apply.app_queue import AppQueue, Parking, QueuedBatch, RereadPage, State
from graphweft_workers.engine.apply.app_queues import AppQueues
from graphweft_workers.engine.apply.older_graph import OlderGraphs, no_obstacle
from graphweft_workers.engine.apply.strikes import Strikes
from graphweft_workers.engine.apply.write_budget import SlowWrites
from graphweft_workers.engine.failures.skips import Skips
from graphweft_workers.engine.log.effect_ledger import NOTHING
from graphweft_workers.engine.log.read import Skip
from graphweft_workers.ports.event_log import CommittedPosition, Entry
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.rule_sets.lost_rules import RulesLost
from graphweft_workers.support.timing import QueueTiming


class Writer:
    """Reads the events of an app again in steps of 20; none of them has rows."""

    batch_events = 20
    number = 0

    def __init__(self) -> None:
        self.ranges: list[tuple[str, str]] = []
        self.parked = self
        self.state = SimpleNamespace(batch_events=self.batch_events, rules=self, strikes=Strikes(), effects=None)

    async def reread(self, app_id: str, parking: Parking, given: CommittedPosition) -> RereadPage:
        self.ranges.append((parking.position.offset, given.offset))
        await asyncio.sleep(0)
        return RereadPage(None, at(min(int(parking.position.offset) + 20, int(given.offset))))

    async def apply(self, app_id: str, events: Sequence[Any]) -> None: ...

    async def check(self) -> str:
        return ""


class Gates(Writer):
    """Applies the events of an app when its gate is open; keeps how many it has applied at once."""

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[str, asyncio.Event] = {}
        self.applied: list[tuple[str, int]] = []

    async def apply(self, app_id: str, events: Sequence[Any]) -> None:
        await self.open.setdefault(app_id, asyncio.Event()).wait()
        self.applied.append((app_id, len(events)))


def some(count: int) -> Any:
    """Return so many events, of which only the number and the size count."""
    return [SimpleNamespace(size=1, entry=SimpleNamespace(fields={b"data": b"x"})) for _ in range(count)]


def at(place: int) -> CommittedPosition:
    return CommittedPosition(offset=str(place), count=place)


PATIENT: Final = QueueTiming(batch_s=3_600.0, pace_s=0.0)


@pytest.fixture
def gates() -> Gates:
    return Gates()


def queues_of(
    writer: Any, *, timing: QueueTiming = PATIENT, apps_at_once: int = 16, progressed: Callable[[], None] = lambda: None
) -> AppQueues:
    return AppQueues(
        writer, run="", check=writer.check, skips=Skips(0), position=at(0), before=PositionNote(),
        progressed=progressed, apps_at_once=apps_at_once, clock=VIRTUAL, timing=timing,
    )  # fmt: skip


@pytest_asyncio.fixture
async def queues(gates: Any) -> AsyncIterator[AppQueues]:
    made = queues_of(gates)
    yield made
    await made.aclose()


def opened(gates: Gates, *apps: str) -> None:
    for app in apps:
        gates.open.setdefault(app, asyncio.Event()).set()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_next_batch_is_given_when_one_app_of_the_last_is_done(gates: Gates, queues: AppQueues) -> None:
    opened(gates, "quick")
    queues.give({"slow": some(1), "quick": some(1)}, {}, at(2), {})
    await queues.settle()
    assert gates.applied == [("quick", 1)]
    assert queues.floor.offset == "0"
    # Nobody waits for an app that was busy before.
    queues.give({"slow": some(2)}, {}, at(4), {})
    await queues.settle()
    queues.give({"slow": some(3), "quick": some(1)}, {}, at(8), {})
    await queues.settle()
    assert gates.applied == [("quick", 1)] * 2
    # What has piled up is applied at once.
    opened(gates, "slow")
    await queues.drain()
    assert gates.applied[2:] == [("slow", 1), ("slow", 5)]
    assert queues.floor.offset == "8"


async def test_a_batch_of_one_app_is_waited_for(gates: Gates, queues: AppQueues) -> None:
    queues.give({"only": some(1)}, {}, at(1), {})
    settling = asyncio.create_task(queues.settle())
    await turns()
    assert not settling.done()
    opened(gates, "only")
    await settling
    assert gates.applied == [("only", 1)]


async def test_who_commits_is_told_when_the_app_that_was_furthest_behind_gets_on(gates: Any) -> None:
    told: list[str] = []
    queues = queues_of(gates, progressed=lambda: told.append(queues.floor.offset))
    opened(gates, "a")
    queues.give({"a": some(1), "b": some(1)}, {}, at(0), {"a": at(1), "b": at(3)})  # entry 2 is not taken yet
    await turns()
    assert gates.applied == [("a", 1)]
    queues.give({"a": some(1), "c": some(1)}, {}, at(5), {})
    await turns()
    assert gates.applied == [("a", 1)] * 2
    opened(gates, "b")
    await turns()
    assert told == []  # c began where b did
    opened(gates, "c")
    await turns()
    assert told == ["5"]
    await queues.aclose()


async def never(*_: object) -> RereadPage:
    """Stands for a read of a parked app that does not end."""
    stuck: asyncio.Future[RereadPage] = asyncio.get_running_loop().create_future()
    return await stuck


async def test_who_commits_is_told_while_another_app_has_trouble(gates: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note of the position says how far that one is, so the others need not wait for it."""
    monkeypatch.setattr(gates, "reread", never)
    told: list[int] = []
    queues = queues_of(gates, progressed=lambda: told.append(1))
    opened(gates, "quick")
    queues.give({"parked": some(1)}, {}, at(2), {}, without=frozenset({"parked"}))
    queues.give({"quick": some(1)}, {}, at(5), {})
    await turns()
    assert gates.applied == [("quick", 1)]
    assert told
    await queues.aclose()


async def test_an_app_that_is_half_a_batch_behind_is_waited_for(gates: Gates, queues: AppQueues) -> None:
    """A loud app would take the server from a quiet one whose first event takes long."""
    opened(gates, "loud")
    queues.give({"quiet": some(1), "loud": some(5)}, {}, at(6), {})
    await queues.settle()
    queues.give({"loud": some(3), "quiet": some(1)}, {}, at(10), {})
    settling = asyncio.create_task(queues.settle())
    await turns()
    assert gates.applied == [("loud", 5), ("loud", 3)]
    assert not settling.done()
    opened(gates, "quiet")
    await settling
    assert gates.applied[2] == ("quiet", 1)


async def test_an_app_that_waits_for_its_turn_is_not_looked_at_without_a_pause(
    gates: Gates, clock: VirtualClock
) -> None:
    """With more apps than may be written at once, some wait longer than a batch is waited for."""
    queues = queues_of(gates, apps_at_once=1)
    queues.give({"first": some(1), "second": some(1)}, {}, at(2), {})
    await turns()
    waiting = queues._busy["second"]  # pyright: ignore[reportPrivateUsage]
    assert waiting.state is State.WAITING
    clock.advance(2 * 3_600.0)
    due = queues._due(clock.monotonic())  # pyright: ignore[reportPrivateUsage]
    assert due is not None
    assert due > clock.monotonic()
    await queues.aclose()


@pytest.mark.parametrize(("others", "level"), [((), "info"), (("quick",), "warning")])
async def test_an_app_is_parked_with_a_warning_if_it_is_not_the_only_one(
    gates: Any, monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...], level: str
) -> None:
    """Where one app is alone, nobody needs to hear that others go on; one that comes later must."""
    monkeypatch.setattr(gates, "reread", never)
    queues = queues_of(gates, timing=QueueTiming(batch_s=0.0, park_s=0.0, pace_s=0.0))
    opened(gates, "quick")
    queues.give({app: some(1) for app in ("slow", *others)}, {}, at(2), {})
    await turns()
    with capture_logs() as logs:
        queues.give({"slow": some(20)}, {}, at(22), {})
        await queues.settle()
    assert queues.parked == {"slow"}
    assert [log["log_level"] for log in logs if log["event"] == "app_parked"] == [level]
    queues.give({"quick": some(1)}, {}, at(23), {})
    await turns()
    assert gates.applied == [("quick", 1)] * (len(others) + 1)
    await queues.aclose()


async def test_nobody_waits_for_an_app_that_is_parked_while_it_has_nothing_to_do(
    gates: Gates, queues: AppQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "reread", never)
    opened(gates, "loud")
    queues.give({"loud": some(15)}, {}, at(15), {})
    await queues.settle()
    queues.give({"loud": some(1)}, {}, at(17), {}, without=frozenset({"parked"}))
    await queues.settle()
    assert gates.applied == [("loud", 15), ("loud", 1)]


async def test_a_parked_app_reads_again_what_was_taken_beyond_the_position_of_all() -> None:
    writer: Any = Writer()
    queues = queues_of(writer)
    queues.park("p")
    # Another app's entries still wait in the window, so the position of all stands at 5.
    queues.give({}, {}, at(5), {"p": at(50), "q": at(60)}, {"p"})
    assert queues.floor.offset == "0"
    await queues.drain()
    assert writer.ranges == [("0", "50"), ("20", "50"), ("40", "50")]
    assert queues.floor.offset == "5"
    # It begins anew where it has got to, not where all apps are.
    queues.park("p")
    queues.give({}, {}, at(70), {"p": at(65)}, {"p"})
    await queues.drain()
    assert writer.ranges[3:] == [("50", "70")]
    await queues.aclose()


class Skipping(Writer):
    """What its apps read again is left out by the rules."""

    async def reread(self, app_id: str, parking: Parking, given: CommittedPosition) -> RereadPage:
        skip = Skip(
            entry=Entry(offset=given.offset, fields={}, received=datetime(2026, 1, 1, tzinfo=UTC)),
            event=Event.create("order.placed", app_id=app_id, chat_id="c", data={}),
            reason="skipped",
            message="",
        )
        return RereadPage(QueuedBatch(start=parking.position, skips=[skip]), given)

    async def apply(self, app_id: str, events: Sequence[Any]) -> None:
        assert events


async def test_a_parked_app_goes_on_if_all_that_it_reads_again_is_skipped() -> None:
    queues = queues_of(Skipping())
    queues.park("p")
    queues.give({}, {}, at(5), {}, frozenset({"p"}))
    await VIRTUAL.sleep(10)
    assert not queues.parked
    assert queues.floor == at(5)
    await queues.aclose()


class Waiting(Writer):
    """Its apps need a lost rule set, which is there again when it was looked for often enough."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks
        self.lost = {"digest"}
        self.restatements = 0
        self.reading = 0
        self.most = 0
        self.applied: list[str] = []

    async def refresh(self, entries: Sequence[Any]) -> None:
        self.looks -= 1
        if self.looks <= 0:
            self.lost.clear()

    def restatement(self, app_id: str) -> int:
        return self.restatements

    async def reread(self, app_id: str, parking: Parking, given: CommittedPosition) -> RereadPage:
        if self.lost and not self.restatements:
            raise RulesLost("digest")
        self.reading += 1
        self.most = max(self.most, self.reading)
        await VIRTUAL.sleep(5.0)
        self.reading -= 1
        return RereadPage(None, given)

    async def apply(self, app_id: str, events: Sequence[Any]) -> None:
        if self.lost:
            raise RulesLost("digest")
        self.applied.append(app_id)


async def test_apps_need_slots_when_a_lost_rule_set_is_back() -> None:
    writer = Waiting(looks=30)
    queues = queues_of(writer, apps_at_once=2)
    apps = frozenset(f"app{number}" for number in range(10))
    for app in apps:
        queues.park(app)
    queues.give({}, {}, at(9), {}, apps)
    await VIRTUAL.sleep(100)
    assert not queues.parked
    assert writer.most == 2
    assert queues.floor == at(9)
    await queues.aclose()


async def test_an_app_with_events_in_hand_looks_for_a_lost_rule_set() -> None:
    """Nobody else may look: the partition reads nothing while too many events wait."""
    writer = Waiting(looks=3)
    queues = queues_of(writer)
    queues.give({"app": some(1)}, {}, at(1), {})
    await VIRTUAL.sleep(10)
    assert writer.applied == ["app"]
    await queues.aclose()


async def test_an_app_whose_past_is_restated_waits_for_no_lost_rule_set() -> None:
    writer = Waiting(looks=1_000_000)
    queues = queues_of(writer)
    queues.give({}, {}, at(9), {}, frozenset({"app"}))
    await VIRTUAL.sleep(10)
    assert queues.parked == {"app"}
    writer.restatements = 1
    await VIRTUAL.sleep(10)
    assert not queues.parked
    await queues.aclose()


class Paged(Gates):
    """Notes how many entries a parked app may read at once."""

    batch_events = 1_000

    def __init__(self) -> None:
        super().__init__()
        self.most: list[tuple[str, int]] = []

    async def reread(self, app_id: str, parking: Parking, given: CommittedPosition) -> RereadPage:
        self.most.append((app_id, parking.most))
        return await super().reread(app_id, parking, given)


async def test_a_parked_app_reads_as_much_as_a_batch_while_it_is_alone() -> None:
    writer = Paged()
    queues = queues_of(writer)
    queues.park("loud")
    queues.give({}, {}, at(40), {}, frozenset({"loud"}))
    await turns()
    assert writer.most == [("loud", 1_000)] * 2
    queues.give({"quiet": some(1)}, {}, at(60), {}, frozenset({"loud"}))
    await turns()
    assert writer.most[2:] == [("loud", 200)]
    await queues.aclose()


class Late(Waiting):
    """The past of its apps is restated while their events are read for the first time."""

    async def reread(self, app_id: str, parking: Parking, given: CommittedPosition) -> RereadPage:
        restated, self.restatements = self.restatements, 1
        if not restated:
            raise RulesLost("digest")
        return await super().reread(app_id, parking, given)


async def test_a_past_that_is_restated_just_before_an_app_waits_is_noticed() -> None:
    queues = queues_of(Late(looks=1_000_000))
    queues.give({}, {}, at(9), {}, frozenset({"app"}))
    await VIRTUAL.sleep(20)
    assert not queues.parked
    await queues.aclose()


async def test_an_app_that_gets_more_events_all_the_time_takes_turns_at_its_slot(
    gates: Any,
) -> None:
    queues = queues_of(gates, apps_at_once=1)
    opened(gates, "quiet")
    queues.give({"loud": some(1)}, {}, at(1), {})
    await turns()
    queues.give({"loud": some(2), "quiet": some(1)}, {}, at(4), {})
    await turns()
    opened(gates, "loud")
    await queues.drain()
    assert gates.applied == [("loud", 1), ("quiet", 1), ("loud", 2)]
    await queues.aclose()


async def test_an_app_that_has_caught_up_needs_no_slot_of_those_that_have_not(
    gates: Any,
) -> None:
    """One that reads a long past again, however quickly, must not keep its slot until the end."""
    queues = queues_of(gates, apps_at_once=1)
    queues.give({}, {}, at(2_000), {}, frozenset({"late"}))
    await turns()
    opened(gates, "quick")
    queues.give({"quick": some(1)}, {}, at(2_001), {})
    while not gates.applied:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert queues.parked == {"late"}
    await queues.drain()
    assert queues.floor == at(2_001)
    await queues.aclose()


class Model(Writer):
    """A log of events of some apps, and graphs that count how far each app is; some calls fail, or take long."""

    batch_events = 6

    def __init__(self, apps: Sequence[str], fates: Iterator[int]) -> None:
        super().__init__()
        self.apps = apps  # of the events at the places 1, 2, …
        self.fates = fates
        self.done: dict[str, list[int]] = {app: [] for app in set(apps)}

    def of(self, app: str, after: int, end: int) -> Any:
        """Return the events of an app after a place, up to another."""
        places = [place for place in range(after + 1, end + 1) if self.apps[place - 1] == app]
        return [SimpleNamespace(place=place, size=1, entry=SimpleNamespace(fields={b"data": b"x"})) for place in places]

    async def reread(self, app_id: str, parking: Parking, given: CommittedPosition) -> RereadPage:
        await self._fate()
        end = min(int(parking.position.offset) + 5, int(given.offset))
        events = self.of(app_id, int(parking.position.offset), end)
        return RereadPage(QueuedBatch(start=parking.position, events=events) if events else None, at(end))

    async def apply(self, app_id: str, events: Sequence[Any]) -> None:
        done = self.done[app_id]
        for event in events:
            await self._fate()
            if not done or event.place > done[-1]:  # the checkpoint says so
                done.append(event.place)

    async def _fate(self) -> None:
        fate = next(self.fates, 1)
        if fate == 0:
            raise GraphUnavailable("away")
        for _ in range(fate):
            await asyncio.sleep(0)

    def is_done(self, place: int) -> bool:
        """Tell whether all events up to a place have taken effect."""
        return all(each in self.done[app] for each, app in enumerate(self.apps[:place], start=1))


@given(
    apps=st.lists(st.sampled_from("abc"), min_size=1, max_size=60),
    sizes=st.lists(st.integers(1, 6), min_size=60, max_size=60),
    parked=st.lists(st.sampled_from(["", "", "", "a", "b", "c"]), min_size=60, max_size=60),
    fates=st.lists(st.sampled_from([0, 1, 1, 2, 3, 8, 30]), max_size=200),
)
def test_each_event_takes_effect_in_order_and_is_committed_only_then(
    apps: list[str], sizes: list[int], parked: list[str], fates: list[int]
) -> None:
    """Whatever is parked, fails or piles up."""
    model: Any = Model(apps, iter(fates))

    async def work() -> None:
        hasty = QueueTiming(batch_s=0.0, pace_s=0.0, park_s=0.0)
        queues = queues_of(model, timing=hasty, progressed=committed)
        made.append(queues)
        start = 0
        for size, park in zip(sizes, parked, strict=True):
            without, end = queues.parked, min(start + size, len(apps))  # as it is matched
            if park:
                queues.park(park)
            for _ in range(8 * size):  # meanwhile a parked app may catch up
                await asyncio.sleep(0)
            await VIRTUAL.sleep(size % 3)  # and one that failed is tried again
            found = {app: model.of(app, start, end) for app in set(apps) - without}
            queues.give({app: events for app, events in found.items() if events}, {}, at(end), {}, without)
            await queues.settle()
            start = end
        while queues._busy:  # pyright: ignore[reportPrivateUsage]
            await VIRTUAL.sleep(0.1)
        assert queues.floor == at(len(apps))
        assert queues.floor in committed_at
        await queues.aclose()

    made: list[AppQueues] = []
    committed_at = {at(0)}

    def committed() -> None:
        assert model.is_done(int(made[0].floor.offset))
        committed_at.add(made[0].floor)

    run(work())
    for app, done in model.done.items():
        assert done == [place for place, each in enumerate(apps, start=1) if each == app]


async def test_an_app_with_dear_events_says_so_until_it_has_caught_up(
    gates: Any, queues: AppQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "reread", never)
    with capture_logs() as logs:
        queues.park_dear("dear")
        queues.park_dear("dear")
    assert [log["why"] for log in logs if log["event"] == "app_parked"] == ["dear_events"]
    queues.give({}, {}, at(5), {}, {"dear"})
    await turns()
    assert queues.parked == {"dear"}
    assert {app: each.why for app, each in queues.status().items()} == {"dear": "dear_events"}


async def test_an_app_that_has_caught_up_says_no_reason_of_earlier() -> None:
    writer: Any = Writer()
    queues = queues_of(writer)
    queues.park_dear("dear")
    queues.give({}, {}, at(45), {}, {"dear"})
    queue = queues._queues["dear"]  # pyright: ignore[reportPrivateUsage]
    await asyncio.wait_for(cast("asyncio.Task[None]", queue.task), 1.0)
    assert (queue.why, queues.parked, queues.status()) == ("slow", frozenset(), {})
    await queues.aclose()


async def test_an_app_with_slow_writes_rests_and_says_so(gates: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    async def apply(app_id: str, events: Sequence[Any]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise SlowWrites("they take long", retry_after_s=40.0)

    monkeypatch.setattr(gates, "apply", apply)
    queues = queues_of(gates)
    before = VIRTUAL.monotonic()
    queues.give({"slow": some(1)}, {}, at(1), {})
    await turns()
    assert {app: each.why for app, each in queues.status().items()} == {"slow": "slow_writes"}
    await queues.settle()  # nobody waits for it
    assert (tries, queues.floor.offset) == (1, "0")
    await cast("asyncio.Task[None]", queues._queues["slow"].task)  # pyright: ignore[reportPrivateUsage]
    assert (tries, queues.floor.offset, VIRTUAL.monotonic() - before) == (2, "1", 40.0)
    await queues.aclose()


async def test_an_app_that_is_parked_says_no_reason_of_a_trouble_long_ago(
    gates: Any, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fates = iter([GraphUnavailable("away", retry_after_s=0.1)])

    async def apply(*_: object) -> None:
        if (fate := next(fates, None)) is not None:
            raise fate

    monkeypatch.setattr(gates, "apply", apply)
    monkeypatch.setattr(gates, "reread", never)
    queues = queues_of(gates)
    queues.give({"app": some(1)}, {}, at(1), {})
    await turns()
    assert {app: each.why for app, each in queues.status().items()} == {"app": "unavailable"}
    await VIRTUAL.sleep(1.0)
    assert queues.floor == at(1)
    clock.advance(60.0)
    queues.park("app")
    await turns()
    assert {app: each.why for app, each in queues.status().items()} == {"app": "slow"}
    await queues.aclose()


def queue_of(slots: int = 1) -> AppQueue:
    return AppQueue(app_id="app", slots=asyncio.Semaphore(slots), clock=VIRTUAL, timing=QueueTiming())


async def test_an_app_has_a_slot_exactly_while_it_applies(clock: VirtualClock) -> None:
    queue = queue_of()
    assert (queue.state, queue.is_busy) == (State.IDLE, False)
    queue.give(QueuedBatch(start=at(0), events=some(2)), 0)
    assert (queue.state, queue.slots.locked(), queue.floor) == (State.WAITING, False, at(0))
    await queue.wait_for_slot()
    queue.take()
    assert (queue.state, queue.slots.locked(), queue.waiting_events) == (State.APPLYING, True, 0)
    queue.give(QueuedBatch(start=at(2), events=some(1)), 2)
    assert not queue.done(at(2), 2)
    assert (queue.state, queue.slots.locked(), queue.floor) == (State.WAITING, False, at(2))
    await queue.wait_for_slot()
    queue.take()
    clock.advance(0.2)
    queue.look(clock.monotonic())
    assert (queue.state, queue.slots.locked(), queue.shown(clock.monotonic())) == (State.SLOW, False, None)
    clock.advance(1.0)
    shown = queue.shown(clock.monotonic())
    assert shown is not None
    assert (shown.why, shown.at) == ("slow", "2")
    queue.done(at(3), 3)
    assert (queue.state, queue.slots.locked(), queue.floor) == (State.IDLE, False, None)
    queue.give(QueuedBatch(start=at(3), events=some(1)), 3)
    assert queue.state is State.SLOW  # it took more than a second not long ago


@pytest.mark.parametrize("trouble", [State.UNAVAILABLE, State.NEEDS_REBUILD, State.RULES_LOST, State.RESTING])
async def test_an_app_with_trouble_tries_again_without_a_slot_and_then_returns(
    clock: VirtualClock, trouble: State
) -> None:
    queue = queue_of()
    queue.give(QueuedBatch(start=at(0), events=some(1)), 0)
    await queue.wait_for_slot()
    queue.take()
    queue.halt(trouble)
    assert (queue.state, queue.slots.locked(), queue.why) == (trouble, False, trouble.value)
    if trouble is State.RULES_LOST:
        queue.rejoin()
        await queue.wait_for_slot()
        assert (queue.state, queue.why) == (State.APPLYING, "slow")
        return
    await queue.wait_for_slot()
    assert queue.state is State.SLOW
    clock.advance(31.0)
    queue.busy_since = clock.monotonic()
    queue.done(at(1), 1)
    assert (queue.state, queue.behind_since) == (State.IDLE, 0.0)
    queue.give(QueuedBatch(start=at(1), events=some(1)), 1)
    assert (queue.state, queue.why) == (State.WAITING, "slow")


class Emptied(Gates):
    """The graph of an app that was emptied while the app was quiet."""

    def __init__(self) -> None:
        super().__init__()
        self.older = OlderGraphs(0, NOTHING, no_obstacle, reached={"quiet": "60", "busy": "60"})
        self.forgotten: list[str] = []

    def forget(self, app_id: str) -> None:
        self.forgotten.append(app_id)

    @override
    async def reread(self, app_id: str, parking: Parking, given: CommittedPosition) -> RereadPage:
        assert self.forgotten == [app_id]  # else its events would count as applied
        begins = parking.position if parking.position.offset else at(0)
        return await super().reread(app_id, replace(parking, position=begins), given)


async def test_a_quiet_app_whose_graph_was_emptied_reads_all_its_events_again() -> None:
    writer = Emptied()
    queues = queues_of(writer)
    opened(writer, "quiet")
    queues.give({"quiet": some(1), "busy": some(1)}, {}, at(60), {})
    await queues.settle()
    with capture_logs() as logs:
        await queues.read_again("quiet", "")
        await queues.read_again("busy", "")  # it notices by itself
        assert queues.parked == {"quiet"}
        assert queues.floor.offset in {"", "0"}
        await turns()
    assert writer.ranges == [("0", "60"), ("20", "60"), ("40", "60")]
    assert (queues.parked, queues.again, "quiet" in writer.older) == (frozenset(), "60", True)
    assert "stands at the start of partition 0 and was at 60" in str(logs[0]["message"])
    await queues.aclose()

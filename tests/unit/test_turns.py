"""Reading in turns: the same result, and bounded turns."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.services.virtual_time import VirtualClock

from graphweft_contracts import Event, wire
from graphweft_rules import RuleSet
from graphweft_workers.engine.apply.app_queue import Parking, RereadPage
from graphweft_workers.engine.apply.older_graph import no_obstacle
from graphweft_workers.engine.log import turns
from graphweft_workers.engine.log.app_costs import AppCosts
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.effect_ledger import NOTHING
from graphweft_workers.engine.log.read import read_range
from graphweft_workers.engine.partition import AppWriter
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.ports.pages import last_page
from graphweft_workers.rule_sets.active_rules import FixedRules
from graphweft_workers.support.timing import TIMING, CostTiming

T0 = datetime(2026, 2, 1, tzinfo=UTC)


def rules(folder: Path) -> RuleSet:
    (folder / "Shop").mkdir()
    (folder / "Shop/graph_injection.yaml").write_text(
        "mutation_rules:\n- name: r\n  events: [order.paid]\n  mutations:\n"
        "  - {id: m, cypher: 'CREATE (:Order {id: $id})', params: {id: $event.nr}}\n"
    )
    return RuleSet.load(folder, [MemoryMutations()])


def entry(number: int, fields: dict[bytes, bytes]) -> Entry:
    return Entry(offset=f"{number}-0", fields=fields, received=T0)


def log() -> list[Entry]:
    found: list[Entry] = []
    for number in range(300):
        data: dict[str, Any] = {} if number % 7 == 0 else {"nr": number}  # some skip
        event = Event.create(
            "order.paid",
            app_id=f"a{number % 3}",
            chat_id="c",
            workflow="Shop",
            data=data,
            id=str(number % 252),
            time=T0,
        )  # some are copies
        found.append(entry(number, wire.encode(event)))
    found[50] = entry(50, {b"data": b"broken"})
    large = {"messages": [{"role": "user", "text": "x " * 100_000}], "user_id": "u"}
    found[60] = entry(60, wire.encode(Event.create("memory.add", app_id="a0", chat_id="c", data=large, time=T0)))
    return found


class Turns(turns.TurnClock):
    """Counts that some events take a second."""

    def __init__(self, steps: list[str], dear: Collection[str]) -> None:
        self._time = VirtualClock()
        super().__init__(self._time, 0.5)
        self._steps = steps
        self._dear = dear

    def one(self, left: deque[Any], costs: AppCosts | None = None) -> Iterator[Any]:
        for each in super().one(left, costs):
            yield each
            offset = each.offset if isinstance(each, Entry) else each.entry.offset
            self._steps.append(offset)
            self._time.advance(offset in self._dear)


@pytest.mark.parametrize("turn_s", [-1.0, 0.0, 5.0, 1e9])
async def test_turns_read_the_same(tmp_path: Path, turn_s: float) -> None:
    entries = log()
    active = FixedRules(rules(tmp_path))
    at_once = read_range(0, entries, active, RecentEvents())
    decoded = await turns.decode_in_turns(entries, active, turns=turns.TurnClock(turn_s=turn_s))
    found = await turns.match_in_turns(0, decoded, RecentEvents(), turns=turns.TurnClock(turn_s=turn_s))
    assert [each.entry for each in decoded] == entries
    assert found.copies == at_once.copies == 48
    assert {app: [each.entry.offset for each in events] for app, events in found.apps.items()} == {
        app: [each.entry.offset for each in events] for app, events in at_once.apps.items()
    }
    assert found.skips
    assert [skip.entry.offset for skip in found.skips] == [skip.entry.offset for skip in at_once.skips]
    assert [letter.id for letter in found.letters] == [letter.id for letter in at_once.letters] == ["0:50-0"]


async def test_other_tasks_run_after_the_event_that_ends_a_turn(tmp_path: Path) -> None:
    active, steps = FixedRules(rules(tmp_path)), list[str]()
    entries = [each for each in log() if each.offset != "60-0"]  # which is matched in a thread
    dear = ["5-0", "6-0", "100-0", "299-0"]

    async def other() -> None:
        while True:
            await asyncio.sleep(0)
            steps.append("other")

    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    decoded = await turns.decode_in_turns(entries, active, turns=Turns(steps, dear))
    await turns.match_in_turns(0, decoded, RecentEvents(), turns=Turns(steps, dear))
    task.cancel()
    before = [one for one, other in pairwise(steps) if other == "other"]
    assert before == dear * 2
    assert len(steps) == 2 * (len(entries) + len(dear))


async def test_a_large_event_is_matched_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    active, entries = FixedRules(rules(tmp_path)), log()
    aside: list[str] = []
    real = turns.match_range

    def matching(partition: int, some: Iterable[Any], **named: Any) -> Any:
        def noted() -> Iterator[Any]:
            for each in some:
                if threading.current_thread() is not threading.main_thread():
                    aside.append(each.entry.offset)
                yield each

        return real(partition, noted(), **named)

    monkeypatch.setattr(turns, "match_range", matching)
    decoded = await turns.decode_in_turns(entries, active)
    await turns.match_in_turns(0, decoded, RecentEvents())
    assert aside == ["60-0"]


async def test_who_is_cancelled_waits_for_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    active, entries = FixedRules(rules(tmp_path)), log()[60:]
    begun, may_end, steps = threading.Event(), threading.Event(), list[str]()

    def matching(*_: Any, **__: Any) -> None:
        begun.set()
        may_end.wait()
        steps.append("thread")

    monkeypatch.setattr(turns, "match_range", matching)
    decoded = await turns.decode_in_turns(entries, active)
    task = asyncio.create_task(turns.match_in_turns(0, decoded, RecentEvents()))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["thread"]


def test_a_page_has_two_entries_of_any_size() -> None:
    entries = [entry(number, {b"data": b"x" * 100}) for number in range(5)]
    assert last_page(entries, most_bytes=10_000) == entries
    assert last_page(entries, most_bytes=3 * 104) == entries[2:]
    assert last_page(entries, most_bytes=1) == entries[3:]
    assert last_page(entries[:1], most_bytes=1) == entries[:1]
    assert last_page([], most_bytes=1) == []


DEAR = "$event.a.exists(x, $event.b.exists(y, y == x + {}))"


def dear_rules(folder: Path, count: int) -> RuleSet:
    (folder / "Shop").mkdir(exist_ok=True)
    (folder / "Shop/graph_injection.yaml").write_text(
        "mutation_rules:\n"
        + "".join(
            f'- name: r{number}\n  events: [order.paid]\n  condition: "{DEAR.format(number)}"\n  mutations:\n'
            "  - {id: m, cypher: 'CREATE (:Order {id: $id})', params: {id: $event.nr}}\n"
            for number in range(count)
        )
        + "- name: plain\n  events: [order.*]\n  mutations:\n"
        "  - {id: m, cypher: 'CREATE (:Order {id: $id})', params: {id: $event.nr}}\n"
    )
    return RuleSet.load(folder)


def paid(number: int, app: str, type: str = "order.paid", data: Mapping[str, Any] | None = None) -> Entry:
    event = Event.create(
        type, app_id=app, chat_id="c", workflow="Shop", data={"nr": number, **(data or {})}, id=str(number)
    )
    return entry(number, wire.encode(event))


async def test_an_app_whose_events_take_much_time_leaves_the_batch(tmp_path: Path) -> None:
    active = FixedRules(dear_rules(tmp_path, 0))
    entries = [paid(number, "dear" if number % 2 else "quiet") for number in range(20)]
    decoded = await turns.decode_in_turns(entries, active)
    steps = list[str]()
    clock = VirtualClock()

    class Slow(turns.TurnClock):
        def one(self, left: deque[Any], costs: AppCosts | None = None) -> Iterator[Any]:
            for each in super().one(left, costs):
                yield each
                steps.append(each.entry.offset)
                clock.advance(0.02 * (each.event.appid == "dear"))

    costs = AppCosts(clock, CostTiming(burst_s=0.05, share=0.01))
    found = await turns.match_in_turns(0, decoded, RecentEvents(), turns=Slow(clock, 0.005), costs=costs)
    assert found.dear == {"dear"}
    assert [event.entry.offset for event in found.apps["quiet"]] == [f"{number}-0" for number in range(0, 20, 2)]
    assert len(found.apps["dear"]) == 3  # they are read again
    # Others are not asked to leave, nor is an app that has no more events here.
    later = await turns.match_in_turns(0, decoded[::2], RecentEvents(), turns=Slow(clock, 0.005), costs=costs)
    assert (later.dear, len(later.apps["quiet"])) == (set(), 10)
    clock.advance(20.0)
    again = await turns.match_in_turns(0, decoded[:2], RecentEvents(), turns=Slow(clock, 0.005), costs=costs)
    assert (again.dear, len(again.apps["dear"])) == (set(), 1)


@pytest.mark.parametrize(("rules", "length", "aside"), [(40, 60, True), (1, 60, False)])
async def test_a_small_event_with_many_dear_conditions_is_matched_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: int, length: int, aside: bool
) -> None:
    active = FixedRules(dear_rules(tmp_path, rules))
    lists = {"a": [*range(1_000, 1_000 + length)], "b": [*range(length)]}
    types = ("order.paid", "order.sent", "order.paid")
    entries = [paid(number, "a", type, lists) for number, type in enumerate(types)]
    decoded = await turns.decode_in_turns(entries, active)
    assert all(each.size < turns.LARGE for each in decoded)
    threads = list[bool]()
    real = RuleSet.match_rules

    def matching(self: RuleSet, event: Event, *how: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return real(self, event, *how)

    monkeypatch.setattr(RuleSet, "match_rules", matching)
    found = await turns.match_in_turns(0, decoded, RecentEvents())
    assert threads == [aside, False, aside]
    assert [len(event.mutations) for event in found.apps["a"]] == [1, 1, 1]


async def test_parked_apps_take_turns_and_rest(clock: VirtualClock) -> None:
    costs = AppCosts(clock, CostTiming())
    steps = list[tuple[str, float]]()

    async def work(app: str, seconds: float) -> None:
        async with costs.pace.turn():
            steps.append((app, clock.monotonic()))
            clock.advance(seconds)

    before = clock.monotonic()
    await asyncio.gather(work("a", 1.0), work("b", 0.0), work("c", 20.0), work("d", 0.0))
    assert [(app, at - before) for app, at in steps] == [("a", 0.0), ("b", 2.0), ("c", 2.0), ("d", 27.0)]


class Matches:
    """Notes whose events are matched; each takes as long as ``seconds`` says of its app."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, seconds: Mapping[str, float]) -> None:
        self.apps = list[str]()
        real = RuleSet.match_rules

        def matching(rules: RuleSet, event: Event, *how: Any) -> Any:
            self.apps.append(event.appid)
            clock.advance(seconds.get(event.appid, 0.0))
            return real(rules, event, *how)

        monkeypatch.setattr(RuleSet, "match_rules", matching)


LISTS: Mapping[str, Any] = {"a": [*range(1_000, 1_099)], "b": [*range(99)]}


async def test_an_app_leaves_the_batch_before_its_first_event_that_may_be_dear(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = FixedRules(dear_rules(tmp_path, 20))
    entries = [
        paid(1, "dear", "order.sent"), paid(2, "dear", data=LISTS), paid(3, "quiet", "order.sent"),
        paid(4, "dear", "order.sent"),
    ]  # fmt: skip
    decoded = await turns.decode_in_turns(entries, active)
    matches = Matches(monkeypatch, clock, {})
    costs = AppCosts(clock, CostTiming())
    found = await turns.match_in_turns(0, decoded, RecentEvents(), turns=turns.TurnClock(clock), costs=costs)
    assert (found.dear, matches.apps) == ({"dear"}, ["quiet"])  # who shares the batch waits for none of them
    # Alone, at its own pace, it leaves nothing out.
    found = await turns.match_in_turns(
        0, decoded, RecentEvents(), only="dear", turns=turns.TurnClock(clock), costs=costs
    )
    assert (found.dear, matches.apps) == (set(), ["quiet", "dear", "dear", "dear"])


async def test_an_app_whose_events_take_less_than_they_may_stays_in_the_batch(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = FixedRules(dear_rules(tmp_path, 20))
    decoded = await turns.decode_in_turns([paid(number, "many", data=LISTS) for number in range(20)], active)
    seconds = {"many": 0.0001}
    Matches(monkeypatch, clock, seconds)
    costs = AppCosts(clock, CostTiming(fading=0.9))

    async def dear(only: str | None = None) -> set[str]:
        found = await turns.match_in_turns(
            0, decoded, RecentEvents(), only=only, turns=turns.TurnClock(clock), costs=costs
        )
        return found.dear

    assert await dear() == {"many"}
    await dear(only="many")
    assert await dear() == set()
    # One that takes as long as it may counts at once.
    seconds["many"] = 0.2
    assert await dear() == {"many"}
    clock.advance(3_600.0)
    assert await dear() == {"many"}


async def test_an_app_does_not_pay_for_a_busy_machine(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(VirtualClock):
        """Each event waits for a processor, and works for a tenth of that."""

        def cpu(self) -> float:
            return self.elapsed_s / 10

    active, busy = FixedRules(dear_rules(tmp_path, 0)), Busy()
    decoded = await turns.decode_in_turns([paid(number, "quiet") for number in range(20)], active)
    Matches(monkeypatch, busy, {"quiet": 0.01})
    costs = AppCosts(busy, CostTiming(share=0.0, least_s=0.002))
    found = await turns.match_in_turns(0, decoded, RecentEvents(), turns=turns.TurnClock(busy), costs=costs)
    assert (len(found.apps["quiet"]), found.dear, costs.over()) == (20, set(), ())


async def test_what_came_before_in_a_turn_is_not_charged_to_the_app_of_a_long_event(clock: VirtualClock) -> None:
    costs = AppCosts(clock, CostTiming(share=0.0, burst_s=0.0035))
    decoded = await turns.decode_in_turns([paid(number, f"a{number}") for number in range(7)], FixedRules(RuleSet({})))
    for _ in turns.TurnClock(clock, 1.0).one(deque(decoded), costs):
        clock.advance(0.0009)
    assert costs.over() == ()
    for each in turns.TurnClock(clock, 1.0).one(deque(decoded), costs):
        clock.advance(0.0009 if each is not decoded[-1] else 0.003)
    assert costs.over() == set()  # of 8 ms in this turn, its app has used 3


async def test_a_page_of_a_parked_app_ends_with_the_event_with_which_its_time_is_over(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = FixedRules(dear_rules(tmp_path, 20))
    decoded = await turns.decode_in_turns([paid(number, "dear", data=LISTS) for number in range(9)], active)
    matches = Matches(monkeypatch, clock, {"dear": 0.1})
    recent, at, pages = RecentEvents(), 0, list[int]()
    while at < len(decoded):
        page = await turns.match_in_turns(
            0, decoded[at:], recent, only="dear", turns=turns.TurnClock(clock), most_s=0.25
        )
        assert [each.entry for each in page.apps["dear"]] == [each.entry for each in decoded[at:][: page.entries]]
        pages.append(page.entries)
        at += page.entries
    assert pages == [3, 3, 3]
    assert len(matches.apps) == 9
    one = await turns.match_in_turns(0, decoded, RecentEvents(), only="dear", turns=turns.TurnClock(clock), most_s=0.0)
    assert one.entries == 1


class Pages:
    """A log that notes how many entries are read at once."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self.limits = list[int]()

    async def read(self, partition: int, after: CommittedPosition, *, limit: int) -> Batch:
        self.limits.append(limit)
        return Batch(entries=self._entries[after.count :][:limit])


async def test_the_pages_of_a_parked_app_grow_to_what_it_may_read(clock: VirtualClock) -> None:
    log = Pages([paid(number, "app") for number in range(4_000)])
    state: Any = SimpleNamespace(
        log=log, rules=FixedRules(RuleSet({})), clock=clock, costs=AppCosts(clock), timing=TIMING, obstacle=no_obstacle
    )
    writer = AppWriter(state, 0, NOTHING)
    parking = Parking(position=CommittedPosition(), recent=RecentEvents())
    given = CommittedPosition(offset="3999-0", count=4_000)
    for most in (1_000, 1_000, 1_000, 1_000, 200, 200):
        parking.most = most
        parking.position = (await writer.parked.reread("app", parking, given)).end
    assert log.limits == [200, 400, 800, 1_000, 200, 200]


async def test_a_parked_app_goes_on_behind_the_event_with_which_a_page_ended(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [paid(number, "dear", data=LISTS) for number in range(10)]
    log, matches = Pages(entries), Matches(monkeypatch, clock, {"dear": 0.1})
    state: Any = SimpleNamespace(
        log=log,
        rules=FixedRules(dear_rules(tmp_path, 20)),
        clock=clock,
        costs=AppCosts(clock),
        timing=TIMING,
        obstacle=no_obstacle,
    )
    writer = AppWriter(state, 0, NOTHING)
    parking, pages = Parking(position=CommittedPosition(), recent=RecentEvents()), list[RereadPage]()
    given = CommittedPosition(offset="9-0", count=10)
    while parking.position != given:
        pages.append(await writer.parked.reread("dear", parking, given))
        parking.position = pages[-1].end
    ends = [page.end for page in pages]
    assert [(end.offset, end.count) for end in ends] == [("2-0", 3), ("5-0", 6), ("8-0", 9), ("9-0", 10)]
    assert log.limits == [200, 3, 6, 3]  # little is read and not matched
    assert [event.entry for page in pages if page.batch for event in page.batch.events] == entries
    assert len(matches.apps) == 10


def test_what_an_app_owes_is_forgotten_soon_after_its_last_dear_event(clock: VirtualClock) -> None:
    costs = AppCosts(clock, CostTiming())
    for _ in range(100):
        costs.charge("a", 5.0)
    assert costs.over() == {"a"}
    clock.advance(20.0)
    assert costs.over() == set()

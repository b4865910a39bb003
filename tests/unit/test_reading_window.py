"""The order in which the apps of a partition are taken: by cost, in turn, and each app's own order is kept."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from graphweft import Event
from graphweft_contracts import InvalidEvent, wire
from graphweft_rules import RuleSet
from graphweft_workers.engine.log.read import LoggedEvent, ReadEntry, VoidEntry
from graphweft_workers.engine.log.reading_window import (
    APP_COST,
    FEW_ENTRIES,
    MOST_BYTES,
    MOST_ENTRIES,
    ReadingWindow,
    WindowsTogether,
)
from graphweft_workers.ports.event_log import CommittedPosition, Entry

START = CommittedPosition(offset="", count=0)
RULES = RuleSet({})


def entry(number: int, app: str | None, size: int = 10) -> ReadEntry:
    fields = {wire.DATA: b"x" * size}
    read = Entry(offset=str(number), fields=fields, received=datetime(2026, 1, 1, tzinfo=UTC))
    if app is None:
        return VoidEntry(read, size)
    return LoggedEvent(read, Event.create("x.y", app_id=app, chat_id="c", id=str(number), data={}), RULES, size)


def log(*apps: tuple[str | None, int, int]) -> list[ReadEntry]:
    """Return ``count`` entries of ``size`` bytes for each app, one app after the other."""
    kinds = [(app, size) for app, count, size in apps for _ in range(count)]
    return [entry(number, app, size) for number, (app, size) in enumerate(kinds, 1)]


def offsets(entries: object) -> list[int]:
    return [int(each.entry.offset) for each in entries]  # type: ignore[attr-defined]


def test_a_neighbour_behind_a_backlog_is_in_the_first_batch() -> None:
    window = ReadingWindow(START)
    window.add(log(("globex", 10_000, 500), ("acme", 1, 500)))
    taken = window.take(1_000)
    assert 10_001 in offsets(taken.entries)
    assert len(taken.entries) == 1_000
    assert taken.end.offset == str(offsets(taken.entries)[-2])  # acme's entry lies beyond it
    assert taken.ends["acme"] == CommittedPosition(offset="10001", count=10_001)


def test_heavy_entries_of_one_app_leave_room_for_the_others() -> None:
    """By cost: three entries of 930 kB count like thousands of small ones."""
    window = ReadingWindow(START)
    window.add(log(("globex", 3, 930_000), ("acme", 20, 500)))
    taken = window.take(1_000)
    assert offsets(taken.entries) == [1, *range(4, 24)]
    assert taken.end == CommittedPosition(offset="1", count=1)
    assert [offsets(window.take(1_000).entries), offsets(window.take(1_000).entries)] == [[2], [3]]
    assert window.take(1_000).end == CommittedPosition(offset="23", count=23)


def test_an_entry_larger_than_all_limits_is_taken_alone() -> None:
    window = ReadingWindow(START)
    window.add(log(("globex", 2, 2 * MOST_BYTES)))
    assert window.is_full
    assert offsets(window.take(10).entries) == [1]
    assert offsets(window.take(10).entries) == [2]
    assert not window


def test_a_window_is_full_by_entries_or_bytes() -> None:
    window = ReadingWindow(START)
    window.add(log(("a", MOST_ENTRIES - 1, 1)))
    assert not window.is_full
    window.add([entry(MOST_ENTRIES, "b")])
    assert window.is_full


def test_the_windows_of_a_worker_are_bounded_together() -> None:
    together = WindowsTogether()
    windows = [ReadingWindow(START, together) for _ in range(6)]
    entries = log(("a", FEW_ENTRIES, 1))
    for window in windows[:4]:
        while not window.is_full:
            window.add(entries)
    assert len(windows[0]) == MOST_ENTRIES
    windows[4].add(entries)
    assert windows[4].is_full
    assert not windows[5].is_full
    windows[0].clear()
    assert not windows[4].is_full
    for window in windows:
        while window:
            window.take(1_000)
    assert (together.entries, together.cost) == (0, 0)


def test_entries_of_parked_apps_are_taken_at_once() -> None:
    window = ReadingWindow(START)
    window.add(log(("parked", 5_000, 500), ("acme", 2_000, 500)))
    taken = window.take(100, free={"parked"})
    assert len(taken.entries) == 5_100
    assert taken.ends["parked"].offset == "5000"
    assert taken.end.offset == "5100"


def test_an_entry_without_an_event_moves_the_position_and_is_counted() -> None:
    window = ReadingWindow(START)
    window.add(log((None, 3, 10)))
    taken = window.take(10)
    assert (taken.count, taken.end, list(taken.entries)) == (3, CommittedPosition(offset="3", count=3), [])


def test_lost_entries_are_part_of_the_count() -> None:
    window = ReadingWindow(CommittedPosition(offset="7", count=7))
    window.add([entry(18, "a"), entry(19, "a")], lost=10)
    assert window.take(1).end == CommittedPosition(offset="18", count=18)
    assert window.take(1).end == CommittedPosition(offset="19", count=19)


def test_any_order_of_batches_keeps_each_apps_order_and_an_honest_position() -> None:
    rng = random.Random(7)
    for _ in range(8):
        window = ReadingWindow(START)
        number, taken_all = 0, dict[str, list[int]]()
        seen: set[int] = set()
        expected: dict[str, list[int]] = {}
        while number < 600 or window:
            if number < 600:
                fresh: list[ReadEntry] = []
                for _ in range(rng.randrange(1, 80)):
                    number += 1
                    app = rng.choice(["a", "b", "b", "b", "c", None])
                    each = entry(number, app, rng.choice([10, 10, 70_000, APP_COST]))
                    if isinstance(each, VoidEntry) and rng.random() < 0.5:
                        each.error = InvalidEvent("no event")
                    fresh.append(each)
                    if isinstance(each, VoidEntry) and each.error is None:
                        seen.add(number)
                    else:
                        expected.setdefault(app or "", []).append(number)
                window.add(fresh)
            taken = window.take(rng.randrange(1, 60))
            for each in taken.entries:
                place = int(each.entry.offset)
                seen.add(place)
                taken_all.setdefault(each.event.appid if isinstance(each, LoggedEvent) else "", []).append(place)
            end = int(taken.end.offset or 0)
            assert taken.end.count == end
            assert seen.issuperset(range(1, end + 1))
        assert taken_all == expected
        assert window.take(1).end == window.cursor


def test_every_app_gets_its_turn_within_few_batches() -> None:
    window = ReadingWindow(START)
    window.add(log(*((f"app{number}", 20, 60_000) for number in range(12))))
    served: set[str] = set()
    for _ in range(3):
        served |= set(window.take(1_000).ends)
    assert len(served) == 12

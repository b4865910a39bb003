"""Copies are told within the last entries of their own app, whatever other apps of the partition send."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from graphweft import Event
from graphweft_contracts import wire
from graphweft_workers.engine.duplicates import WINDOW, RecentEvents, identity_of
from graphweft_workers.engine.history import known_before
from graphweft_workers.engine.position_note import PositionNote
from graphweft_workers.ports.event_log import Entry


def of(app: str, name: str) -> tuple[str, str, str]:
    return (app, "/s", name)


def test_a_window_counts_the_entries_of_its_app() -> None:
    recent = RecentEvents(window=3)
    names = ["a", "b", None, "a", "c", "d", "a", "e", "f", "g", "a"]
    seen = [recent.is_copy(None if name is None else of("shop", name)) for name in names]
    assert seen == [False, False, False, True, False, False, True, False, False, False, False]


def test_traffic_of_another_app_pushes_no_copy_out() -> None:
    recent = RecentEvents()
    assert not recent.is_copy(of("acme", "order"))
    assert not any(recent.is_copy(of("globex", str(number))) for number in range(WINDOW + 500))
    assert recent.is_copy(of("acme", "order"))
    assert not recent.is_copy(of("globex", "0"))  # its own window is full
    assert recent.is_copy(of("globex", str(WINDOW)))


def test_entries_that_are_no_events_fill_no_window() -> None:
    recent = RecentEvents(window=2)
    recent.is_copy(of("acme", "order"))
    assert not any(recent.is_copy(None) for _ in range(10))
    assert recent.is_copy(of("acme", "order"))


def test_the_largest_windows_shrink_first() -> None:
    recent = RecentEvents(window=100, most=300)
    for number in range(20):
        recent.is_copy(of("small", str(number)))
    for app in ("one", "two", "three", "four", "five"):
        for number in range(100):
            recent.is_copy(of(app, str(number)))
    assert recent.size <= 300
    assert all(recent.is_copy(of("small", str(number))) for number in range(20))
    assert all(recent.is_copy(of("one", str(number))) for number in range(60, 100))


def test_more_apps_than_places_forget_the_ones_that_were_silent_longest() -> None:
    recent = RecentEvents(window=100, most=50)
    for number in range(1_000):
        recent.is_copy(of(f"app{number}", "e"))
    assert recent.size <= 50
    assert recent.is_copy(of("app999", "e"))
    assert not recent.is_copy(of("app0", "e"))


def test_an_event_is_no_retry_of_the_same_name() -> None:
    """A source named like the mark of retries must not hide a retry."""
    recent = RecentEvents()
    event = Event.create("x.y", app_id="a", chat_id="c", id="0:1:r/m", source="retry", data={})
    again = {**wire.encode(event), wire.RETRY: wire.Retry("0:1:r/m", "r", "m").encode()}
    assert not recent.is_copy(identity_of(entry(1, event), event))
    assert not recent.is_copy(identity_of(entry(2, event, again), event))


def entry(number: int, event: Event, fields: dict[bytes, bytes] | None = None) -> Entry:
    return Entry(offset=str(number), fields=fields or wire.encode(event), received=datetime(2026, 1, 1, tzinfo=UTC))


class Log:
    """The part of a log that reading back needs; offsets are numbers from 1."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self.read = 0

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        end = int(offset)
        found = self._entries[max(0, end - limit) : end]
        self.read += len(found)
        return found


def event(app: str, name: str) -> Event:
    return Event.create("x.y", app_id=app, chat_id="c", id=name, source="/s", data={})


@pytest.mark.parametrize("flood", [200, WINDOW + 1_500])
async def test_a_restart_reads_back_as_far_as_the_windows_reach(flood: int) -> None:
    entries = [entry(1, event("acme", "order"))]
    entries += [entry(2 + number, event("globex", str(number))) for number in range(flood)]
    recent = RecentEvents()
    for each in entries:
        recent.is_copy(identity_of(each, wire.decode(each.fields)))
    note = PositionNote.decode(PositionNote(reach=recent.reach).encode())
    log = Log(entries)
    again = await known_before(log, 0, entries[-1].offset, reach=note.reach)  # type: ignore[arg-type]
    assert again.is_copy(("acme", "/s", "order"))
    assert again.is_copy(("globex", "/s", str(flood - 1)))


async def test_a_partition_of_one_app_is_read_back_no_further_than_its_window() -> None:
    entries = [entry(1 + number, event("globex", str(number))) for number in range(3 * WINDOW)]
    recent = RecentEvents()
    for each in entries:
        recent.is_copy(identity_of(each, wire.decode(each.fields)))
    note = PositionNote(reach=recent.reach)
    assert note.encode() == PositionNote().encode()
    log = Log(entries)
    again = await known_before(log, 0, entries[-1].offset, reach=note.reach)  # type: ignore[arg-type]
    assert log.read <= WINDOW + 1_500
    assert again.is_copy(("globex", "/s", str(3 * WINDOW - 1)))

"""Copies are told within the last entries of their own app, whatever other apps of the partition send."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from graphweft import Event
from graphweft_contracts import wire
from graphweft_workers.engine.log.duplicates import WINDOW, RecentEvents, identity_of
from graphweft_workers.engine.log.history import known_before
from graphweft_workers.engine.log.series import MOST_SERIES, AppRecord, SeriesPlace, StoredMarks, number_of
from graphweft_workers.imports.file_series import numbered_blocks
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.position_note import PositionNote


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


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("7", "007"), ("f/7", "f/0007"), ("a/b/7", "a/b/7"), ("/7", "/7"),
        ("x", None), ("-1", None), ("f/", None), ("7/f", None), ("1" * 19, None), ("\u0667", None), ("", None),
    ],
)  # fmt: skip
def test_a_number_is_digits_behind_the_name_of_a_series(text: str, same: str | None) -> None:
    found, event = [], Event.create("x.y", app_id="a", chat_id="c", id="e", source="/s", data={})
    for sequence in (text, same or text):
        numbered = event.model_copy(update={"sequence": sequence})
        found.append(number_of(entry(1, numbered), numbered))
    assert found[0] == found[1]
    assert (found[0] is None) == (same is None)


def test_a_series_is_not_a_source_of_the_same_name() -> None:
    event = Event.create("x.y", app_id="a", chat_id="c", id="e", source="s", data={})
    by_source, by_name = (event.model_copy(update={"sequence": each}) for each in ("7", "s/7"))
    assert number_of(entry(1, by_source), by_source) != number_of(entry(1, by_name), by_name)


def test_a_retry_has_no_number() -> None:
    event = Event.create("x.y", app_id="a", chat_id="c", id="e", source="s", data={}).model_copy(
        update={"sequence": "7"}
    )
    again = {**wire.encode(event), wire.RETRY: wire.Retry("0:1:r/m", "r", "m").encode()}
    assert number_of(entry(2, event, again), event) is None


def numbered(recent: RecentEvents, number: int, *, app: str = "acme", series: str = "s", name: str = "e") -> bool:
    return recent.is_copy(of(app, f"{name}{series}{number}"), SeriesPlace(series, number))


def test_a_lower_number_is_a_copy_beyond_the_window_whatever_its_id() -> None:
    recent = RecentEvents(window=3)
    assert [numbered(recent, number) for number in (1, 2, 5, 9, 12)] == [False] * 5  # gaps are allowed
    assert numbered(recent, 1)
    assert numbered(recent, 2, name="other")
    assert not numbered(recent, 2, app="globex")
    assert not numbered(recent, 2, series="t")


def test_an_event_may_come_late_within_the_window() -> None:
    recent = RecentEvents(window=3)
    assert [numbered(recent, number) for number in (1, 4, 3, 2)] == [False] * 4
    assert not numbered(recent, 5)
    assert numbered(recent, 2)


def test_the_series_that_were_silent_longest_are_forgotten() -> None:
    recent = RecentEvents(window=1)
    for series in range(MOST_SERIES + 2):
        numbered(recent, 1, series=str(series))
    assert not numbered(recent, 1, series="0")
    assert numbered(recent, 1, series="5")


def test_a_record_of_marks_survives_the_bus() -> None:
    last = StoredMarks(floor="5-1", marks={"s": 3}, rest={"s": 9}, first="4-0")
    record = AppRecord(app_id="acme", last=last, before=StoredMarks(floor="4-0", marks={}))
    assert AppRecord.decode(record.encode()) == record
    assert (record.at("6-0"), record.at("4-7"), record.at("3-0")) == (last, record.before, None)
    assert AppRecord.of_changed_log("acme").at("9999999999999-0") is None
    for broken in (
        b"",
        b"{}",
        b"[1,2]",
        b'["a",null,null]',
        b'["a",["1",3,{},""],null]',
        b'["a",["1",{"s":"x"},{},""],null]',
    ):
        with pytest.raises(ValueError, match=r"."):
            AppRecord.decode(broken)


def test_a_file_is_a_series_of_its_own() -> None:
    def names(events: Sequence[Event]) -> list[str | None]:
        return [each.sequence for block in numbered_blocks(events) for each in block]

    file = [event("acme", str(number)) for number in range(3)]
    first = names(file)
    assert first == names(file)
    assert [str(each).partition("/")[2] for each in first] == ["0000000001", "0000000002", "0000000003"]
    assert not set(first) & set(names(file[:2]))
    assert not set(first) & set(names([event("globex", each.id) for each in file]))
    sent = [each.model_copy(update={"sequence": sequence}) for each, sequence in zip(file, first, strict=True)]
    assert names(sent) == first  # as `events tail` printed them
    assert names([file[0].model_copy(update={"sequence": "17"})]) == ["17"]  # its source has numbered it


def test_the_blocks_before_a_change_of_a_file_keep_their_numbers() -> None:
    def names(events: Sequence[Event]) -> list[list[str | None]]:
        return [[each.sequence for each in block] for block in numbered_blocks(events, block_bytes=1_000)]

    file = [event("acme", str(number)) for number in range(5)]
    first = names(file)
    assert [len(block) for block in first] == [2, 2, 1]
    assert len({str(name).partition("/")[0] for block in first for name in block}) == 3
    assert [str(name).partition("/")[2] for block in first for name in block] == [f"{n:010}" for n in range(1, 6)]
    longer = names([*file, event("acme", "5"), event("acme", "6")])
    assert (longer[:2], longer[2][0] == first[2][0]) == (first[:2], False)
    changed = names([*file[:2], event("acme", "other"), *file[3:]])
    assert changed[0] == first[0]
    assert not {name for block in changed[1:] for name in block} & {name for block in first for name in block}


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

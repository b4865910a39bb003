"""Segments of the archive: what is written is read, damage is noticed, and each entry is read once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphweft_workers.archive.segments import (
    DamagedSegment,
    Segment,
    app_of,
    decode,
    encode,
    parse_name,
    pieces,
    read_header,
)
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.offsets import offset_order

TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)

fields = st.dictionaries(st.binary(min_size=1, max_size=8), st.binary(max_size=40), max_size=4)
entries_of = st.lists(
    st.builds(
        lambda fields, micros, erased: (({} if erased else fields), TIME + timedelta(microseconds=micros), erased),
        fields,
        st.integers(-(10**15), 10**15),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def entry(number: int, fields: dict[bytes, bytes] | None = None, *, erased: bool = False) -> Entry:
    return Entry(offset=f"{number}-0", fields=fields or {}, received=TIME, erased=erased)


@given(entries_of, st.integers(1, 10**9), st.integers(0, 99))
def test_a_segment_gives_back_the_same_entries(
    given: list[tuple[dict[bytes, bytes], datetime, bool]], first: int, generation: int
) -> None:
    entries = [
        Entry(offset=f"{first + at}-{at}", fields=fields, received=time, erased=erased)
        for at, (fields, time, erased) in enumerate(given)
    ]
    segment, data = encode(3, first, entries, generation=generation)
    assert parse_name(segment.name) == segment
    assert (segment.partition, segment.first, segment.last) == (3, first, first + len(entries) - 1)
    assert decode(segment, data) == entries
    header = read_header(segment, data)
    assert sum(header.apps.values()) == len(entries)
    assert header.erased == sum(each.erased for each in entries)
    assert (header.first_received, header.last_received) == (
        min(each.received for each in entries),
        max(each.received for each in entries),
    )


@given(st.data())
def test_a_damaged_segment_is_not_read(data: st.DataObject) -> None:
    segment, whole = encode(0, 1, [entry(1, {b"data": b"x" * 100}), entry(2)])
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(st.sampled_from([whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], b""]))
    with pytest.raises(DamagedSegment, match="hash"):
        decode(segment, damaged)


def test_other_files_are_no_segments() -> None:
    segment, _ = encode(0, 1, [entry(1)])
    for name in ("", "segments/p00000/x", segment.name + "x", f"a/{segment.name}", segment.name.replace("g0000", "g")):
        assert parse_name(name) is None


def seg(first: int, last: int, generation: int = 0, tag: str = "") -> Segment:
    return Segment(
        name=f"{first}-{last}-{generation}{tag}", partition=0, first=first, last=last, first_offset=str(first),
        last_offset=str(last), generation=generation,
    )  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 10), st.integers(0, 2)), max_size=8))
def test_each_entry_is_read_once_from_the_newest_generation(given: list[tuple[int, int, int]]) -> None:
    segments = [seg(first, first + more, generation, str(at)) for at, (first, more, generation) in enumerate(given)]
    read = [(number, piece.segment) for piece in pieces(segments) for number in range(piece.first, piece.last + 1)]
    numbers = [number for number, _ in read]
    assert numbers == sorted({number for each in segments for number in range(each.first, each.last + 1)})
    for number, source in read:
        holding = [each for each in segments if each.first <= number <= each.last]
        assert source in holding
        assert source.generation == max(each.generation for each in holding)


def test_offsets_are_ordered_as_the_bus_orders_them() -> None:
    assert sorted(["10-2", "9-11", "10-10", ""], key=offset_order) == ["", "9-11", "10-2", "10-10"]
    assert sorted(["10", "9", ""], key=offset_order) == ["", "9", "10"]


@pytest.mark.parametrize(
    ("fields", "app"),
    [
        ({b"content-type": b"application/cloudevents+json", b"data": b'{"appid": "shop"}'}, "shop"),
        ({b"content-type": b"Application/CloudEvents+JSON; x", b"data": b'{"appid": "shop"}'}, "shop"),
        ({b"ce_appid": b"shop"}, "shop"),
        ({b"content-type": b"application/cloudevents+json", b"data": b'{"appid": 1}'}, ""),
        ({b"content-type": b"application/cloudevents+json", b"data": b"[" * 100_000}, ""),
        ({b"content-type": b"application/cloudevents+json", b"data": b"[1]"}, ""),
        ({b"content-type": b"application/cloudevents+json"}, ""),
        ({b"gw_rules": b"1"}, ""),
        ({}, ""),
    ],
)
def test_the_app_of_an_entry_is_found_without_a_check(fields: dict[bytes, bytes], app: str) -> None:
    assert app_of(entry(1, fields)) == app

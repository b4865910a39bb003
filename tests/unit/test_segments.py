"""Segments of the archive: what is written is read, damage is noticed, and each entry is read once."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import zstandard
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


def forged(segment: Segment, data: bytes, change: dict[str, Any]) -> tuple[Segment, bytes]:
    """Return a segment whose description says something else, under a name with the right hash."""
    described, body = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read().split(b"\n", 1)
    described = json.dumps(json.loads(described) | change).encode()
    return named(segment, zstandard.compress(described + b"\n" + body))


def named(segment: Segment, data: bytes, before: str = "", after: str = "") -> tuple[Segment, bytes]:
    """Return bytes under the name of a segment with their hash, in which ``after`` is in place of ``before``."""
    stem = segment.name.rpartition("_")[0]
    assert before in stem
    found = parse_name(f"{stem.replace(before, after)}_{hashlib.sha256(data).hexdigest()[:20]}.jsonl.zst")
    assert found is not None
    return found, data


@pytest.mark.parametrize(
    "change",
    [
        {"times": [0, 0]}, {"erased": 1}, {"first": 2}, {"last": 9}, {"partition": 1}, {"apps": {"a": 7}},
        {"apps": {"a": "x"}}, {"more": 1}, {"times": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_description_that_is_not_that_of_the_entries_is_refused(change: dict[str, Any]) -> None:
    segment, data = encode(0, 1, [entry(1, {b"data": b"x"}), entry(2)])
    assert len(decode(*forged(segment, data, {}))) == 2
    with pytest.raises(DamagedSegment):
        decode(*forged(segment, data, change))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("_1-0_", "_0-5_"), ("_2-0_", "_2-1_"), ("000000000001-", "000000000007-"), ("-000000000002", "-000000000003"),
        ("p00000", "p00001"),
    ],
)  # fmt: skip
def test_a_name_that_is_not_that_of_the_entries_is_refused(before: str, after: str) -> None:
    segment, data = encode(0, 1, [entry(1, {b"data": b"x"}), entry(2)])
    assert len(decode(*named(segment, data))) == 2
    with pytest.raises(DamagedSegment):
        decode(*named(segment, data, before, after))


MICROS = 1_767_323_045_678_901


@pytest.mark.parametrize(
    "row",
    [
        '["2-0",T,[]]', '[2,T,{}]', '["x",T,{}]', '["2-0","T",{}]', '["2-0",1e400,{}]', '["2-0",T,{"a":5}]',
        '["2-0",T,{"a":["#"]}]', '["2-0",T,{"a":[]}]', '["2-0",T,{"\u1234":""}]', '["2-0",T,{},1]', '["2",T]', "[]",
        "{}", "null", "", "[" * 5_000, '["1-0",T,{}]', '["2-0",T,null]',
    ],
    ids=lambda row: row[:20],
)  # fmt: skip
def test_what_is_no_entry_is_refused(row: str) -> None:
    segment, data = encode(0, 1, [entry(1), entry(2)])
    text = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read().split(b"\n")
    for last, refused in (('["2-0",T,{"a":["YQ=="],"b":"c"}]', False), (row, True)):
        lines = [*text[:2], last.replace("T", str(MICROS)).encode(), b""]
        with pytest.raises(DamagedSegment) if refused else nullcontext():
            decode(*named(segment, zstandard.compress(b"\n".join(lines))))


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

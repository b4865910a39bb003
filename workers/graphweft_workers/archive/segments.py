"""Segments: files that hold consecutive entries of one partition. Pure.

A segment is two Zstandard frames: a line of JSON that describes it, and one line for each entry. ``zstd -dc`` prints
both. Its name says which entries it holds, and ends with the hash of its bytes, so a folder's listing is its index, and
a damaged file is known. Entries are numbered from 1 in each partition, trimmed ones included.

Several writers may write the same entries, in the same segment or in segments that overlap: the log never changes, so
they hold the same. A segment with a higher generation has been rewritten, because entries were erased, and replaces
what it covers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, cast

import zstandard

from graphweft_contracts import wire
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.offsets import offset_order
from graphweft_workers.text.content_limits import MOST_VALUES, TooMuch, zstd_lines

FOLDER: Final = "segments"
_LEVEL: Final = 3
_HASH_DIGITS: Final = 20
_VERSION: Final = 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
MOST_BYTES: Final = 64 * 1024**2
"""A file that unpacks to more is damaged or hostile: a segment has 8 MiB of entries, or a single larger one."""
_MOST_ENTRIES: Final = 100_000
_DAMAGED: Final = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, StopIteration)
_NAME: Final = re.compile(
    r"segments/p(?P<partition>[0-9]{5})/(?P<first>[0-9]{12})-(?P<last>[0-9]{12})_"
    r"(?P<first_offset>[0-9-]+)_(?P<last_offset>[0-9-]+)_g(?P<generation>[0-9]{4})_(?P<hash>[0-9a-f]{20})\.jsonl\.zst"
)


class DamagedSegment(Exception):
    """A file is not the segment that its name says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What the name of a segment says."""

    name: str
    partition: int
    first: int
    """The number of its first entry."""
    last: int
    first_offset: str
    last_offset: str
    generation: int
    """How often its entries have been rewritten."""

    @property
    def count(self) -> int:
        """The number of its entries."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPiece:
    """Consecutive entries, and the segment to read them from, which may hold more."""

    segment: Segment
    first: int
    last: int


def folder_of(partition: int) -> str:
    """Return the prefix of the names of a partition's segments."""
    return f"{FOLDER}/p{partition:05}/"


def parse_name(name: str) -> Segment | None:
    """Return the segment with a name; None for another file."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return Segment(
        name=name,
        partition=int(found["partition"]),
        first=int(found["first"]),
        last=int(found["last"]),
        first_offset=found["first_offset"],
        last_offset=found["last_offset"],
        generation=int(found["generation"]),
    )


def encode(partition: int, first: int, entries: Sequence[Entry], *, generation: int = 0) -> tuple[Segment, bytes]:
    """Return a segment of at least one entry, and its bytes; ``first`` is the number of the first entry."""
    apps = Counter(app_of(entry) for entry in entries)
    header = {**_description(partition, first, entries), "apps": dict(sorted(apps.items()))}
    body = "\n".join(json.dumps(_row(entry), ensure_ascii=False, separators=(",", ":")) for entry in entries)
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    data = compressor.compress(f"{json.dumps(header)}\n".encode()) + compressor.compress(f"{body}\n".encode())
    name = (
        f"{folder_of(partition)}{first:012}-{header['last']:012}_{entries[0].offset}_{entries[-1].offset}"
        f"_g{generation:04}_{hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]}.jsonl.zst"
    )
    segment = parse_name(name)
    if segment is None:
        raise ValueError(f"no name of a segment: {name!r}")
    return segment, data


def decode(segment: Segment, data: bytes) -> list[Entry]:
    """Return the entries of a segment.

    Raises ``DamagedSegment`` if its bytes do not have its hash, if its name or its description say something else than
    its entries, or if it unpacks to more than a segment may hold.
    """
    found = segment.name.rpartition("_")[2].partition(".")[0]
    if hashlib.sha256(data).hexdigest()[:_HASH_DIGITS] != found:
        raise DamagedSegment(f"{segment.name}: its bytes do not have the hash that its name says")
    try:
        lines = zstd_lines(data, most_bytes=MOST_BYTES, most_lines=_MOST_ENTRIES + 1)
        described: Any = json.loads(next(lines))
        if described["version"] != _VERSION:
            raise DamagedSegment(f"{segment.name}: made by another version of graphweft: {described['version']}")
        entries = list(_entries(lines))
        places = [offset_order(entry.offset) for entry in entries]
        expected = _description(segment.partition, segment.first, entries)
        same = sum(described.pop("apps").values()) == len(entries) and described == expected
    except (*_DAMAGED, zstandard.ZstdError) as error:
        raise DamagedSegment(f"{segment.name}: {type(error).__name__}: {error}") from error
    if len(entries) != segment.count:
        raise DamagedSegment(f"{segment.name}: holds {len(entries)} entries, not {segment.count}")
    if any(one >= other for one, other in pairwise(places)):
        raise DamagedSegment(f"{segment.name}: its entries are not in order")
    if (entries[0].offset, entries[-1].offset) != (segment.first_offset, segment.last_offset):
        raise DamagedSegment(f"{segment.name}: its entries are those from {entries[0].offset} to {entries[-1].offset}")
    if not same:
        raise DamagedSegment(f"{segment.name}: its description is not that of its entries")
    return entries


def _description(partition: int, first: int, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return what the first line of a segment says of its entries, beside their apps. People read it."""
    times = [_micros(entry.received) for entry in entries]
    return {
        "version": _VERSION,
        "partition": partition,
        "first": first,
        "last": first + len(entries) - 1,
        "times": [min(times), max(times)],
        "erased": sum(entry.erased for entry in entries),
    }


def _entries(lines: Iterable[bytes]) -> Iterator[Entry]:
    fields = 0
    for line in lines:
        entry = _entry(json.loads(line))
        fields += len(entry.fields)
        if fields > MOST_VALUES:
            raise TooMuch(f"its entries have more than {MOST_VALUES:,} fields")
        yield entry


def pieces(segments: Iterable[Segment]) -> list[SegmentPiece]:
    """Return which entries to read from which segment, in order; each entry once, missing ones left out.

    Of segments that hold the same entry, the one with the highest generation counts, then the one that reaches
    furthest.
    """
    given = sorted(segments, key=lambda each: each.first)
    edges = sorted({each.first for each in given} | {each.last + 1 for each in given})
    found: list[SegmentPiece] = []
    active: list[Segment] = []
    at = 0
    for start, end in pairwise(edges):
        while at < len(given) and given[at].first <= start:
            active.append(given[at])
            at += 1
        active = [each for each in active if each.last >= start]
        if not active:
            continue
        best = max(active, key=lambda each: (each.generation, each.last, each.first, each.name))
        if found and found[-1].segment == best and found[-1].last == start - 1:
            found[-1] = SegmentPiece(segment=best, first=found[-1].first, last=end - 1)
        else:
            found.append(SegmentPiece(segment=best, first=start, last=end - 1))
    return found


def app_of(entry: Entry) -> str:
    """Return the app that an entry names, without a check of the event; empty if it names none."""
    name: Any = entry.fields.get(b"ce_appid")
    if name is not None:
        return str(name.decode(errors="replace"))
    if not entry.fields.get(wire.CONTENT_TYPE, b"").lower().startswith(wire.STRUCTURED):
        return ""
    try:
        event: Any = json.loads(entry.fields.get(wire.DATA, b""))
    except (ValueError, RecursionError):
        return ""
    name = cast("dict[str, Any]", event).get("appid") if isinstance(event, dict) else None
    return name if isinstance(name, str) and name.isprintable() else ""


def _row(entry: Entry) -> list[Any]:
    if entry.erased:
        return [entry.offset, _micros(entry.received), None]
    return [entry.offset, _micros(entry.received), {_text(k): _value(v) for k, v in entry.fields.items()}]


def _entry(row: Any) -> Entry:
    offset, micros, fields = row
    if fields is None:
        return Entry(offset=offset, fields={}, received=_time(micros), erased=True)
    return Entry(
        offset=offset, fields={_bytes(k): _bytes_of(v) for k, v in fields.items()}, received=_time(micros)
    )  # fmt: skip


def _text(name: bytes) -> str:
    return name.decode("latin-1")


def _bytes(name: str) -> bytes:
    return name.encode("latin-1")


def _value(value: bytes) -> str | list[str]:
    """Return text as it is, for people and for compression; other bytes as base64 in a list."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return [base64.b64encode(value).decode()]


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    [text] = value
    return base64.b64decode(text, validate=True)


def _micros(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def _time(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)

"""A recorded log as entries: an export, a file with JSON lines, or events in memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, Final, cast

from pydantic_core import from_json, to_json

from graphweft_contracts import Event, InvalidEvent, wire
from graphweft_contracts.rules_log import only_announces
from graphweft_rules.rule_tests.events import FIRST_TIME, STEP
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.testing.exported_log import exported_entries

type Log = str | PathLike[str] | Iterable[Event | Mapping[str, Any]]
"""A file of ``graphweft export``, a file with one JSON object on each line, or events."""

_EXPORT: Final = b"about.json\0"
"""How a file of ``graphweft export`` begins: with the header of its first member."""
_WITHOUT_EVENT: Final = ("activation", "drop")
"""Kinds of entries, as ``graphweft events tail --json`` prints them, that hold no event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEntry:
    """An entry of a recorded log."""

    number: int
    """Its line in the file, or its number among the events of an export or in memory, from 1."""
    partition: int
    entry: Entry


def recorded_entries(log: Log) -> Iterator[RecordedEntry]:
    """Yield the entries that hold events or should, in log order.

    A line or an item is an event, as ``graphweft emit`` reads it, or an entry as ``graphweft events tail --json``
    prints it. An event without a time happens one second after the one before, so that a replay gives the same each
    time.

    Raises ``InvalidEvent`` if the file cannot be read, and ``InvalidExport`` for a damaged export.
    """
    if isinstance(log, str | PathLike) and _is_export(Path(log)):
        entries = (item for item in exported_entries(Path(log)) if _holds_event(item[1]))
        for number, (partition, entry) in enumerate(entries, start=1):
            yield RecordedEntry(number=number, partition=partition, entry=entry)
        return
    received = FIRST_TIME
    for number, item in _items(log):
        partition, read = 0, _attributes(item)
        if "kind" in read and "position" in read:
            if read["kind"] in _WITHOUT_EVENT:
                continue
            received = _time(read.get("received")) or received
            try:
                fields, partition = _printed_fields(read), int(read["partition"])
            except (LookupError, TypeError, ValueError) as error:
                message = f"entry {number} is none that `graphweft events tail --json` printed: {error!r}"
                raise InvalidEvent(message) from error
        else:
            received = (item.time if isinstance(item, Event) else _time(read.get("time"))) or received
            fields = _fields(item)
        entry = Entry(offset=str(number), fields=fields, received=received)
        yield RecordedEntry(number=number, partition=partition, entry=entry)
        received += STEP


def _is_export(file: Path) -> bool:
    try:
        with file.open("rb") as given:
            return given.read(len(_EXPORT)) == _EXPORT
    except OSError as error:
        raise InvalidEvent(f"{file}: {error.strerror}: give a file with one event on each line") from error


def _holds_event(entry: Entry) -> bool:
    return not only_announces(entry.fields) and wire.DROPPED not in entry.fields


def _items(log: Log) -> Iterator[tuple[int, bytes | Event | Mapping[str, Any]]]:
    if not isinstance(log, str | PathLike):
        yield from enumerate(log, start=1)
        return
    for number, line in enumerate(Path(log).read_bytes().removeprefix(codecs.BOM_UTF8).splitlines(), start=1):
        if line.strip():
            yield number, line


def _fields(item: bytes | Event | Mapping[str, Any]) -> dict[bytes, bytes]:
    if isinstance(item, Event):
        return wire.encode(item)
    return {wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: item if isinstance(item, bytes) else to_json(item)}


def _printed_fields(printed: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Return the fields of an entry that ``graphweft events tail --json`` printed."""
    if "event" not in printed:
        return wire.unpack(printed["fields"])
    fields = _fields(cast("Mapping[str, Any]", printed["event"]))
    if "retry" in printed:
        fields[wire.RETRY] = wire.Retry(**printed["retry"]).encode()
    return fields


def _attributes(item: bytes | Event | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a line or a mapping holds; nothing of a line that is no JSON object, which is an invalid event."""
    if isinstance(item, Event):
        return {}
    if not isinstance(item, bytes):
        return item
    try:
        read: Any = from_json(item)
    except ValueError:
        return {}
    return cast("dict[str, Any]", read) if isinstance(read, dict) else {}


def _time(value: object) -> datetime | None:
    """Return a time; None if it is none, or one that the event's check refuses."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    return value if isinstance(value, datetime) and value.tzinfo is not None else None

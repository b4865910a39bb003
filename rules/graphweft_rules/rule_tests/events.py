"""Reads the events of a case: maps in the test file, or the lines of a file with one JSON event on each."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_core import from_json

from graphweft_contracts import Event
from graphweft_contracts.admission import admission_faults
from graphweft_contracts.events import payload_of
from graphweft_rules.files.file_bytes import MAX_BYTES
from graphweft_rules.files.form_reader import FormReader
from graphweft_rules.files.model import Place
from graphweft_rules.files.tree import Broken, Items, KeyTable, Node, Scalar, TableEntry, plain
from graphweft_rules.rule_tests import form

FIRST_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The time of the first event, if it has none. Each later event without a time follows one second after the last."""
STEP: Final = timedelta(seconds=1)
CHAT: Final = "test"
"""The chat of events and requests that name none."""
_APP: Final = "test"
_SOURCE: Final = "/test"
_SHORT: Final = {"chat": "chatid", "user": "userid"}
_IN_DATA: Final = {"agent": "agent_name", "context": "context"}
"""Short keys, and the attributes and fields of ``data`` that they stand for."""

type _Locate = Callable[[Sequence[str | int]], Place]


class Events:
    """Reads the events of one case in order."""

    def __init__(self, reader: FormReader, folder: Path, workflow: str, read: Callable[[Path], bytes]) -> None:
        """Paths of files are relative to ``folder``. Findings go to ``reader``."""
        self._reader = reader
        self._folder = folder
        self._workflow = workflow
        self._read = read
        self._apps: dict[str, Place] = {}
        self.last_time = FIRST_TIME - STEP
        self.last_chat = CHAT
        self.events: list[Event] = []
        self.places: list[Place] = []

    def read(self, items: Iterable[Node]) -> None:
        """Read the items of ``events``."""
        for item in items:
            if isinstance(item, Scalar):
                self._file(item)
            else:
                self._inline(item)

    def _inline(self, node: Node) -> None:
        entries = self._reader.table(node, form.EVENT).entries
        if not isinstance(node, KeyTable) or "type" not in entries or is_broken(node):
            return
        fields: dict[str, Any] = {key: plain(entry.value) for key, entry in entries.items()}
        data_node = entries["data"].value if "data" in entries else None
        if data_node is not None and not isinstance(data_node, KeyTable):
            self._reader.wrong_type(data_node, "data", "a mapping")
            return
        data: dict[str, Any] = dict(fields.get("data") or {})
        for short, long, holder in [
            *((short, long, fields) for short, long in _SHORT.items()),
            *((short, long, data) for short, long in _IN_DATA.items()),
        ]:
            if short not in entries:
                continue
            value = fields.pop(short)
            if long in holder and holder is not fields:
                self._twice(short, f"data.{long}", entries)
            elif long in holder:
                self._twice(short, long, entries)
            else:
                holder[long] = value
        fields["data"] = data

        def locate(steps: Sequence[str | int]) -> Place:
            return _locate(node, entries, steps)

        self._add(fields, locate, node.place)

    def _twice(self, short: str, long: str, entries: Mapping[str, TableEntry]) -> None:
        self._reader.error("repeated-key", f"{short!r} is short for {long!r}: keep one of them", entries[short].key)

    def _file(self, node: Scalar) -> None:
        name = self._reader.string(node, "events", "a list of events, or a path to a file with JSON lines")
        if not name:
            return
        path = self._folder / name
        try:
            content = self._read(path)
            if len(content) > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES:,} bytes: split it")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            message = f"the file {str(path)!r} cannot be read ({why}): its path is relative to this file's folder"
            self._reader.error("unreadable-file", message, node.place)
            return
        for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).splitlines(), start=1):
            if line.strip():
                self._line(line, Place(file=str(path), line=number))

    def _line(self, line: bytes, place: Place) -> None:
        try:
            fields: Any = from_json(line)
        except ValueError as error:
            self._reader.error("invalid-event", f"this line is not JSON ({error}): write one event on each line", place)
            return
        if not isinstance(fields, dict):
            self._reader.error("invalid-event", "this line is not a JSON object: write one event on each line", place)
            return
        self._add(cast("dict[str, Any]", fields), lambda _: place, place)

    def _add(self, given: Mapping[str, Any], locate: _Locate, place: Place) -> None:
        """Add an event; report its faults."""
        fields = {name: value for name, value in given.items() if value is not None}
        defaults: dict[str, Any] = {
            "id": f"event-{len(self.events) + 1}",
            "source": _SOURCE,
            "time": self.last_time + STEP,
            "chatid": CHAT,
            "appid": _APP,
            "workflow": self._workflow,
        }
        stated = fields.get("appid")
        try:
            event = Event.model_validate({**defaults, **fields})
        except ValidationError as error:
            self._report(error, fields, locate)
            return
        for where, message in admission_faults(event, now=event.time):
            self._reader.error("invalid-event", f"{'.'.join(where)}: {message}", locate(where))
        if isinstance(stated, str):
            first = next(iter(self._apps), stated)
            self._apps.setdefault(stated, place)
            if first != stated:
                message = f"this event is of the app {stated!r}, and an earlier one of {first!r}: a case has one app"
                self._reader.error("several-apps", message, locate(("appid",)))
        self.last_time = event.time
        self.last_chat = event.chatid
        self.events.append(event)
        self.places.append(place)

    def _report(self, error: ValidationError, fields: Mapping[str, Any], locate: _Locate) -> None:
        """Report each fault, those of ``data`` at their own places."""
        found = [(tuple(item["loc"]), item["msg"]) for item in _errors(error)]
        type, data = fields.get("type"), fields.get("data", {})
        if isinstance(type, str):
            try:
                payload_of(type).model_validate(data)
            except ValidationError as inner:
                found = [each for each in found if each[0][:1] and each[0][0] in Event.model_fields]
                found += [(("data", *item["loc"]), item["msg"]) for item in _errors(inner)]
        for steps, message in found:
            name = ".".join(map(str, steps)) or "event"
            place = locate(steps)
            self._reader.error("invalid-event", f"{name}: {message}", place)


def _errors(error: ValidationError) -> Sequence[Any]:
    return error.errors(include_input=False, include_url=False, include_context=False)


def _locate(node: KeyTable, entries: Mapping[str, TableEntry], steps: Sequence[str | int]) -> Place:
    """Return the place of the value at ``steps``, or of the nearest value around it; short keys are known."""
    path = list(steps)
    for short, long in _SHORT.items():
        if path[:1] == [long] and short in entries:
            path[:1] = [short]
    for short, long in _IN_DATA.items():
        if path[:2] == ["data", long] and short in entries:
            path[:2] = [short]
    found: Node = node
    for step in path:
        if isinstance(found, KeyTable) and str(step) in found.entries:
            found = found.entries[str(step)].value
        elif isinstance(found, Items) and isinstance(step, int) and step < len(found.items):
            found = found.items[step]
        else:
            break
    return found.place


def is_broken(node: Node) -> bool:
    """Return whether a value, or a value inside it, has a finding already."""
    match node:
        case Broken():
            return True
        case Items():
            return any(map(is_broken, node.items))
        case KeyTable():
            return any(is_broken(entry.value) for entry in node.entries.values())
        case Scalar():
            return False

"""Selects from the log what belongs to one app. Pure.

An entry of another app keeps its place, its offset and its time, and loses its content, as an erased one does. So the
offsets, the order and the window in which copies are recognised stay as they are. A retry or a drop that signatures
refuse is of nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from graphweft_contracts import DeadLetter, InvalidEvent, RefusedEvent, wire
from graphweft_contracts.dead_letters import UNREAD
from graphweft_contracts.errors import MisplacedEvent
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import Activation, announced, restated_scope
from graphweft_workers.archive import segments as format_
from graphweft_workers.ports.event_log import Entry

_BY_ENTRY: Final = UNREAD | {"set_aside"}
"""Reasons of dead letters that may name no app: letters of the app's entries are kept."""


def app_named(entry: Entry) -> str:
    """Return the app of an entry: of its event, or, if it is no valid event, the one that it names; empty for none."""
    try:
        return wire.decode(entry.fields, received=entry.received).appid
    except Exception:  # noqa: BLE001 - any content may stand in a log
        return format_.app_of(entry)


def app_of_letter(letter: DeadLetter) -> str:
    """Return the app of the event in a dead letter; empty for none."""
    return app_named(Entry(offset=letter.offset, fields=wire.unpack(letter.fields), received=letter.time))


def belongs(entry: Entry, app_id: str, *, activations: int) -> bool:
    """Tell whether an entry is of an app. Entries that announce one of the first ``activations`` are of no app."""
    number = announced(entry.fields)
    if entry.erased or (number is not None and 0 < number <= activations):
        return False
    try:
        dropped = wire.dropped_of(entry.fields)
    except InvalidEvent:
        dropped = None
    return (app_named(entry) if dropped is None else dropped.app_id) == app_id


def is_event(entry: Entry, app_id: str) -> bool:
    """Tell whether an entry is an event of an app, or an invalid one that names it."""
    return not entry.erased and wire.DROPPED not in entry.fields and app_named(entry) == app_id


def _is_refused(entry: Entry) -> bool:
    """Tell whether signatures refuse a retry or a drop. Whoever reads the history alone has no keys to refuse it by."""
    try:
        if wire.DROPPED in entry.fields:
            entry.dropped()
        elif wire.RETRY in entry.fields:
            entry.event()
    except (MisplacedEvent, RefusedEvent):
        return True
    except Exception:  # noqa: BLE001 - any content may stand in a log
        return False
    return False


class AppPart:
    """Selects what belongs to one app from one partition, in log order."""

    def __init__(self, app_id: str, *, activations: int) -> None:
        """``activations`` is the number of rule activations of the log."""
        self._app_id = app_id
        self._activations = activations
        self.own: set[str] = set()
        """Offsets of the app's entries."""

    def of(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries; other apps' have no content."""
        return [self._of(entry) for entry in entries]

    def _of(self, entry: Entry) -> Entry:
        if _is_refused(entry):
            return replace(entry, fields={}, erased=True)
        if belongs(entry, self._app_id, activations=self._activations):
            self.own.add(entry.offset)
            return entry
        fields = self._of_all_apps(entry)
        if fields is not None:
            self.own.add(entry.offset)
        return replace(entry, fields=fields or {}, erased=fields is None)

    def _of_all_apps(self, entry: Entry) -> dict[bytes, bytes] | None:
        """Return a drop that names no app, for this app's entries only; None for anything else."""
        try:
            dropped = wire.dropped_of(entry.fields)
        except InvalidEvent:
            return None
        if dropped is None or dropped.app_id is not None:
            return None
        offsets = tuple(each for each in dropped.offsets if each in self.own)
        if not offsets:
            return None
        return {wire.DROPPED: dropped._replace(app_id=self._app_id, offsets=offsets).encode()}

    def letter(self, letter: DeadLetter) -> DeadLetter | None:
        """Return what a dead letter of the partition says of the app's entries; None for nothing."""
        if letter.reason == "trimmed":  # it stands for events that the log lacks
            return None
        if letter.app_id not in (None, self._app_id) or (letter.app_id is None and letter.reason not in _BY_ENTRY):
            return None
        offsets = tuple(each for each in letter.entries if each in self.own)
        if not offsets:
            return None
        if not letter.offsets or (letter.app_id and offsets == letter.offsets):
            return letter
        return letter.of_entries(offsets).model_copy(update={"app_id": self._app_id, "fields": {}})


def applies_to(activation: Activation, app_id: str) -> bool:
    """Tell whether an activation is for the app, for its past, or for all apps."""
    return activation.scope in (app_id, restated_scope(app_id), ALL_APPS)


def activations_of(activations: Sequence[Activation], app_id: str, partitions: Iterable[int]) -> list[Activation]:
    """Return the activations that apply to the app, numbered from 1, at their places in some partitions."""
    wanted = set(partitions)
    found = [each for each in activations if applies_to(each, app_id)]
    return [
        replace(
            each, number=number,
            positions={partition: offset for partition, offset in each.positions.items() if partition in wanted},
        )
        for number, each in enumerate(found, 1)
    ]  # fmt: skip

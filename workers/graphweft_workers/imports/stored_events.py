"""Makes events of the items of an export, which fit the contract and the bus, and counts what becomes of each item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

from pydantic import ValidationError

from graphweft.memory import chat_of
from graphweft.transport import MAX_EVENT_BYTES
from graphweft_contracts import Event, InvalidEvent, MemoryScope, wire
from graphweft_contracts.admission import check_admission
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.imports.item_fields import Fields
from graphweft_workers.imports.items import ImportItem
from graphweft_workers.imports.report import ImportReport, RefusedItem

MOST_COMPARED: Final = 500_000
"""Items that are compared to find repeated ones. Of a later copy, the bus takes a second event, without effect."""

_OVERHEAD: Final = 1_000
"""Bytes of an event's key and field names, at most."""
_MOST_EVENTS: Final = 500
_MOST_CHARACTERS: Final = 4_000_000
"""Of the data of a group. A single event has up to a million bytes."""


class ImportedItem(NamedTuple):
    """An event, what it holds, and the time of its item."""

    event: Event
    kind: str
    time: datetime | None


class Store(Protocol):
    """What the importer knows of the exports of a store."""

    @property
    def sections(self) -> tuple[str, ...]:
        """Names of the arrays of items in a JSON document, in the order in which they are read."""
        ...

    @property
    def ends(self) -> tuple[str, ...]:
        """Fields that say when an item ends, which its event keeps; other such fields are refused."""
        ...

    def event_of(self, item: Fields, app_id: str, otherwise: MemoryScope | None) -> ImportedItem | None:
        """Return the event of an item, or None if it needs none. Raises ``RefusedItem``."""
        ...


def make_event(
    type: str,
    app_id: str,
    scope: MemoryScope,
    data: Mapping[str, Any],
    *,
    id: str,
    source: str,
    time: datetime | None,
) -> Event:
    """Return an event in the chat of the scope, at the time of the item or now. Raises ``RefusedItem``."""
    try:
        event = Event.create(
            type,
            app_id=app_id,
            chat_id=chat_of(scope),
            user_id=scope.user_id,
            data={**scope.given, **data},
            id=id,
            source=source,
            time=time,
        )
        check_admission(event)
        fields = wire.encode(event)
        if sum(map(len, fields.values())) > MAX_EVENT_BYTES - _OVERHEAD:
            raise RefusedItem(f"it has more than {MAX_EVENT_BYTES - _OVERHEAD:,} bytes as an event: split it")
        if "metadata" in data:
            wire.decode(fields)  # what nests too deeply can be written but not read
    except ValidationError as error:
        raise RefusedItem(wire.explain(error)) from None
    except InvalidEvent as error:
        raise RefusedItem(str(error)) from None
    return event


def grouped(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Yield the events in groups of a limited size, each as soon as it is complete."""
    group: list[Event] = []
    characters = 0
    for event in events:
        group.append(event)
        characters += len(repr(event.data))
        if len(group) == _MOST_EVENTS or characters >= _MOST_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def events_of_items(
    items: Iterable[ImportItem],
    store: Store,
    report: ImportReport,
    *,
    app_id: str,
    otherwise: MemoryScope | None = None,
    now: datetime | None = None,
) -> Iterator[Event]:
    """Yield the events of items, in their order. Items that are refused or repeated are counted in ``report``.

    ``otherwise`` is the scope of items that name none. All events are of the app ``app_id``, whatever items say.
    """
    now = now or SYSTEM_CLOCK.now()
    seen: set[str] = set()
    for place, value in items:
        try:
            fields = Fields(value, report, now=now)
            fields.check_counts(store.ends)
            made = store.event_of(fields, app_id, otherwise)
        except RefusedItem as refused:
            report.refuse(place, str(refused))
            continue
        if made is None:
            continue
        if made.event.id in seen:
            report.repeated += 1
            continue
        if len(seen) < MOST_COMPARED:
            seen.add(made.event.id)
        report.made(made.kind, made.time)
        yield made.event

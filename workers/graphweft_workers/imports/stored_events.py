"""Makes events of the items of a store's export, and counts what becomes of each item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from graphweft_contracts import Event, MemoryScope
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.imports.item_fields import Fields
from graphweft_workers.imports.items import ImportItem
from graphweft_workers.imports.made_events import Store
from graphweft_workers.imports.report import ImportReport, RefusedItem

MOST_COMPARED: Final = 500_000
"""Items that are compared to find repeated ones. Of a later copy, the bus takes a second event, without effect."""

_MOST_EVENTS: Final = 500
_MOST_CHARACTERS: Final = 4_000_000
"""Of the data of a group. A single event has up to a million bytes."""


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
            fields.check_counts()
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

"""Events made of the items of another store: they fit the contract and the bus."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

from pydantic import ValidationError

from graphweft.memory import chat_of
from graphweft.transport import MAX_EVENT_BYTES
from graphweft_contracts import Event, InvalidEvent, MemoryScope, wire
from graphweft_contracts.admission import check_admission
from graphweft_workers.imports.item_fields import Fields
from graphweft_workers.imports.report import RefusedItem

_OVERHEAD: Final = 1_000
"""Bytes of an event's key and field names, at most."""


class Made(NamedTuple):
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

    def event_of(self, item: Fields, app_id: str, otherwise: MemoryScope | None) -> Made | None:
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

"""What a gateway or a client refuses before it stands on the bus, beyond the contract of events.

Workers do not ask this of what is on the log already: a clock that is right today was not always, and a log is read
for years.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from graphweft_contracts.episodes import attributes_fault
from graphweft_contracts.errors import InvalidEvent
from graphweft_contracts.events import Event

MOST_AHEAD: Final = timedelta(days=1)
"""By so much the time of an event may be ahead of the clock of who takes it."""
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)


def admission_faults(event: Event, *, now: datetime | None = None) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what is wrong with an event that is to be published: where in it, and what to do. It quotes no payload."""
    now = now or datetime.now(UTC)
    if event.time < _EARLIEST:
        yield ("time",), "it is before 1970-01-01: give the time at which it happened, or leave it out for now"
    elif event.time - now > MOST_AHEAD:
        yield (
            ("time",),
            f"it is more than a day ahead of the clock here, {now:%Y-%m-%dT%H:%MZ}: correct the sender's clock, or "
            "leave it out for now",
        )
    where: tuple[str, ...]
    match event.type:
        case "episode.add" if event.data.get("episode_type") == "json":
            where, said = ("data", "content"), _read(event.data.get("content"))
        case "episode.extracted":
            where, said = ("data",), event.data
        case _:
            return
    if fault := attributes_fault(_attributes(said)):
        yield where, fault


def check_admission(event: Event, *, now: datetime | None = None) -> None:
    """Raise ``InvalidEvent`` for the first of ``admission_faults``."""
    for where, fault in admission_faults(event, now=now):
        raise InvalidEvent(f"{'.'.join(where)}: {fault}")


def _read(content: Any) -> Any:
    if not isinstance(content, str):
        return content
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None  # a worker says what is wrong with it


def _attributes(said: Any) -> Iterator[Mapping[str, Any]]:
    """Yield what entities have beside type and name, whatever else is wrong with them."""
    entities: Any = cast("dict[str, Any]", said).get("entities") if isinstance(said, dict) else None
    for entity in cast("list[Any]", entities) if isinstance(entities, list | tuple) else ():
        if isinstance(entity, dict):
            given = cast("dict[str, Any]", entity)
            yield {name: value for name, value in given.items() if name not in ("type", "name") and value is not None}

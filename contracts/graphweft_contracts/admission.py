"""Checks that a gateway or a client makes before it publishes an event, beyond the contract of events.

Workers do not repeat them: an event on the log stays valid, even if its sender's clock was wrong.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Final, cast

from graphweft_contracts import wire
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.episodes import attributes_fault
from graphweft_contracts.errors import InvalidEvent
from graphweft_contracts.events import LIFECYCLE, Event, payload_of, registered_payloads

MOST_AHEAD: Final = timedelta(days=1)
"""How far the time of an event may be ahead of the receiver's clock."""
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TYPO: Final = 0.85
_BLANK: Final = "expected some text, found only white space"
_NUMBER: Final = re.compile(r"[+-]?[0-9.]+")


def time_faults(attributes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (name, fault) of times that are numbers, also as text: the model would guess seconds or milliseconds."""
    for name in ("time", "recordedtime"):
        value = attributes.get(name)
        if isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value)):
            yield name, "expected a text such as 2026-02-01T10:00:00Z, found a number"


def renamed(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of an event that somebody gives, its data as of ``Payload.renamed``."""
    kind, data = attributes.get("type"), attributes.get("data")
    if not isinstance(kind, str) or not isinstance(data, dict):
        return attributes
    return {**attributes, "data": payload_of(kind).renamed(cast("dict[str, Any]", data))}


def admission_faults(event: Event, *, now: datetime | None = None) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the faults of an event as (location, message). A message never quotes the payload."""
    now = now or SYSTEM_CLOCK.now()
    if event.time < _EARLIEST:
        yield ("time",), "it is before 1970-01-01: give the time of the event, or omit it for the current time"
    elif event.time - now > MOST_AHEAD:
        yield (
            ("time",),
            f"it is more than a day ahead of the clock here, {now:%Y-%m-%dT%H:%MZ}: correct the sender's "
            "clock, or omit the time",
        )
    yield from (
        ((*where, "text"), _BLANK) for where, text in _remembered(event) if isinstance(text, str) and text.isspace()
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


def hints_of(event: Event, seen: set[str], *, most: int) -> Iterator[tuple[str, str]]:
    """Yield (attribute, hint) of what is probably misspelt in a valid event: an attribute, or the type.

    ``seen`` gets each unknown name that was looked at, so none is twice; it grows up to ``most``.
    """
    for name in list((event.model_extra or {}).keys() - seen):
        if len(seen) >= most:
            return
        seen.add(name)
        if near := wire.did_you_mean(name, Event.model_fields.keys() - event.model_fields_set, closeness=_TYPO):
            yield name, f"{name!r} is not an attribute that graphweft reads{near}"
    if event.type in LIFECYCLE or event.type in seen or len(seen) >= most:
        return
    seen.add(event.type)
    known = registered_payloads()
    if event.type not in known and (near := wire.did_you_mean(event.type, known.keys(), closeness=_TYPO)):
        yield "type", f"{event.type!r} is a type of your own{near}"


def check_admission(event: Event, *, now: datetime | None = None) -> None:
    """Raise ``InvalidEvent`` for the first of ``admission_faults``."""
    for where, fault in admission_faults(event, now=now):
        raise InvalidEvent(f"{'.'.join(where)}: {fault}")


def decode_given(text: bytes, received: datetime) -> Event:
    """Return the event that somebody gives as a JSON object. Without ``time`` it happened when it was ``received``.

    Raises ``InvalidEvent`` for its first fault: of the contract, of its admission, or a number that JSON does not have.
    """
    attributes = wire.attributes_of({wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: text})
    for name, fault in time_faults(attributes):
        raise InvalidEvent(f"{name}: {fault}")
    event = wire.event_of(renamed(attributes), received)
    check_admission(event, now=received)
    if (place := _not_finite(event.data)) is not None:
        raise InvalidEvent(f"data{place}: NaN, infinity and numbers beyond 1.8e308 are not JSON: give null or a text")
    return event


def _remembered(event: Event) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what memories shall say, each with the place of what says it."""
    if event.type == "memory.update":
        yield ("data",), event.data.get("text")
    elif event.type == "memory.add":
        for number, message in enumerate(cast("list[Any]", event.data["messages"])):
            if isinstance(message, dict):
                yield ("data", "messages", str(number)), cast("dict[str, Any]", message).get("text")


def _read(content: Any) -> Any:
    if not isinstance(content, str):
        return content
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None  # the worker reports the fault


def _attributes(said: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the attributes of each entity, whatever else is wrong with it."""
    entities: Any = cast("dict[str, Any]", said).get("entities") if isinstance(said, dict) else None
    for entity in cast("list[Any]", entities) if isinstance(entities, list | tuple) else ():
        if isinstance(entity, dict):
            given = cast("dict[str, Any]", entity)
            yield {name: value for name, value in given.items() if name not in ("type", "name") and value is not None}


def _not_finite(value: object) -> str | None:
    """Return the place of the first number that is NaN or infinite: the parser takes both, and 1e400 as infinity."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    if isinstance(value, dict):
        for name, each in cast("dict[str, object]", value).items():
            if (place := _not_finite(each)) is not None:
                return f".{name}{place}"
    elif isinstance(value, list):
        for number, each in enumerate(cast("list[object]", value)):
            if (place := _not_finite(each)) is not None:
                return f"[{number}]{place}"
    return None

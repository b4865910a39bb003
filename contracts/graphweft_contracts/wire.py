"""The wire form: events as the fields of an entry of the event log.

The field names are those that CloudEvents binds to record headers:

* structured mode: ``content-type: application/cloudevents+json`` and the whole event as JSON in ``data``;
* binary mode: one field ``ce_<attribute>`` each, ``content-type`` for ``datacontenttype``, the payload in ``data``.

``encode`` writes structured mode; ``decode`` reads both.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, from_json

from graphweft_contracts.errors import InvalidEvent, MalformedEvent, UnreadableEvent
from graphweft_contracts.events import FORMS, Event
from graphweft_contracts.nearest import nearest

VERSION: Final = "1.3.0"
"""Semantic version of the wire format; it differs from the version of the package."""
CONTENT_TYPE: Final = b"content-type"
DATA: Final = b"data"
STRUCTURED: Final = b"application/cloudevents+json"
RETRY: Final = b"gw_retry"
"""The field of an entry that retries a dead letter: the JSON list of a ``Retry``. Only that mutation runs."""
ACTIVATION: Final = b"gw_rules"
"""The field of an entry that activates a rule set; it has no other field. See ``rules_log.Activation``."""
DROPPED: Final = b"gw_dropped"
"""The only field of an entry that records a dropped dead letter: a ``DroppedLetter`` in JSON."""
UNREADABLE: Final = b"gw_unreadable"
"""The field of an entry whose record the bus holds, but a worker cannot read; it says why. It has no other field."""
RECORDED: Final = b"gw_recorded"
"""The field of a retry with the log's time of the entry that had no effect, in ISO format."""
WHOLE: Final = "*"
"""The mutation in the dead letter of a whole event: a retry runs all mutations of the event."""
PREFIX: Final = b"ce_"
"""Begins the field of an attribute in binary mode."""
_CORRECTED: Final = ":corrected"
_MAX_REASON: Final = 200
_MAX_HINTS: Final = 20
_MAX_NAMES: Final = 50
"""With the one above: a fault of an event with many fields costs little."""
_CLOSENESS: Final = 0.75
_LONGEST_NAME: Final = 64


class Retry(NamedTuple):
    """The dead letter that an entry retries."""

    letter: str
    """``partition:offset`` of the entry that had no effect, and more; the partition is that of the retry."""
    rule: str
    mutation: str
    asks: bool = False
    """Whether the mutation runs only if its rule matches the event, which is not known yet."""

    @classmethod
    def of_corrected(cls, partition: int, offset: str, rule: str, mutation: str) -> Retry:
        """Return the record of a corrected event, for one mutation of the entry at ``offset``."""
        return cls(f"{partition}:{offset}:{rule}/{mutation}{_CORRECTED}", rule, mutation, asks=True)

    @property
    def corrects(self) -> bool:
        """Whether the entry holds another event than the one that had no effect: a corrected one."""
        return self.letter.endswith(f":{self.rule}/{self.mutation}{_CORRECTED}")

    def encode(self) -> bytes:
        """Return the value of the field ``RETRY``."""
        return json.dumps(self).encode()


class DroppedLetter(NamedTuple):
    """The dead letter that somebody dropped: these events, or one mutation of them, never take effect."""

    app_id: str | None
    rule: str | None
    mutation: str | None
    offsets: tuple[str, ...]
    """In the partition of the entry."""
    reason: str
    """Of the dead letter."""

    def encode(self) -> bytes:
        """Return the value of the field ``DROPPED``."""
        return json.dumps(self).encode()


def dropped_of(fields: Mapping[bytes, bytes]) -> DroppedLetter | None:
    """Return the dropped dead letter that an entry records, or None.

    Raises ``InvalidEvent`` for a malformed field, which anybody may write.
    """
    if DROPPED not in fields:
        return None
    match _value_of(fields[DROPPED]):
        case [str() | None as app_id, str() | None as rule, str() | None as mutation, [*offsets], str() as reason] if (
            all(isinstance(each, str) for each in cast("list[object]", offsets))
        ):
            return DroppedLetter(app_id, rule, mutation, tuple(cast("list[str]", offsets)), reason)
        case _:
            raise InvalidEvent(f"the field {DROPPED.decode()!r} is reserved for dropped dead letters")


def retry_of(fields: Mapping[bytes, bytes]) -> Retry | None:
    """Return the retry of an entry, or None. Raises ``InvalidEvent`` for a malformed field, which anybody may write."""
    if RETRY not in fields:
        return None
    match _value_of(fields[RETRY]):
        case [str() as letter, str() as rule, str() as mutation, bool() as asks]:
            return Retry(letter, rule, mutation, asks)
        case [str() as letter, str() as rule, str() as mutation]:
            return Retry(letter, rule, mutation)
        case _:
            raise InvalidEvent(f"the field {RETRY.decode()!r} is reserved for retries: write events without it")


def _value_of(text: bytes) -> Any:
    """Return the value of a text; None if it is not JSON."""
    try:
        return from_json(text)
    except ValueError:
        return None


def recorded_at(fields: Mapping[bytes, bytes], received: datetime) -> datetime:
    """Return when the log took the event of an entry that it took at ``received``: a retry is as old as its event.

    Anybody may write the field of a retry, so it only counts for a retry, and never makes an event younger.
    """
    value = fields.get(RECORDED) if RETRY in fields else None
    if value is None:
        return received
    try:
        recorded = datetime.fromisoformat(value.decode())
    except ValueError:
        return received
    return min(recorded, received) if recorded.tzinfo is not None else received


def recording(fields: Mapping[bytes, bytes], received: datetime) -> dict[bytes, bytes]:
    """Return the field ``RECORDED`` for the retry of an entry that the log took at ``received``."""
    return {RECORDED: recorded_at(fields, received).isoformat().encode()}


def encode(event: Event) -> dict[bytes, bytes]:
    """Return the event in structured mode.

    NaN and infinity in ``data`` become null, because JSON has neither. Raises ``InvalidEvent`` if ``data`` has a value
    that JSON cannot represent.
    """
    try:
        text = event.model_dump_json(exclude_none=True)
    except PydanticSerializationError as error:  # the error names types, never values
        raise InvalidEvent(f"data of {event.type!r} is not JSON: {error}; use text, numbers, lists, maps") from error
    return {CONTENT_TYPE: STRUCTURED, DATA: text.encode()}


def decode(fields: Mapping[bytes, bytes], *, received: datetime | None = None) -> Event:
    """Read an event in structured or binary mode.

    An event without ``time`` gets ``received``, the log's time of the entry, so reading it again gives the same event.
    Raises ``InvalidEvent`` with the field and the fault; it never quotes the payload.
    """
    return event_of(attributes_of(fields), received)


def attributes_of(fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return the attributes and the data of an event in either mode, unchecked. Raises ``InvalidEvent``."""
    content_type = fields.get(CONTENT_TYPE, b"")
    data = fields.get(DATA)
    if data is None and UNREADABLE in fields:
        raise UnreadableEvent(f"its record cannot be read: {fields[UNREADABLE].decode(errors='replace')[:_MAX_REASON]}")
    if data is None:
        names = ", ".join(repr(name.decode(errors="replace")) for name in fields) or "none"
        raise InvalidEvent(f"the entry has no field 'data' (its fields: {names}); write events as CloudEvents")
    try:
        if content_type.lower().startswith(STRUCTURED):  # media types are case-insensitive
            raw: Any = from_json(data)
            if not isinstance(raw, dict):
                raise MalformedEvent("the structured event is not a JSON object; see the CloudEvents JSON format")
            return cast("dict[str, Any]", raw)
        if any(name.startswith(PREFIX) for name in fields):
            attributes: dict[str, Any] = {
                name[len(PREFIX) :].decode(): value.decode()
                for name, value in fields.items()
                if name.startswith(PREFIX)
            }
            if content_type:
                attributes["datacontenttype"] = content_type.decode().partition(";")[0]
            attributes["data"] = from_json(data) if data else {}
            return attributes
    except ValueError as error:  # broken JSON or UTF-8; these errors do not quote the payload
        raise MalformedEvent(f"the event cannot be decoded: expected JSON in UTF-8: {error}") from error
    raise InvalidEvent(
        f"neither structured mode (content-type {content_type.decode(errors='replace')!r}) nor binary mode "
        "(no field starts with 'ce_'); write events as CloudEvents"
    )


def event_of(attributes: dict[str, Any], received: datetime | None) -> Event:
    """Return the event with these attributes; see ``decode``. It adds the time."""
    if received is not None and attributes.get("time") is None:
        attributes["time"] = received
    try:
        return Event.model_validate(attributes)
    except ValidationError as error:
        raise InvalidEvent(explain(error)) from error
    except ValueError as error:
        raise InvalidEvent(f"the event cannot be decoded: {error}") from error


def explain(error: ValidationError) -> str:
    """Return the faults on one line, without the input, which may hold personal data.

    A missing field has the given name beside it that is probably meant for it.
    """
    few = error.error_count() <= _MAX_HINTS
    faults = error.errors(include_url=False)
    parts = (
        f"{'.'.join(str(step) for step in item['loc']) or 'event'}: {_fault(item)}{misspelt(item) if few else ''}"
        for item in (own_faults(faults) if few else faults)
    )
    return "; ".join(parts)


def own_faults(faults: Iterable[ErrorDetails]) -> list[ErrorDetails]:
    """Return the faults without lists that are too short only because invalid elements of them do not count."""
    found = list(faults)
    inside = {fault["loc"][:depth] for fault in found for depth in range(len(fault["loc"]))}
    return [fault for fault in found if fault["type"] != "too_short" or fault["loc"] not in inside]


def _fault(fault: ErrorDetails) -> str:
    """Return the message; in place of a pattern that every sender meets, a sentence."""
    return FORMS.get(str(fault.get("ctx", {}).get("pattern")), fault["msg"])


def misspelt(fault: ErrorDetails, known: Collection[str] = ()) -> str:
    """Return a hint at the given name that is like the one of a missing field, or an empty string.

    ``known`` are the fields of the object that a field of an unknown name is in: the hint names the nearest one.
    """
    name = str(fault["loc"][-1]) if fault["loc"] else ""
    if fault["type"] == "extra_forbidden":
        return did_you_mean(name, known, closeness=_CLOSENESS) if len(name) <= _LONGEST_NAME else ""
    if fault["type"] != "missing" or not isinstance(fault["input"], Mapping):
        return ""
    given = cast("Mapping[object, object]", fault["input"])
    names = [each for each in islice(given, _MAX_NAMES) if isinstance(each, str) and len(each) <= 2 * len(name)]
    near = nearest(name, names, _CLOSENESS)
    return f" (you wrote {near!r}: did you mean {name!r}?)" if near else ""


def did_you_mean(word: str, known: Iterable[str], *, closeness: float = 0.6) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known word, or an empty string.

    ``closeness`` is the least similarity, from 0 to 1, by ``difflib``.
    """
    near = nearest(word, known, closeness)
    return f" (did you mean {near!r}?)" if near else ""


def pack(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return an entry's fields as text for JSON; each value becomes base64."""
    return {name.decode("latin-1"): base64.b64encode(value).decode() for name, value in fields.items()}


def unpack(fields: Mapping[str, str]) -> dict[bytes, bytes]:
    """Undo ``pack``."""
    return {name.encode("latin-1"): base64.b64decode(value) for name, value in fields.items()}

"""Decodes the events of the log at a fifth of the cost of ``wire.decode``, with the same result.

Nearly all entries are structured events that need no conversion: text is text and a time is RFC 3339. ``msgspec``
parses and checks these at once, and matching reads what it made: a ``PlainEvent``. Only what is not ordinary asks for
the whole model. Anything else is left to ``wire.decode``, which decides about it and words the error. So each rule here
may be stricter than that of ``wire.decode``, and none may be looser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec
from pydantic import SkipValidation, TypeAdapter

from graphweft_contracts import Event, wire
from graphweft_contracts.events import APP_ID_PATTERN, LIFECYCLE, TYPE_PATTERN, Payload, payload_of

_MOST_BRACKETS: Final = 200
"""``wire.decode`` refuses JSON with more than 200 levels; JSON with fewer opening brackets has none of them."""
_MICROSECONDS: Final = len("2026-02-01T10:00:00.000000Z")
"""A longer time may have digits of nanoseconds, which ``msgspec`` rounds and ``wire.decode`` cuts off."""
_WITH_ZONE: Final = len("2026-02-01T10:00:00.000000+00:00")

type _Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
type _Check = tuple[Callable[[dict[str, Any]], object], str | None]
"""What raises ``ValueError`` unless the payload of an event is valid, and the pattern of its chat."""


class PlainEvent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An event as it is written in JSON, checked: the fields of ``Event`` in the same order. It is never changed."""

    specversion: Literal["1.0"] = "1.0"
    id: _Name
    source: _Name
    type: str
    written_time: str = msgspec.field(name="time")
    appid: str
    chatid: _Name
    workflow: _Name | None = None
    userid: _Name | None = None
    subject: _Name | None = None
    datacontenttype: Literal["application/json"] = "application/json"
    dataschema: str | None = None
    partitionkey: str | None = None
    sequence: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    written_recordedtime: str | None = msgspec.field(name="recordedtime", default=None)
    dataref: str | None = None
    data: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])

    @property
    def time(self) -> datetime:
        """See ``Event.time``."""
        return _time(self.written_time)

    @property
    def agent(self) -> str | None:
        """See ``Event.agent``."""
        name = self.data.get("agent_name")
        return name if isinstance(name, str) else None

    @property
    def context(self) -> dict[str, Any]:
        """See ``Event.context``."""
        value = self.data.get("context")
        return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]

    def whole(self) -> Event:
        """Return the model."""
        values = {name: getattr(self, field) for name, field in _FIELDS}
        values["time"] = self.time
        if self.written_recordedtime is not None:
            values["recordedtime"] = _time(self.written_recordedtime)
        return Event.of_valid(values)


_FIELDS: Final = tuple((field.encode_name, field.name) for field in msgspec.structs.fields(PlainEvent))
_read: Final = msgspec.json.Decoder(PlainEvent).decode


def whole(event: Event | PlainEvent) -> Event:
    """Return the model of an event."""
    return event.whole() if isinstance(event, PlainEvent) else event


def decode(fields: Mapping[bytes, bytes], received: datetime) -> Event | PlainEvent:
    """Return the same as ``wire.decode``, if not as a model, and raise the same."""
    data = fields.get(wire.DATA)
    if data is None or fields.get(wire.CONTENT_TYPE) != wire.STRUCTURED or received.tzinfo is None:
        return wire.decode(fields, received=received)
    if data.count(b"{") + data.count(b"[") < _MOST_BRACKETS:
        try:
            read = _read(data)
            if _is_app_id(read.appid):
                validate, chat_pattern = _check_of(read.type, payload_of(read.type))
                payload = validate(read.data)
                if chat_pattern is None or re.fullmatch(chat_pattern, read.chatid):
                    time = _time(read.written_time)
                    if isinstance(payload, Payload):
                        payload.check_at(time)
                    if read.written_recordedtime is not None:
                        _time(read.written_recordedtime)
                    return read
        except (msgspec.MsgspecError, ValueError):  # pydantic's errors are ValueErrors as well
            pass
    return wire.decode(fields, received=received)


def _time(text: str) -> datetime:
    """Raise ``ValueError`` for a time that may have another meaning in ``wire.decode``."""
    if len(text) > _MICROSECONDS and (len(text) != _WITH_ZONE or text[-3] != ":"):
        raise ValueError
    time = msgspec.convert(text, datetime)
    if time.tzinfo is None:
        raise ValueError
    return time


@lru_cache(maxsize=4_096)
def _is_app_id(app_id: str) -> bool:
    return re.fullmatch(APP_ID_PATTERN, app_id) is not None


@lru_cache(maxsize=1_024)
def _check_of(type: str, model: type[Payload]) -> _Check:
    """Return the check of the payload of an event type. Raises ``ValueError`` for an invalid type."""
    if not (len(type) <= 128 and re.fullmatch(TYPE_PATTERN, type)):
        raise ValueError
    if model is Payload or model in LIFECYCLE.values():  # the models that have fields and no validators
        return _fields_check(model), None
    return model.model_validate, model.chat_pattern


_SKIPS: Final[Any] = SkipValidation
"""Its type is a form of ``Annotated`` for type checkers, and a class when it runs."""


def _fields_check(model: type[Payload]) -> Callable[[dict[str, Any]], object]:
    """Return a check that makes no model: it takes a fifth of the time."""
    known: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        unchecked = field.annotation is Any or any(isinstance(each, _SKIPS) for each in field.metadata)
        if unchecked and not field.is_required():
            continue
        annotation: Any = Annotated[field.annotation, None, *field.metadata]
        known[name] = annotation if field.is_required() else NotRequired[annotation]
    fields: Any = TypedDict("fields", known)  # type: ignore[misc]  # made at run time
    return TypeAdapter(fields).validator.validate_python

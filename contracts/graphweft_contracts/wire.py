"""Events as fields of a Redis stream entry, or as headers and value of a Kafka record.

CloudEvents has no Redis Streams binding, so the names are those of its Kafka binding (``kafka-protocol-binding.md``):

* structured mode: ``content-type: application/cloudevents+json`` and the whole event as JSON in ``data``;
* binary mode: one field ``ce_<attribute>`` each, ``content-type`` for ``datacontenttype``, the payload in ``data``.

We write structured mode and read both.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, from_json

from graphweft_contracts.errors import InvalidEvent
from graphweft_contracts.events import Event

CONTENT_TYPE: Final = b"content-type"
DATA: Final = b"data"
STRUCTURED: Final = b"application/cloudevents+json"
RETRY: Final = b"gw_retry"
"""Field of an entry that retries a dead letter: a JSON list as ``Retry`` has it; only that mutation runs."""
_PREFIX: Final = b"ce_"


class Retry(NamedTuple):
    """Which dead letter an entry retries."""

    letter: str
    rule: str
    mutation: str
    asks: bool = False
    """Whether the mutation runs only if its rule is about the event: nobody knows yet that it is."""

    def encode(self) -> bytes:
        """Return the value of the field ``RETRY``."""
        return json.dumps(self).encode()


def retry_of(fields: Mapping[bytes, bytes]) -> Retry | None:
    """Return what an entry retries, None for most. Raises ``InvalidEvent``: anybody may write such a field."""
    value = fields.get(RETRY)
    if value is None:
        return None
    try:
        read: Any = from_json(value)
    except ValueError:
        read = None
    match read:
        case [str() as letter, str() as rule, str() as mutation, bool() as asks]:
            return Retry(letter, rule, mutation, asks)
        case [str() as letter, str() as rule, str() as mutation]:
            return Retry(letter, rule, mutation)
        case _:
            raise InvalidEvent(f"the field {RETRY.decode()!r} is ours and holds no retry: write events without it")


def encode(event: Event) -> dict[bytes, bytes]:
    """Return the event in structured mode.

    JSON has no NaN and no infinity: such numbers in ``data`` become null. Raises ``InvalidEvent`` when ``data`` holds
    what JSON cannot say.
    """
    try:
        text = event.model_dump_json(exclude_none=True)
    except PydanticSerializationError as error:  # its text names types, never values
        raise InvalidEvent(f"data of {event.type!r} is no JSON: {error}; use text, numbers, lists and maps") from error
    return {CONTENT_TYPE: STRUCTURED, DATA: text.encode()}


def decode(fields: Mapping[bytes, bytes], *, received: datetime | None = None) -> Event:
    """Read an event in structured or binary mode.

    ``received`` is the log's own time of the entry; an event without ``time`` (CloudEvents allows that) gets it, so a
    second reading of the log gives the same event. Raises ``InvalidEvent`` that names what is wrong.
    """
    content_type = fields.get(CONTENT_TYPE, b"")
    data = fields.get(DATA)
    if data is None:
        names = ", ".join(repr(name.decode(errors="replace")) for name in fields) or "none"
        raise InvalidEvent(f"the entry has no field 'data' (its fields: {names}); write events as CloudEvents")
    attributes: dict[str, Any]
    try:
        if content_type.lower().startswith(STRUCTURED):  # media types know no case
            raw: Any = from_json(data)
            if not isinstance(raw, dict):
                raise InvalidEvent("the structured event is no JSON object; see the CloudEvents JSON format")
            attributes = cast("dict[str, Any]", raw)
        elif any(name.startswith(_PREFIX) for name in fields):
            attributes = {
                name[len(_PREFIX) :].decode(): value.decode()
                for name, value in fields.items()
                if name.startswith(_PREFIX)
            }
            if content_type:
                attributes["datacontenttype"] = content_type.decode().partition(";")[0]
            attributes["data"] = from_json(data) if data else {}
        else:
            raise InvalidEvent(
                f"neither structured mode (content-type {content_type.decode(errors='replace')!r}) nor binary mode "
                "(no field starts with 'ce_'); write events as CloudEvents"
            )
        if received is not None and attributes.get("time") is None:
            attributes["time"] = received
        return Event.model_validate(attributes)
    except ValidationError as error:
        raise InvalidEvent(explain(error)) from error
    except ValueError as error:  # broken JSON or UTF-8; the text of these errors quotes no payload
        raise InvalidEvent(f"the event cannot be decoded: {type(error).__name__} at the wire: {error}") from error


def explain(error: ValidationError) -> str:
    """Return what is wrong in one line, without quoting the input (it may hold personal data)."""
    parts = (
        f"{'.'.join(str(step) for step in item['loc']) or 'event'}: {item['msg']}"
        for item in error.errors(include_input=False, include_url=False, include_context=False)
    )
    return "; ".join(parts)


def pack(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return an entry's fields as JSON can carry them, whatever the bytes are: values become base64."""
    return {name.decode("latin-1"): base64.b64encode(value).decode() for name, value in fields.items()}


def unpack(fields: Mapping[str, str]) -> dict[bytes, bytes]:
    """Undo ``pack``."""
    return {name.encode("latin-1"): base64.b64decode(value) for name, value in fields.items()}

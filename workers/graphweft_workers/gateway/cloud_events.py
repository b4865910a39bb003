"""CloudEvents 1.0 over HTTP (``cloudevents/bindings/http-protocol-binding.md``): single, batch and binary mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, cast
from urllib.parse import unquote_to_bytes

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, to_json
from starlette.datastructures import Headers

from graphweft.transport import Outgoing, check_sizes
from graphweft_contracts import Event, InvalidEvent, wire
from graphweft_contracts.admission import admission_faults, hints_of, renamed, time_faults
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.events import payload_of
from graphweft_workers.gateway.limits import GatewayLimits, read_json, whole
from graphweft_workers.gateway.problems import MAX_FAULTS, Loc, Problem, faults_of, pointer

SINGLE: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
_JSON: Final = "application/json"
_PREFIX: Final = "ce-"
MAX_ATTRIBUTES: Final = 100
"""Each invalid attribute takes time to report, and other requests wait meanwhile."""
_TOO_MANY: Final = f"an event has at most {MAX_ATTRIBUTES} attributes: put the rest into its data"
_INVALID: Final = "an event breaks the contract; nothing was taken"
_SYSTEM: Final = "over HTTP a message is of a user or an assistant: send text of the system as an event with a rule"
_EXPECTED: Final = (
    f"send one event as {SINGLE}, several as {BATCH}, or in binary mode: headers ce-specversion, ce-id, ce-source, "
    f"ce-type, ce-chatid, and the data as {_JSON}"
)


def read_events(kind: str, headers: Headers, body: bytes, *, app_id: str, limits: GatewayLimits) -> list[Event]:
    """Return the events of a request in their order. ``app_id`` is the default app, and the only one allowed.

    ``kind`` is the media type. The time of an event without ``time`` is now. Raises ``Problem`` for the whole request
    when one event breaks the contract, names another app or is too large.
    """
    now = SYSTEM_CLOCK.now().isoformat()
    if kind == SINGLE:
        return _checked([((), read_json(body))], app_id, now)
    if kind == BATCH:
        raw: Any = read_json(body)
        if not isinstance(raw, list):
            raise Problem(422, "invalid-event", f"a batch is a JSON array of events; {_EXPECTED}")
        items: list[Any] = raw  # pyright: ignore[reportUnknownVariableType]
        if len(items) > limits.events:
            raise Problem(
                422,
                "batch-too-large",
                f"a batch has at most {limits.events} events, and this one has {len(items):,}: send smaller batches",
            )
        return _checked([((number,), item) for number, item in enumerate(items)], app_id, now)
    if "ce-specversion" in headers and not kind.startswith("application/cloudevents"):
        return [_binary(kind, headers, body, app_id, now)]
    raise Problem(415, "unsupported-media-type", _EXPECTED)


def _checked(items: Sequence[tuple[tuple[int, ...], Any]], app_id: str, now: str) -> list[Event]:
    events: list[Event] = []
    faults: list[dict[str, str]] = []
    for above, item in items:
        if len(faults) >= MAX_FAULTS:
            break
        if not isinstance(item, dict):
            faults.append({"pointer": pointer(*above), "detail": "an event is a JSON object"})
            continue
        attributes = cast("dict[str, Any]", item)
        if len(attributes) > MAX_ATTRIBUTES:
            faults.append({"pointer": pointer(*above), "detail": _TOO_MANY})
            continue
        try:
            event = _event(attributes, app_id, now)
        except ValidationError as error:
            faults += faults_of(error, *above, place=_place_in(attributes))
        else:
            events.append(event)
            faults += _refusals(event, *above)
    if faults:
        raise Problem(422, "invalid-event", _INVALID, faults=faults)
    _own(events, [pointer(*above, "appid") for above, _ in items], "pointer", app_id)
    check_fitting(events, [pointer(*above) for above, _ in items])
    return events


def _binary(kind: str, headers: Headers, body: bytes, app_id: str, now: str) -> Event:
    if kind != _JSON and (kind or body):
        raise Problem(415, "unsupported-media-type", f"the data of an event in binary mode is {_JSON}")
    attributes: dict[str, Any] = {}
    faults: list[dict[str, str]] = []
    for raw_name, raw_value in headers.raw:
        name = raw_name.decode("latin-1").lower()
        if not name.startswith(_PREFIX):
            continue
        attribute = name.removeprefix(_PREFIX)
        if attribute in attributes or attribute in {"data", "datacontenttype"}:
            faults.append({"header": name, "detail": "this header appears twice, or does not belong to binary mode"})
            continue
        try:
            attributes[attribute] = unquote_to_bytes(_without_quotes(raw_value)).decode()
        except UnicodeDecodeError:
            faults.append({"header": name, "detail": "write other characters than ASCII as percent-encoded UTF-8"})
    if len(attributes) >= MAX_ATTRIBUTES:  # the data counts as one more
        faults.append({"header": f"{_PREFIX}*", "detail": _TOO_MANY})
    data: Any = read_json(body) if body else {}
    if faults:
        raise Problem(422, "invalid-event", _INVALID, faults=faults)
    try:
        event = _event({**attributes, "data": data}, app_id, now)
    except ValidationError as error:
        raise Problem(
            422,
            "invalid-event",
            _INVALID,
            faults=[_of_header(fault) for fault in faults_of(error, place=_place_in(attributes))],
        ) from None
    if refused := _refusals(event):
        raise Problem(
            422, "invalid-event", _INVALID,
            faults=[_of_header(fault) for fault in refused],
        )  # fmt: skip
    _own([event], ["ce-appid"], "header", app_id)
    check_fitting([event], [pointer()])
    return event


def _without_quotes(value: bytes) -> bytes:
    """Return a header's value without the quotes around it: CloudEvents' HTTP binding 1.0.2, 3.1.3.2."""
    if len(value) < len(b'""') or not (value.startswith(b'"') and value.endswith(b'"')):
        return value
    return re.sub(rb"\\(.)", rb"\1", value[1:-1])


def _event(attributes: dict[str, Any], app_id: str, now: str) -> Event:
    """Validate as JSON, so that the model refuses the same types as the schema."""
    plain = {name: whole(value) for name, value in attributes.items()}
    if faults := [
        InitErrorDetails(type=PydanticCustomError("time", "{fault}", {"fault": fault}), loc=(name,), input=plain[name])
        for name, fault in time_faults(plain)
    ]:
        raise ValidationError.from_exception_data("Event", faults)
    return Event.model_validate_json(to_json({"appid": app_id, "time": now, **renamed(plain)}), strict=True)


def event_hints(kind: str, events: Sequence[Event]) -> list[dict[str, str]]:
    """Return hints at attributes and types that are probably misspelt, with their places, for a request of ``kind``."""
    seen: set[str] = set()
    found = (
        {**place_of(kind, number, attribute), "detail": hint}
        for number, event in enumerate(events)
        for attribute, hint in hints_of(event, seen, most=MAX_ATTRIBUTES)
    )
    return list(islice(found, MAX_FAULTS))


def place_of(kind: str, number: int, attribute: str) -> dict[str, str]:
    """Return the place of an attribute of event ``number`` of a request with the media type ``kind``."""
    if kind == BATCH:
        return {"pointer": pointer(number, attribute)}
    return {"pointer": pointer(attribute)} if kind == SINGLE else {"header": _PREFIX + attribute}


def _refusals(event: Event, *above: int) -> list[dict[str, str]]:
    """Return the faults that the contract's schema cannot express; clients check all but the role."""
    found = [{"pointer": pointer(*above, *where), "detail": fault} for where, fault in admission_faults(event)]
    if event.type == "memory.add":
        # A model would take what such a message says for an instruction of the operator.
        found += [
            {"pointer": pointer(*above, "data", "messages", number, "role"), "detail": _SYSTEM}
            for number, message in enumerate(event.data["messages"])
            if message["role"] == "system"
        ]
    return found


def _place_in(attributes: dict[str, Any]) -> Callable[[Loc], Loc]:
    """Return a function that puts the faults of a payload below ``data``; the event reports them as its own."""
    payload = payload_of(str(attributes.get("type"))).model_fields

    def place(loc: Loc) -> Loc:
        return ("data", *loc) if loc and loc[0] in payload and loc[0] not in Event.model_fields else loc

    return place


def _of_header(fault: dict[str, str]) -> dict[str, str]:
    """Return the fault with its place in binary mode: attributes are headers, and the body is the data."""
    first, _, rest = fault["pointer"].removeprefix("#").removeprefix("/").partition("/")
    if first == "data":
        return {"pointer": f"#/{rest}" if rest else "#", "detail": fault["detail"]}
    return {"header": _PREFIX + first, "detail": fault["detail"]} if first else fault


def _own(events: Sequence[Event], places: Sequence[str], kind: str, app_id: str) -> None:
    others = [
        {kind: place, "detail": "remove it, or name the app of the token"}
        for event, place in zip(events, places, strict=True)
        if event.appid != app_id
    ]
    if others:
        raise Problem(403, "other-app", "the token belongs to another app; nothing was taken", faults=others)


def check_fitting(events: Sequence[Event], places: Sequence[str]) -> None:
    """Raise ``Problem`` when an event is too large for the bus. ``places`` are the JSON pointers of the events."""
    for event, place in zip(events, places, strict=True):
        try:
            check_sizes([Outgoing(key=event.key, fields=wire.encode(event))])
        except InvalidEvent as error:
            raise Problem(
                413, "event-too-large", "an event is too large; nothing was taken",
                faults=[{"pointer": place, "detail": str(error)}],
            ) from None  # fmt: skip

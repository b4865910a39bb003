"""``POST /v1/traces``: OTLP over HTTP (https://opentelemetry.io/docs/specs/otlp/#otlphttp); GenAI spans become events.

Nothing is remembered from one request to the next. What is known of a trace by other requests would be another thing
after a restart, and a request that is repeated then would put its events into another chat, where they have effect
again. So a span's chat and agent are what its own request says.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol, cast

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError, WithJsonSchema
from pydantic.alias_generators import to_camel

from graphweft.adapters.genai import (
    APP_ID,
    ATTRIBUTES,
    RESOURCE_ATTRIBUTES,
    SOURCE,
    Span,
    SpanEvent,
    events_of,
    time_of,
)
from graphweft.transport import MAX_EVENT_BYTES, Outgoing, check_sizes
from graphweft_contracts import Event, InvalidEvent, wire
from graphweft_contracts.admission import admission_faults
from graphweft_workers.gateway.limits import Limits, read_json, whole
from graphweft_workers.gateway.problems import MOST_FAULTS, Problem, faults_of, pointer

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_ERROR: Final = 2
"""``STATUS_CODE_ERROR``."""
_EXCEPTION: Final = "exception"
_EXCEPTION_ATTRIBUTES: Final = frozenset({"exception.type", "exception.message"})
_REASONS: Final = 5
"""So many different reasons are named."""
_UINT64: Final = 2**64 - 1
_DIGITS: Final = r"^[0-9]{1,19}$"
_INTEGER: Final = r"^-?[0-9]{1,19}$"
_VALUES: Final = 1_000_000
"""Values of a body in JSON: it has room for eight times as many, which take gigabytes when they are read."""
_NO_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})


def _integer(pattern: str) -> BeforeValidator:
    def read(value: Any) -> Any:
        if isinstance(value, str):
            if not re.fullmatch(pattern, value):
                msg = "write an integer, or its digits as a string"
                raise ValueError(msg)
            return int(value)
        return whole(value)

    return BeforeValidator(read)


def _double(value: Any) -> Any:
    return None if isinstance(value, str) and value in _NO_NUMBERS else value


_Nanoseconds = Annotated[
    int,
    _integer(_DIGITS),
    Field(ge=0, le=_UINT64),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": _UINT64}, {"type": "string", "pattern": _DIGITS}]}
    ),
]
_Int64 = Annotated[
    int,
    _integer(_INTEGER),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": _INTEGER}]}),
]
_Double = Annotated[
    float | None,
    BeforeValidator(_double),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": [*sorted(_NO_NUMBERS), None]}]}),
]
_Enum = Annotated[int, BeforeValidator(whole)]
type _Many[T] = Annotated[tuple[T, ...], FailFast()]
"""A fault takes a kilobyte or more, and a body has room for millions: of a list the first one is told."""


class _Message(BaseModel):
    """A message of OTLP as JSON writes it: every member may be missing or null, and unknown ones do not count."""

    model_config = ConfigDict(frozen=True, strict=True, alias_generator=to_camel)


class AnyValue(_Message):
    """A value: one of these."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: _Int64 | None = None
    double_value: _Double = None
    array_value: ArrayValue | None = None
    kvlist_value: KeyValueList | None = None
    bytes_value: str | None = None


class ArrayValue(_Message):
    """Several values."""

    values: _Many[AnyValue] | None = None


class KeyValue(_Message):
    """An attribute."""

    key: str | None = None
    value: AnyValue | None = None


class KeyValueList(_Message):
    """A map."""

    values: _Many[KeyValue] | None = None


class Resource(_Message):
    """What made the spans. ``graphweft.app_id`` among its attributes has to be the token's app."""

    attributes: _Many[KeyValue] | None = None


class SpanMoment(_Message):
    """An event of a span."""

    name: str | None = None
    attributes: _Many[KeyValue] | None = None


class Status(_Message):
    """How a span ended."""

    message: str | None = None
    code: _Enum | None = Field(default=None, description="2: an error.")


class TracedSpan(_Message):
    """A span that has ended."""

    trace_id: str | None = Field(default=None, description="32 hexadecimal digits.")
    span_id: str | None = Field(default=None, description="16 hexadecimal digits.")
    parent_span_id: str | None = None
    name: str | None = None
    start_time_unix_nano: _Nanoseconds | None = None
    end_time_unix_nano: _Nanoseconds | None = None
    attributes: _Many[KeyValue] | None = None
    events: _Many[SpanMoment] | None = None
    status: Status | None = None


class ScopeSpans(_Message):
    """Spans of one library."""

    spans: _Many[TracedSpan] | None = None


class ResourceSpans(_Message):
    """Spans of one program."""

    resource: Resource | None = None
    scope_spans: _Many[ScopeSpans] | None = None


class TracesRequest(_Message):
    """``ExportTraceServiceRequest`` of OTLP 1, as far as it is read here."""

    resource_spans: _Many[ResourceSpans] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What came of a request: the events, by time, and how many spans can never become any, and why."""

    events: Sequence[Event]
    rejected: int
    reasons: Sequence[str]

    def answer(self, kind: str) -> bytes:
        """Return ``ExportTraceServiceResponse`` in the form of the request."""
        said = "; ".join(self.reasons)
        if kind == JSON:
            partial = {"partialSuccess": {"rejectedSpans": str(self.rejected), "errorMessage": said}}
            return json.dumps(partial if self.rejected else {}).encode()
        response = ExportTraceServiceResponse()
        if self.rejected:
            response.partial_success.rejected_spans = self.rejected
            response.partial_success.error_message = said
        written: bytes = response.SerializeToString()
        return written


def unpacked(encoding: str, body: bytes, *, most: int) -> bytes:
    """Return a body without its encoding, which is ``gzip`` or ``identity``.

    Raises ``Problem`` where it is no gzip, or has more than ``most`` bytes.
    """
    if encoding != "gzip":
        return body
    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(body, most + 1)
    except zlib.error:
        raise Problem(400, "no-gzip", "the body is no gzip, as the header Content-Encoding says") from None
    if len(content) > most:
        raise Problem(
            413, "body-too-large", f"a body has at most {most:,} bytes when unpacked here: send less at a time"
        )
    if not reader.eof or reader.unused_data:
        raise Problem(400, "no-gzip", "the body is no whole gzip, or more than one")
    return content


def read_traces(kind: str, body: bytes, *, app_id: str, limits: Limits) -> Traces:
    """Return the events of a request's spans, which are of ``app_id``.

    Spans that agents do not make are passed over. Raises ``Problem`` for the whole request when it is broken, names
    another app or has more than a request may have.
    """
    spans, reasons = _spans(kind, body, app_id, limits)
    told = events_of(spans)
    if len(told) > limits.span_events:
        raise _too_many(f"the spans of a request give at most {limits.span_events:,} events here")
    made: list[tuple[_Key, Event]] = []
    refused: dict[_Key, str] = {}
    for one in told:
        key = (one.span.trace_id, one.span.span_id)
        try:
            event = _event(one, app_id)
            check_sizes([Outgoing(key=event.key, fields=wire.encode(event))])
        except ValidationError as error:
            refused[key] = wire.explain(error)
        except InvalidEvent:
            refused[key] = f"an event has more than {MAX_EVENT_BYTES:,} bytes"
        else:
            fault = next(admission_faults(event), None)
            if fault is None:
                made.append((key, event))
            else:
                refused[key] = f"{'.'.join(fault[0])}: {fault[1]}"
    reasons += refused.values()
    return Traces(
        events=[event for key, event in made if key not in refused],
        rejected=len(reasons),
        reasons=list(dict.fromkeys(reasons))[:_REASONS],
    )


type _Key = tuple[str, str]


def _event(one: SpanEvent, app_id: str) -> Event:
    place = one.place
    ids = {
        "app_id": app_id,
        "chat_id": place.chat_id,
        "workflow_name": place.workflow,
        "user_id": place.user_id,
    }
    return Event.create(
        one.type,
        app_id=app_id,
        chat_id=place.chat_id,
        workflow=place.workflow,
        user_id=place.user_id,
        data=one.data,
        context={name: value for name, value in ids.items() if value is not None},
        id=one.id,
        source=SOURCE,
        time=time_of(one.time_ns),
    )


def _spans(kind: str, body: bytes, app_id: str, limits: Limits) -> tuple[list[Span], list[str]]:
    """Return the spans of a body, and why others, of agents, are none."""
    request = _json(body) if kind == JSON else _protobuf(body)
    reader = _of_json if kind == JSON else _of_protobuf
    resources: Sequence[Any] = request.resource_spans or ()
    if len(resources) > limits.spans or sum(len(each.scope_spans or ()) for each in resources) > limits.spans:
        raise _too_many(f"a request has at most {limits.spans:,} resources and scopes here")
    many = sum(len(scope.spans or ()) for each in resources for scope in each.scope_spans or ())
    if many > limits.spans:
        raise _too_many(f"a request has at most {limits.spans:,} spans here")
    spans: list[Span] = []
    reasons: list[str] = []
    others: list[str] = []
    for number, each in enumerate(resources):
        resource = _attributes(each.resource and each.resource.attributes, RESOURCE_ATTRIBUTES, reader)
        if resource.get(APP_ID, app_id) != app_id:
            others.append(pointer("resourceSpans", number, "resource"))
        for scope in each.scope_spans or ():
            for raw in scope.spans or ():
                span = _span(raw, resource, reader)
                if span.kind is not None and (reason := _misplaced(span)):
                    reasons.append(reason)
                else:
                    spans.append(span)
    if others:
        detail = f"leave {APP_ID} out of the resource, or name the app of the token"
        faults = [{"pointer": place, "detail": detail} for place in others[:MOST_FAULTS]]
        raise Problem(403, "other-app", "the token is of another app; nothing was taken", faults=faults)
    return spans, reasons


def _span(raw: Any, resource: Mapping[str, Any], reader: _Reader) -> Span:
    exception: Mapping[str, Any] = {}
    for moment in raw.events or ():
        if moment.name == _EXCEPTION:
            exception = _attributes(moment.attributes, _EXCEPTION_ATTRIBUTES, reader)
    status = raw.status
    return Span(
        trace_id=reader.id(raw.trace_id, 16),
        span_id=reader.id(raw.span_id, 8),
        parent_id=reader.id(raw.parent_span_id, 8) or None,
        name=raw.name or "",
        start_ns=raw.start_time_unix_nano or 0,
        end_ns=raw.end_time_unix_nano or 0,
        attributes=_attributes(raw.attributes, ATTRIBUTES, reader),
        resource=resource,
        failed=status is not None and status.code == _ERROR,
        status_message=(status.message or None) if status is not None else None,
        exception_type=exception.get("exception.type"),
        exception_message=exception.get("exception.message"),
    )


def _misplaced(span: Span) -> str | None:
    """Return why a span can become no event."""
    if not span.trace_id:
        return "a span has no trace id: 16 bytes, not all of them 0"
    if not span.span_id:
        return "a span has no id: 8 bytes, not all of them 0"
    return None if span.start_ns and span.end_ns else "a span has no start or no end"


def _attributes(raw: Iterable[Any] | None, wanted: frozenset[str], reader: _Reader) -> dict[str, Any]:
    """Return those attributes that are wanted; the others are not even read."""
    return {each.key: reader.value(each.value) for each in raw or () if each.key in wanted}


class _Reader(Protocol):
    """What protobuf and JSON write differently."""

    def id(self, raw: Any, size: int) -> str:
        """Return an id of ``size`` bytes as hexadecimal digits, "" for what is none."""
        ...

    def value(self, raw: Any) -> Any:
        """Return a value as JSON can say it."""
        ...


class _Protobuf:
    def id(self, raw: Any, size: int) -> str:
        known: bytes = raw
        return known.hex() if len(known) == size and any(known) else ""

    def value(self, raw: Any) -> Any:
        match raw.WhichOneof("value"):
            case None:
                return None
            case "array_value":
                return [self.value(each) for each in raw.array_value.values]
            case "kvlist_value":
                return {each.key: self.value(each.value) for each in raw.kvlist_value.values}
            case "bytes_value":
                return base64.b64encode(raw.bytes_value).decode()
            case "double_value":
                return raw.double_value if math.isfinite(raw.double_value) else None
            case name:
                return getattr(raw, name)


class _Json:
    def id(self, raw: Any, size: int) -> str:
        known = str(raw or "").lower()
        return known if re.fullmatch(f"[0-9a-f]{{{2 * size}}}", known) and known.strip("0") else ""

    def value(self, raw: Any) -> Any:
        if not isinstance(raw, AnyValue):
            return None
        if raw.array_value is not None:
            return [self.value(each) for each in raw.array_value.values or ()]
        if raw.kvlist_value is not None:
            return {each.key or "": self.value(each.value) for each in raw.kvlist_value.values or ()}
        simple = (raw.string_value, raw.bool_value, raw.int_value, raw.double_value, raw.bytes_value)
        return next((each for each in simple if each is not None), None)


_of_protobuf: Final = _Protobuf()
_of_json: Final = _Json()


def _protobuf(body: bytes) -> Any:
    try:
        return ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        raise Problem(400, "no-protobuf", "the body is no ExportTraceServiceRequest of OTLP in protobuf") from None


def _json(body: bytes) -> TracesRequest:
    _check_values(read_json(body))
    try:
        return TracesRequest.model_validate_json(body)
    except ValidationError as error:
        detail = "the spans are not written as OTLP writes them in JSON; nothing was taken"
        raise Problem(422, "invalid-traces", detail, faults=faults_of(error)) from None


def _check_values(body: Any) -> None:
    """Raise ``Problem`` where a body has more values, one in another, than are read."""
    found, waiting = 1, [body]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            inside: Collection[Any] = cast("dict[str, Any]", part).values()
        elif isinstance(part, list):
            inside = cast("Collection[Any]", part)
        else:
            continue
        found += len(inside)
        if found > _VALUES:
            raise _too_many(f"a body in JSON has at most {_VALUES:,} values here")
        waiting += inside


def _too_many(detail: str) -> Problem:
    return Problem(422, "batch-too-large", f"{detail}: send smaller batches; nothing was taken")

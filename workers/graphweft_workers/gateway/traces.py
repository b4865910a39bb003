"""``POST /v1/traces``: OTLP over HTTP (https://opentelemetry.io/docs/specs/otlp/#otlphttp); GenAI spans become events.

The gateway keeps nothing between requests, so the chat and the agent of a span come from its own request only. State
would be lost by a restart; a repeated request would then put its events into another chat, where they apply again.
"""

from __future__ import annotations

import base64
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from pydantic import ValidationError

from graphweft.adapters.genai import (
    APP_ID,
    ATTRIBUTES,
    OPERATION,
    RESOURCE_ATTRIBUTES,
    SOURCE,
    Span,
    SpanEvent,
    events_of,
    time_of,
)
from graphweft.tracing import LIBRARY
from graphweft.transport import MAX_EVENT_BYTES, Outgoing, check_sizes
from graphweft_contracts import Event, InvalidEvent, wire
from graphweft_contracts.admission import admission_faults
from graphweft_workers.gateway.limits import GatewayLimits, read_json, too_many_values
from graphweft_workers.gateway.problems import MAX_FAULTS, Problem, pointer
from graphweft_workers.gateway.structure import count_protobuf, fields_of

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
type IgnoredReason = Literal["no_operation", "other_operation"]
"""A span has no operation of an agent in a convention that graphweft reads, or one that gives no event."""

_ERROR: Final = 2
"""``STATUS_CODE_ERROR``."""
_EXCEPTION: Final = "exception"
_EXCEPTION_ATTRIBUTES: Final = frozenset({"exception.type", "exception.message"})
_MAX_REASONS: Final = 5
_LONGEST_LIBRARY: Final = 100
_FIELDS_PER_VALUE: Final = 2
"""A field of protobuf costs less than half of a value of JSON."""
_IDS: Final = ("traceId", "spanId", "parentSpanId")
_FIELDS: Final = re.compile(r"Failed to parse (\w+) field: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """The events of a request, by time, and the number of spans that can never become an event, with the reasons."""

    events: Sequence[Event]
    rejected: int
    reasons: Sequence[str]
    ignored: Mapping[tuple[str, IgnoredReason], int] = field(default_factory=dict[tuple[str, "IgnoredReason"], int])
    """How many spans give no event, by the library that wrote them and the reason."""

    def answer(self, kind: str) -> bytes:
        """Return ``ExportTraceServiceResponse`` in the form of the request."""
        response = ExportTraceServiceResponse()
        if self.rejected:
            response.partial_success.rejected_spans = self.rejected
            response.partial_success.error_message = "; ".join(self.reasons)
        if kind == JSON:
            return str(json_format.MessageToJson(response, indent=None)).encode()
        written: bytes = response.SerializeToString()
        return written


def decompress(encoding: str, body: bytes, *, limits: GatewayLimits) -> bytes:
    """Return a body without its encoding, ``gzip`` or ``identity``.

    Raises ``Problem`` when the body is not valid gzip, or decompressed larger than its size allows.
    """
    if encoding != "gzip":
        return body
    limit = limits.unpacked_for(len(body))
    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(body, limit + 1)
    except zlib.error:
        raise Problem(400, "no-gzip", "the body is not gzip, although the header Content-Encoding says so") from None
    if len(content) > limit:
        raise Problem(
            413,
            "body-too-large",
            f"a body of {len(body):,} compressed bytes has at most {limit:,} decompressed, and this one has more: send "
            "fewer spans at a time, or without compression",
        )
    if not reader.eof or reader.unused_data:
        raise Problem(400, "no-gzip", "the body is not exactly one complete gzip stream")
    return content


def read_traces(
    kind: str,
    body: bytes,
    *,
    app_id: str,
    limits: GatewayLimits,
    values: int | None = None,
    may_use: Callable[[str | None], bool] = lambda workflow: True,
) -> Traces:
    """Return the events of a request's spans, all of ``app_id``. Spans of other libraries than agents are ignored.

    ``values`` limits the values of the body instead of ``limits``. A span of a workflow that the sender may not use is
    rejected. Raises ``Problem`` for the whole request when it is invalid, names another app or exceeds a limit.
    """
    values = limits.values if values is None else values
    request = _of_json(body, values) if kind == JSON else _of_protobuf(body, values)
    spans, reasons, ignored = _spans(request, app_id, limits)
    found = events_of(spans)
    if len(found) > limits.span_events:
        raise _too_many(f"the spans of a request give at most {limits.span_events:,} events, and these {len(found):,}")
    made: list[tuple[_Key, Event]] = []
    refused: dict[_Key, str] = {}
    for one in found:
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
            if fault is not None:
                refused[key] = f"{'.'.join(fault[0])}: {fault[1]}"
            elif not may_use(event.workflow):
                refused[key] = "the token may not use its workflow"
            else:
                made.append((key, event))
    reasons += refused.values()
    return Traces(
        events=[event for key, event in made if key not in refused],
        rejected=len(reasons),
        reasons=list(dict.fromkeys(reasons))[:_MAX_REASONS],
        ignored=ignored,
    )


type _Key = tuple[str, str]
type _Place = tuple[str | int, ...]


def _event(one: SpanEvent, app_id: str) -> Event:
    place = one.place
    ids = {
        "app_id": app_id,
        "chat_id": place.chat_id,
        "workflow_name": place.workflow,
        "user_id": place.user_id,
    }
    event = Event.create(
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
    return event if one.span.trace is None else event.model_copy(update=one.span.trace._asdict())


def _spans(
    request: ExportTraceServiceRequest, app_id: str, limits: GatewayLimits
) -> tuple[list[Span], list[str], Counter[tuple[str, IgnoredReason]]]:
    """Return the valid spans of a request, the reason for each invalid span of an agent, and the ignored ones."""
    resources = request.resource_spans
    scopes = sum(len(each.scope_spans) for each in resources)
    if (seen := max(len(resources), scopes)) > limits.spans:
        raise _too_many(f"a request has at most {limits.spans:,} resources and scopes, and this one has {seen:,}")
    if (seen := sum(len(scope.spans) for each in resources for scope in each.scope_spans)) > limits.spans:
        raise _too_many(f"a request has at most {limits.spans:,} spans, and this one has {seen:,}")
    spans: list[Span] = []
    reasons: list[str] = []
    ignored: Counter[tuple[str, IgnoredReason]] = Counter()
    others: list[str] = []
    for number, each in enumerate(resources):
        resource = _attributes(each.resource.attributes, RESOURCE_ATTRIBUTES)
        if resource.get(APP_ID, app_id) != app_id:
            others.append(pointer("resourceSpans", number, "resource"))
        for scope in each.scope_spans:
            for raw in scope.spans:
                span = _span(raw, resource)
                if span.kind is None and scope.scope.name != LIBRARY:
                    reason: IgnoredReason = "other_operation" if OPERATION in span.attributes else "no_operation"
                    ignored[scope.scope.name[:_LONGEST_LIBRARY] or "(no name)", reason] += 1
                if span.kind is not None and (fault := _misplaced(span)):
                    reasons.append(fault)
                else:
                    spans.append(span)
    if others:
        detail = f"remove {APP_ID} from the resource, or set it to the app of the token"
        faults = [{"pointer": place, "detail": detail} for place in others[:MAX_FAULTS]]
        raise Problem(403, "other-app", "the token belongs to another app; nothing was taken", faults=faults)
    return spans, reasons, ignored


def _span(raw: Any, resource: Mapping[str, Any]) -> Span:
    exception: Mapping[str, Any] = {}
    for moment in raw.events:
        if moment.name == _EXCEPTION:
            exception = _attributes(moment.attributes, _EXCEPTION_ATTRIBUTES)
    return Span(
        trace_id=_id(raw.trace_id, 16),
        span_id=_id(raw.span_id, 8),
        parent_id=_id(raw.parent_span_id, 8) or None,
        name=raw.name,
        start_ns=raw.start_time_unix_nano,
        end_ns=raw.end_time_unix_nano,
        attributes=_attributes(raw.attributes, ATTRIBUTES),
        resource=resource,
        failed=raw.status.code == _ERROR,
        status_message=raw.status.message or None,
        exception_type=exception.get("exception.type"),
        exception_message=exception.get("exception.message"),
    )


def _misplaced(span: Span) -> str | None:
    """Return why a span cannot become an event, or None."""
    if not span.trace_id:
        return "a span has no trace id of 16 bytes, not all 0"
    if not span.span_id:
        return "a span has no id of 8 bytes, not all 0"
    return None if span.start_ns and span.end_ns else "a span has no start or no end"


def _attributes(raw: Iterable[Any], wanted: frozenset[str]) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in raw if each.key in wanted}


def _id(raw: bytes, size: int) -> str:
    """Return an id as hexadecimal digits, or "" unless it has ``size`` bytes that are not all 0."""
    return raw.hex() if len(raw) == size and any(raw) else ""


def _value(raw: Any) -> Any:
    """Return an ``AnyValue`` as JSON can write it."""
    match raw.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_value(each) for each in raw.array_value.values]
        case "kvlist_value":
            return {each.key: _value(each.value) for each in raw.kvlist_value.values}
        case "bytes_value":
            return base64.b64encode(raw.bytes_value).decode()
        case "double_value":
            return raw.double_value if math.isfinite(raw.double_value) else None
        case name:
            return getattr(raw, name)


def _of_protobuf(body: bytes, values: int) -> ExportTraceServiceRequest:
    fields = values * _FIELDS_PER_VALUE
    # A field takes two bytes, but makes up to two hundred of memory.
    if len(body) > 2 * fields:
        seen = count_protobuf(body, fields_of(ExportTraceServiceRequest.DESCRIPTOR), enough=fields)
        if seen is None:
            raise _no_protobuf()
        if seen > fields:
            raise too_many_values(fields, "more")
    try:
        request: ExportTraceServiceRequest = ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        raise _no_protobuf() from None
    return request


def _no_protobuf() -> Problem:
    return Problem(400, "no-protobuf", "the body is not an ExportTraceServiceRequest of OTLP in protobuf")


def _of_json(body: bytes, values: int) -> ExportTraceServiceRequest:
    """Return the request of a JSON body. Raises ``Problem`` with the place of the first fault."""
    raw = read_json(body, values=values)
    request = ExportTraceServiceRequest()
    if not isinstance(raw, dict):
        raise _invalid()
    if raw and not any(name in raw for name in _names("resourceSpans")):
        detail = "the body has no resourceSpans: send the ExportTraceServiceRequest of OTLP; nothing was taken"
        raise Problem(422, "invalid-traces", detail, faults=[{"pointer": pointer(), "detail": "no resourceSpans"}])
    for resource, place in _objects(cast("Any", raw), "resourceSpans"):
        read = request.resource_spans.add()
        _parse(resource.get("resource"), read.resource, *place, "resource")
        for scope, within in _objects(resource, "scopeSpans", *place):
            read_scope = read.scope_spans.add()
            named = scope.get("scope")
            library = {"name": cast("Any", named).get("name")} if isinstance(named, dict) else None
            _parse(library, read_scope.scope, *within, "scope")
            spans = read_scope.spans
            for span, at in _objects(scope, "spans", *within):
                # JSON has hexadecimal digits where protobuf's own JSON has base64.
                ids = {name: _base64(span[name]) for each in _IDS for name in _names(each) if name in span}
                _parse({**span, "links": None, **ids}, spans.add(), *at)
    return request


def _names(name: str) -> tuple[str, str]:
    """Return the name of a field in JSON and that of the proto, which the collector reads too."""
    return name, re.sub(r"(?=[A-Z])", "_", name).lower()


def _objects(parent: dict[str, Any], name: str, *above: str | int) -> Iterator[tuple[dict[str, Any], _Place]]:
    """Yield the objects of a list, with their places. Raises ``Problem`` for a value of another type."""
    name = next((each for each in _names(name) if each in parent), name)
    values = parent.get(name)
    if values is not None and not isinstance(values, list):
        raise _invalid(*above, name)
    for number, value in enumerate(cast("list[Any]", values or ())):
        if not isinstance(value, dict):
            raise _invalid(*above, name, number)
        yield cast("dict[str, Any]", value), (*above, name, number)


def _parse(raw: Any, message: Any, *place: str | int) -> None:
    if not isinstance(raw, dict | None):
        raise _invalid(*place)
    try:
        json_format.ParseDict(cast("dict[str, Any]", raw or {}), message, ignore_unknown_fields=True)
    except (json_format.ParseError, TypeError) as error:
        # Its text begins with the names of the fields on the way to the fault; the rest may quote the body.
        fields: list[str] = []
        text = str(error)
        while found := _FIELDS.match(text):
            fields.append(found[1])
            text = text[found.end() :]
        raise _invalid(*place, *fields) from None


def _base64(digits: Any) -> Any:
    """Return hexadecimal digits as base64, "" for any other text; a value that is not a text stays."""
    if not isinstance(digits, str):
        return digits
    try:
        return base64.b64encode(bytes.fromhex(digits)).decode()
    except ValueError:
        return ""


def _invalid(*place: str | int) -> Problem:
    detail = "the spans do not have the form of OTLP in JSON; nothing was taken"
    fault = {"pointer": pointer(*place), "detail": "this value does not fit the OTLP field, or a value in it does not"}
    return Problem(422, "invalid-traces", detail, faults=[fault])


def _too_many(detail: str) -> Problem:
    return Problem(422, "batch-too-large", f"{detail}: send smaller batches; nothing was taken")

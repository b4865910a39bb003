"""The OpenAPI document of the gateway. Its schemas come from the models that the gateway validates with.

Events in binary mode are not described: OpenAPI cannot bind headers to one media type.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from graphweft.transport import MAX_EVENT_BYTES
from graphweft_contracts import ContextReply, Event, Payload
from graphweft_contracts.events import registered_payloads
from graphweft_contracts.wire import VERSION
from graphweft_workers.gateway import problems
from graphweft_workers.gateway.cloud_events import BATCH, MAX_ATTRIBUTES, SINGLE
from graphweft_workers.gateway.fact_search import Facts, FactsQuestion
from graphweft_workers.gateway.limits import GatewayLimits
from graphweft_workers.gateway.mcp_route import ADDRESS, LISTED
from graphweft_workers.gateway.messages import MessagesRequest
from graphweft_workers.gateway.patterns import POSITION
from graphweft_workers.gateway.questions import ContextQuestion
from graphweft_workers.gateway.traces import PROTOBUF

_REFERENCE: Final = "#/components/schemas/{model}"
_PAYLOADS: Final = registered_payloads()
_JSON: Final = "application/json"


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Fault(_Answer):
    """One fault of a request and its place."""

    detail: str
    pointer: str | None = Field(default=None, description="JSON pointer into the body, as a URI fragment.")
    header: str | None = None


class Receipt(_Answer):
    """The bus has all events."""

    positions: list[Annotated[str, StringConstraints(pattern=POSITION)]] = Field(
        description="Position of each event on the bus, in the order of the request: `after` of a question."
    )


class EventsReceipt(Receipt):
    """The bus has all events."""

    hints: list[Fault] | None = Field(
        default=None, description="What is probably misspelt in them: an attribute, or a type. For people."
    )


class MessagesReceipt(Receipt):
    """The bus has all messages."""

    message: str = Field(description="For people.")
    success: Literal[True]


class PartialSuccess(_Answer):
    """Spans of agents that can never become an event. Do not send them again."""

    rejectedSpans: Annotated[str, StringConstraints(pattern="^[1-9][0-9]*$")] = Field(description="How many.")
    errorMessage: str = Field(description="The reasons, for people.")


class TracesReceipt(_Answer):
    """The bus has the events of all other spans."""

    partialSuccess: PartialSuccess | None = None


class ProblemDetails(BaseModel):
    """An error, by RFC 9457."""

    type: str = Field(description="`urn:graphweft:problem:` and the name of the kind of problem.")
    title: str
    status: int
    detail: str = Field(description="What is wrong and what to do; for people.")
    errors: list[Fault] | None = Field(default=None, description="The first faults and their places.")
    positions: list[str | None] | None = Field(
        default=None,
        description="Only of `bus-unavailable`: the confirmed positions, null for the others.",
    )
    roles: list[str] | None = Field(default=None, description="Only of `missing-role`: one of them is needed.")
    quota: str | None = Field(default=None, description="Only of `over-quota`: its name in the policies of apps.")
    limit: float | None = Field(default=None, description="Only of `over-quota`.")
    used: int | None = Field(default=None, description="Only of `over-quota`.")
    reason: str | None = Field(default=None, description="Only of `search-failed`: as in `ContextReply`.")


class _Operation(NamedTuple):
    """One POST route. The description may name limits in braces."""

    path: str
    name: str
    summary: str
    description: str
    question: str
    status: int
    answered: str
    answer: str


_OPERATIONS: Final = (
    _Operation(
        "/v1/events",
        "publishEvents",
        "Publish one event, or several in their order.",
        "CloudEvents 1.0 in structured mode, one or a batch. Binary mode works too: the attributes as headers `ce-*`, "
        "the data as `application/json`. Events of one chat take effect in the order in which they were sent, each "
        "once: app, `source` and `id` identify an event. All events belong to the token's app. The data of these types "
        "has a schema of its own: "
        + ", ".join(f"`{type}`: `{model.__name__}`" for type, model in _PAYLOADS.items())
        + ". The body has at most {limits.events_bytes:,} bytes, an event at most {event_bytes:,}.",
        "Event",
        202,
        "The bus has all events.",
        "EventsReceipt",
    ),
    _Operation(
        "/v1/context",
        "getContext",
        "Get the context of one agent's next turn, or search its memories, within the budget.",
        "The answer to a valid question is always 200; the reply lists the missing parts with their reasons. "
        "The body has at most {limits.context_bytes:,} bytes.",
        "ContextQuestion",
        200,
        "The context that is ready.",
        "ContextReply",
    ),
    _Operation(
        "/v1/traces",
        "exportTraces",
        "Publish the events of GenAI spans, as OTLP exporters and collectors send them over HTTP.",
        "Spans of agents, tools, model calls and workflows, by OpenTelemetry's semantic conventions for GenAI, become "
        "lifecycle events; other spans are ignored. The body is `ExportTraceServiceRequest` in JSON, or in protobuf as "
        f"`{PROTOBUF}`, with or without `Content-Encoding: gzip`. The answer has the same form. A span that is sent "
        "twice has one effect. The body has at most {limits.events_bytes:,} bytes, {limits.values:,} values, and "
        "{limits.spans:,} spans, which give at most {limits.span_events:,} events. Decompressed, it has at most "
        "{limits.unpacked_ratio} times its compressed bytes, or {limits.unpacked_always:,}.",
        "TracesRequest",
        200,
        "The bus has the events of all spans that were not rejected.",
        "TracesReceipt",
    ),
    _Operation(
        "/messages",
        "addMessages",
        "Remember the messages of a group, as clients of Graphiti's server send them.",
        "Each message becomes an `episode.add` event, from which a model extracts facts later. A message with a `uuid` "
        "or a `timestamp` takes effect once, however often it is sent. "
        "The body has at most {limits.events_bytes:,} bytes, an event at most {event_bytes:,}.",
        "MessagesRequest",
        202,
        "The bus has all messages.",
        "MessagesReceipt",
    ),
    _Operation(
        "/search",
        "searchFacts",
        "Find current facts of some groups, as clients of Graphiti's server ask for them.",
        "An empty list means that there are no facts. If the search fails, the answer is 503. "
        "The body has at most {limits.context_bytes:,} bytes.",
        "FactsQuestion",
        200,
        "The facts, the best first.",
        "Facts",
    ),
)
_PROBLEMS: Final = {
    400: ("NoJson", "The body is not valid JSON, or not what its headers say."),
    401: ("NoToken", "The token is missing, unknown or expired."),
    403: (
        "Forbidden",
        "The request names another app than the token's, or the token lacks a role or a workflow: `roles` says which "
        "roles it needs. Events that only workers emit are refused for every token. Nothing was taken.",
    ),
    408: ("SlowBody", "The body took too long to arrive. Nothing was taken."),
    413: ("TooLarge", "The body, the batch or an event is too large. Nothing was taken."),
    415: ("UnsupportedMediaType", "The gateway does not read bodies of this type. Nothing was taken."),
    422: ("Invalid", "The body breaks the contract; `errors` names the places. Nothing was taken."),
    429: (
        "TooManyRequests",
        "The app has too many open requests, or sends more than its quota (`over-quota`). Nothing was taken: send it "
        "again after `Retry-After` seconds.",
    ),
    503: (
        "Unavailable",
        "Try again after `Retry-After` seconds. `overloaded`: nothing was taken. `bus-unavailable`: the bus did not "
        "confirm all events in time; events without a position may still take effect. Send the same request again "
        "until it is taken: events that are on the bus already have no second effect. `search-failed`: the graph or "
        "the responder does not answer; `reason` says why.",
    ),
    507: (
        "OverQuota",
        "`over-quota`: the app keeps more on the bus than its quota: `quota`, `limit` and `used` say what. Nothing was "
        "taken. `partition-refused`: the bus takes no events for a partition of the app until an operator mends it; "
        "`event-refused`: the bus takes an event at no time. Then events with a position are on the bus.",
    ),
}


def document(
    limits: GatewayLimits, *, secured: bool, schema_ids: Sequence[str] | None = None, mcp: bool = False
) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of a gateway; ``secured`` says that requests need tokens.

    ``schema_ids`` are the ontologies that messages may name; None allows any. ``mcp`` says that it serves MCP.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "graphweft gateway",
            "version": VERSION,
            "description": "Publish what agents do, and get context before each turn. Errors are "
            f"`{problems.MEDIA_TYPE}` (RFC 9457) and name the fault, its place and the next step.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}] if secured else [],
        "paths": {
            **{each.path: {"post": _operation(each, limits, secured)} for each in _OPERATIONS},
            **({"/mcp": {"post": _mcp(limits, secured)}} if mcp else {}),
            "/healthcheck": {"get": _state("healthcheck", "Whether the process answers; as of Graphiti's server.")},
            "/healthz": {"get": _state("health", "Whether the process answers.")},
            "/readyz": {"get": _state("readiness", "Whether the bus answers, and a responder.", 503)},
        },
        "components": {
            "schemas": _schemas(limits, schema_ids),
            "responses": {
                name: {"description": text, "content": _content("ProblemDetails", problems.MEDIA_TYPE)}
                for name, text in _PROBLEMS.values()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A token of one app."}},
        },
    }


def _operation(each: _Operation, limits: GatewayLimits, secured: bool) -> dict[str, Any]:
    content = _content(each.question)
    if each.question == "Event":
        one = content[_JSON]["schema"]
        batch = {"type": "array", "items": one, "maxItems": limits.events}
        content = {SINGLE: {"schema": one}, BATCH: {"schema": batch}}
    return {
        "operationId": each.name,
        "summary": each.summary,
        "description": each.description.format(limits=limits, event_bytes=MAX_EVENT_BYTES),
        "requestBody": {"required": True, "content": content},
        "responses": {
            str(each.status): {"description": each.answered, "content": _content(each.answer)},
            **_refusals(*(code for code in _PROBLEMS if secured or code != 401)),
        },
    }


def _mcp(limits: GatewayLimits, secured: bool) -> dict[str, Any]:
    """Return the operation of ``/mcp``: the protocol describes its bodies, and the address says whose memories."""
    message = {
        _JSON: {"schema": {"type": "object", "required": ["jsonrpc"], "properties": {"jsonrpc": {"const": "2.0"}}}}
    }
    text = {"type": "string"}
    parameters = [
        {
            "name": name,
            "in": "query",
            "description": said,
            "schema": {"type": "array", "items": text} if name in LISTED else text,
        }
        for name, said in ADDRESS.items()
    ]
    return {
        "operationId": "callTools",
        "summary": "Call the tools of memory by the Model Context Protocol (streamable HTTP).",
        "description": "One message of JSON-RPC; each request is answered for itself. The address says whose memories "
        "these are, with at least one scope. Send `Accept: application/json, text/event-stream`. What the protocol "
        f"refuses is an error of JSON-RPC. The body has at most {limits.events_bytes:,} bytes.",
        "parameters": parameters,
        "requestBody": {"required": True, "content": message},
        "responses": {
            "200": {"description": "The answer; errors of tools are answers, too.", "content": message},
            "202": {"description": "A notification was taken."},
            "406": {"description": "The header `Accept` lacks a type.", "content": message},
            **_refusals(*(code for code in _PROBLEMS if code != 507 and (secured or code != 401))),
        },
    }


def _state(name: str, summary: str, *codes: int) -> dict[str, Any]:
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    return {
        "operationId": name,
        "summary": summary,
        "security": [],
        "responses": {
            "200": {"description": "It does.", "content": {_JSON: {"schema": schema}}},
            **_refusals(*codes),
        },
    }


def _refusals(*codes: int) -> dict[str, Any]:
    return {str(code): {"$ref": f"#/components/responses/{_PROBLEMS[code][0]}"} for code in codes}


def _content(model: str, media_type: str = _JSON) -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": _REFERENCE.format(model=model)}}}


def _schemas(limits: GatewayLimits, schema_ids: Sequence[str] | None) -> dict[str, Any]:
    found = copy.deepcopy(_of_models())
    messages = found["MessagesRequest"]["properties"]
    messages["messages"]["maxItems"] = limits.events
    if schema_ids is not None:
        messages["schema_id"]["anyOf"][0] = {"type": "string", "enum": list(schema_ids)}
    return found


@functools.cache
def _of_models() -> dict[str, Any]:
    """Return the schemas that are the same in each document; they take a tenth of a second, and are not for changes."""
    read = (
        ContextQuestion,
        MessagesRequest,
        FactsQuestion,
        EventsReceipt,
        MessagesReceipt,
        TracesReceipt,
        ProblemDetails,
    )
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [(each, "validation") for each in read]
    models.extend((each, "serialization") for each in (ContextReply, Facts))
    models.extend((each, "validation") for each in _PAYLOADS.values())
    found: dict[str, Any] = models_json_schema(models, ref_template=_REFERENCE)[1]["$defs"]
    return found | {"Event": _event(), "TracesRequest": _TRACES}


def _event() -> dict[str, Any]:
    """Return the contract's schema of an event. The gateway fills in the app and, by default, version and time."""
    schema = Event.model_json_schema()
    schema["properties"]["data"] = Payload.model_json_schema()
    schema["required"] = [name for name in schema["required"] if name not in ("appid", "specversion")]
    schema["maxProperties"] = MAX_ATTRIBUTES
    schema["description"] = "Any event, also of a type of your own. `data.context` holds context variables."
    return schema


_TRACES: Final = {
    "type": "object",
    "description": "`ExportTraceServiceRequest` in the JSON of OTLP 1: "
    "https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding",
    "properties": {
        name: {"type": ["array", "null"], "items": {"type": "object"}} for name in ("resourceSpans", "resource_spans")
    },
    "anyOf": [{"required": ["resourceSpans"]}, {"required": ["resource_spans"]}, {"maxProperties": 0}],
}

"""The OpenAPI document of the gateway, from the same models and limits that it works by.

No event in binary mode is described: OpenAPI cannot say that headers go with one media type only. Where a body is
admitted here, it is admitted there: the test suite sends what the document generates.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from graphweft.transport import MAX_EVENT_BYTES
from graphweft_contracts import LIFECYCLE, MEMORY, ContextReply, MemoryScope, SearchQuery
from graphweft_contracts.asyncapi import VERSION
from graphweft_contracts.episodes import EPISODES
from graphweft_contracts.events import AppId, Name
from graphweft_contracts.schemas import schemas
from graphweft_contracts.search import MOST_RESULTS
from graphweft_workers.gateway import problems
from graphweft_workers.gateway.cloud_events import BATCH, MOST_ATTRIBUTES, SINGLE
from graphweft_workers.gateway.facts import Facts, FactsQuestion
from graphweft_workers.gateway.limits import Limits, whole
from graphweft_workers.gateway.messages import MessagesRequest
from graphweft_workers.gateway.patterns import POSITION
from graphweft_workers.gateway.traces import PROTOBUF, TracesRequest

_REFERENCE: Final = "#/components/schemas/{model}"


_MOST_MS: Final = 10_000
"""Largest budget: nobody holds up a turn for longer."""


_PAYLOADS: Final = {**LIFECYCLE, **MEMORY, **EPISODES}
_PAYLOAD_TYPES: Final = ", ".join(f"`{type}` by `{model.__name__}`" for type, model in _PAYLOADS.items())


class SearchQuestion(SearchQuery):
    """A search: of the memories of a scope, or of what an index of the graph holds.

    It brings no Cypher. A rule's author answers for that; a token may be in anybody's hands, and one expression can
    hold a thread of a graph server for seconds, whatever the time limit.
    """

    retrieval_query: None = Field(  # pyright: ignore[reportIncompatibleVariableOverride] - the model is frozen
        default=None, description="Not over HTTP: say it in a rule of the workflow."
    )
    params: dict[str, Any] = Field(default_factory=dict, max_length=0, description="None: there is no Cypher.")

    model_config = ConfigDict(strict=True)

    top_k: Annotated[int, Field(ge=1, le=MOST_RESULTS, description="Most results."), BeforeValidator(whole)] = 5

    @model_validator(mode="before")
    @classmethod
    def _some_unknown(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        members = cast("dict[str, Any]", value)
        if "memory" in members:
            members = members | {"memory": _first_unknown(MemoryScope, members["memory"])}
        return _first_unknown(cls, members)


class ContextQuestion(BaseModel):
    """Asks for the context of one agent's next turn, or for one search: then no rules are asked."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    agent: Name
    workflow: Name
    chat_id: Name
    app_id: AppId | None = Field(default=None, description="The token's app; another one is refused.")
    user_id: Name | None = None
    context: dict[str, Any] = Field(default_factory=dict, description="Context variables: `$context.*` in rules.")
    budget_ms: Annotated[
        int,
        Field(ge=1, le=_MOST_MS, description="Milliseconds after which the answer comes as it is."),
        BeforeValidator(whole),
    ] = 500
    max_tokens: Annotated[int, Field(ge=1), BeforeValidator(whole)] | None = Field(
        default=None, description="Most tokens of the text; null: no limit."
    )
    after: Annotated[str, StringConstraints(pattern=POSITION, max_length=64)] | None = Field(
        default=None,
        description="Position of an event, as `/v1/events` returns it: the answer waits, within the budget, until the "
        "graph holds its effect.",
    )
    explain: bool = Field(default=False, description="Say of each block how it came about.")
    search: SearchQuestion | None = Field(
        default=None,
        description="Asks for exactly this, and for no rules: `agent`, `workflow` and `chat_id` only say who asks.",
    )

    @model_validator(mode="before")
    @classmethod
    def _some_unknown(cls, value: Any) -> Any:
        return _first_unknown(cls, value)


def _first_unknown(model: type[BaseModel], value: Any) -> Any:
    """Leave out members that are unknown, but for the first: naming 100,000 of them takes a second."""
    if not isinstance(value, dict):
        return value
    members = cast("dict[str, Any]", value)
    unknown = islice((name for name in members if name not in model.model_fields), problems.MOST_FAULTS)
    kept = {*model.model_fields, *unknown}
    return {name: content for name, content in members.items() if name in kept}


def document(limits: Limits, *, secured: bool, schema_ids: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of a gateway; ``secured`` says that it asks for tokens.

    ``schema_ids`` are the ontologies that messages may name; None: any may be.
    """
    question = ContextQuestion.model_json_schema(ref_template=_REFERENCE)
    reply = ContextReply.model_json_schema(ref_template=_REFERENCE, mode="serialization")
    payloads = {model.__name__: model.model_json_schema(ref_template=_REFERENCE) for model in _PAYLOADS.values()}
    messages = MessagesRequest.model_json_schema(ref_template=_REFERENCE)
    messages["properties"]["messages"]["maxItems"] = limits.events
    if schema_ids is not None:
        messages["properties"]["schema_id"]["anyOf"][0] = {"type": "string", "enum": list(schema_ids)}
    searched = FactsQuestion.model_json_schema(ref_template=_REFERENCE)
    facts = Facts.model_json_schema(ref_template=_REFERENCE, mode="serialization")
    traces = TracesRequest.model_json_schema(ref_template=_REFERENCE)
    components = {
        **{
            name: schema
            for part in (question, reply, messages, facts, traces, *payloads.values())
            for name, schema in part.pop("$defs", {}).items()
        },
        **payloads,
        "ContextQuestion": question,
        "ContextReply": reply,
        "MessagesRequest": messages,
        "MessagesTaken": _MESSAGES_TAKEN,
        "TracesRequest": traces,
        "TracesTaken": _TRACES_TAKEN,
        "FactsQuestion": searched,
        "Facts": facts,
        "Event": _event(),
        "Taken": _TAKEN,
        "Problem": _PROBLEM,
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "graphweft gateway",
            "version": VERSION,
            "description": "Publish what agents do, and get context before each turn. Every error says in "
            f"`{problems.MEDIA_TYPE}` (RFC 9457) what is wrong, where, and what to do.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        **({"security": [{"token": []}]} if secured else {}),
        "paths": {
            "/v1/events": {"post": _events(limits, secured)},
            "/v1/context": {"post": _context(limits, secured)},
            "/v1/traces": {"post": _traces(limits, secured)},
            "/messages": {"post": _messages(limits, secured)},
            "/search": {"post": _search(limits, secured)},
            "/healthcheck": {
                "get": _state("healthcheck", "Whether the process answers, as Graphiti's server says it.", ())
            },
            "/healthz": {"get": _state("health", "Whether the process answers.", ())},
            "/readyz": {"get": _state("readiness", "Whether the bus answers, and a responder.", (503,))},
        },
        "components": {
            "schemas": components,
            "responses": {name: _problem(text) for name, text in _PROBLEMS.values()},
            **(
                {"securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "One app's token."}}}
                if secured
                else {}
            ),
        },
    }


def _events(limits: Limits, secured: bool) -> dict[str, Any]:
    one = {"$ref": _REFERENCE.format(model="Event")}
    return {
        "operationId": "publishEvents",
        "summary": "Publish one event or several in their order.",
        "description": (
            "CloudEvents 1.0 in structured mode, one or a batch. Binary mode is admitted too: the attributes as "
            "headers `ce-*`, the data as `application/json`. Events of one chat take effect in the order in which they "
            "were sent, each once: an event is known by its app, `source` and `id`. All are of the token's app. The "
            f"data of these types is checked by a schema of its own: {_PAYLOAD_TYPES}. "
            f"The body has at most {limits.events_bytes:,} bytes, an event at most {MAX_EVENT_BYTES:,}."
        ),
        "requestBody": {
            "required": True,
            "content": {
                SINGLE: {"schema": one},
                BATCH: {"schema": {"type": "array", "items": one, "maxItems": limits.events}},
            },
        },
        "responses": {
            "202": {
                "description": "The bus has all of them.",
                "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Taken")}}},
            },
            **_refusals(secured),
        },
    }


def _context(limits: Limits, secured: bool) -> dict[str, Any]:
    return {
        "operationId": "getContext",
        "summary": "Get the context of one agent's next turn, or search its memories, inside the budget.",
        "description": (
            "A valid question is always answered with 200: what is missing, and why, stands in the answer. "
            f"The body has at most {limits.context_bytes:,} bytes."
        ),
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model="ContextQuestion")}}},
        },
        "responses": {
            "200": {
                "description": "The context that is ready.",
                "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model="ContextReply")}}},
            },
            **_refusals(secured),
        },
    }


def _messages(limits: Limits, secured: bool) -> dict[str, Any]:
    return {
        "operationId": "addMessages",
        "summary": "Remember what was said in a group, as clients of Graphiti's server send it.",
        "description": (
            "Each message becomes an `episode.add` event, of which a model says later what there is to know. A message "
            "with a `uuid` or a `timestamp` has one effect, however often it is sent. "
            f"The body has at most {limits.events_bytes:,} bytes, an event at most {MAX_EVENT_BYTES:,}."
        ),
        "requestBody": _body("MessagesRequest"),
        "responses": {"202": _answer("The bus has all of them.", "MessagesTaken"), **_refusals(secured)},
    }


def _traces(limits: Limits, secured: bool) -> dict[str, Any]:
    return {
        "operationId": "exportTraces",
        "summary": "Publish what GenAI spans tell, as exporters and collectors send them by OTLP over HTTP.",
        "description": (
            "Spans of agents, tools, model calls and workflows, by OpenTelemetry's semantic conventions for GenAI, "
            "become lifecycle events; others are passed over. The body is `ExportTraceServiceRequest` in JSON, or in "
            f"protobuf as `{PROTOBUF}`, with `Content-Encoding: gzip` or without; the answer has the same form. A span "
            f"that is sent twice has one effect. The body has at most {limits.events_bytes:,} bytes, unpacked "
            f"{limits.unpacked_bytes:,}, and {limits.spans:,} spans, which give at most {limits.span_events:,} events."
        ),
        "requestBody": _body("TracesRequest"),
        "responses": {
            "200": _answer("The bus has the events of all spans but those that are rejected.", "TracesTaken"),
            **_refusals(secured),
        },
    }


def _search(limits: Limits, secured: bool) -> dict[str, Any]:
    return {
        "operationId": "searchFacts",
        "summary": "Find facts of some groups that hold now, as clients of Graphiti's server ask for them.",
        "description": (
            "An empty list means that there are none: where that is not known, the answer is 503. "
            f"The body has at most {limits.context_bytes:,} bytes."
        ),
        "requestBody": _body("FactsQuestion"),
        "responses": {"200": _answer("The facts, the best first.", "Facts"), **_refusals(secured)},
    }


def _body(model: str) -> dict[str, Any]:
    return {"required": True, "content": _json(model)}


def _answer(text: str, model: str) -> dict[str, Any]:
    return {"description": text, "content": _json(model)}


def _json(model: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(model=model)}}}


def _state(name: str, summary: str, problem_codes: tuple[int, ...]) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "security": [],
        "responses": {
            "200": {
                "description": "It does.",
                "content": {
                    "application/json": {
                        "schema": {"type": "object", "additionalProperties": {"type": "string"}},
                    }
                },
            },
            **{str(code): _reference(code) for code in problem_codes},
        },
    }


def _refusals(secured: bool) -> dict[str, Any]:
    return {str(code): _reference(code) for code in _PROBLEMS if secured or code != 401}


def _reference(code: int) -> dict[str, str]:
    return {"$ref": f"#/components/responses/{_PROBLEMS[code][0]}"}


def _problem(text: str) -> dict[str, Any]:
    return {
        "description": text,
        "content": {problems.MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(model="Problem")}}},
    }


def _event() -> dict[str, Any]:
    """Return the contract's schema of an event, of which the gateway fills in what the token and the clock say."""
    schema = copy.deepcopy(schemas()["event"])
    payload = schema.pop("$defs")["Payload"]
    schema["properties"]["data"] = payload
    schema["required"] = [name for name in schema["required"] if name != "appid"]
    schema["maxProperties"] = MOST_ATTRIBUTES
    del schema["$schema"], schema["$id"]
    return schema


_PROBLEMS: Final = {
    400: ("NoJson", "The body is no JSON, or not what its headers say."),
    401: ("NoToken", "No token, or one that is not known here."),
    403: ("OtherApp", "Something in it is of another app than the token. Nothing was taken."),
    408: ("SlowBody", "The body took too long to arrive. Nothing was taken."),
    413: ("TooLarge", "The body, the batch or an event is too large. Nothing was taken."),
    415: ("UnsupportedMediaType", "A body of this kind is not read here. Nothing was taken."),
    422: ("Invalid", "The body breaks the contract: `errors` says where. Nothing was taken."),
    429: ("TooManyRequests", "The app has too many requests open. Nothing was taken."),
    503: (
        "Unavailable",
        "Come back after `Retry-After` seconds. `overloaded`: nothing was taken. `bus-unavailable`: the bus did not "
        "confirm all of the events in time; those without a position may still take effect. Send the same request "
        "again until it is taken: what is on the bus already has no second effect. `search-failed`: the "
        "graph, or who asks it, does not answer; `reason` says why.",
    ),
}
_TAKEN: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["positions"],
    "additionalProperties": False,
    "properties": {
        "positions": {
            "type": "array",
            "items": {"type": "string", "pattern": POSITION},
            "description": "Position of each event on the bus, in the order of the request: `after` of a question.",
        }
    },
}
_TRACES_TAKEN: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "partialSuccess": {
            "type": "object",
            "required": ["rejectedSpans", "errorMessage"],
            "additionalProperties": False,
            "description": "Only where spans of agents can never give an event, and have not to be sent again.",
            "properties": {
                "rejectedSpans": {"type": "string", "pattern": "^[1-9][0-9]*$", "description": "How many."},
                "errorMessage": {"type": "string", "description": "Why; for people."},
            },
        }
    },
}
_MESSAGES_TAKEN: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["message", "success", "positions"],
    "additionalProperties": False,
    "properties": {
        "message": {"type": "string", "description": "For people."},
        "success": {"const": True},
        **_TAKEN["properties"],
    },
}
_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "`urn:graphweft:problem:` and the name of the kind of problem."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong and what to do; for people."},
        "errors": {
            "type": "array",
            "description": "The first faults, and where they are.",
            "items": {
                "type": "object",
                "required": ["detail"],
                "additionalProperties": False,
                "properties": {
                    "detail": {"type": "string"},
                    "pointer": {"type": "string", "description": "JSON pointer into the body, as a URI fragment."},
                    "header": {"type": "string"},
                },
            },
        },
        "positions": {
            "type": "array",
            "items": {"type": ["string", "null"]},
            "description": "Only of `bus-unavailable`: the positions that the bus confirmed, null for the others.",
        },
        "reason": {"type": "string", "description": "Only of `search-failed`: as in `ContextReply`."},
    },
}

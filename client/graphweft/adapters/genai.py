"""Turns GenAI spans into lifecycle events. No I/O, and no import of OpenTelemetry.

The conventions are those of https://github.com/open-telemetry/semantic-conventions-genai. A span has two moments, its
start and its end, with one event each. Event ids derive from trace, span and moment, and all events have one
``SOURCE``, so a span that arrives twice, on two paths or after a lost reply, takes effect once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Final, Literal, TypeAlias, cast

from pydantic_core import from_json

from graphweft.adapters import span_conventions
from graphweft.adapters.events import (
    MODEL_CALL_COMPLETE,
    TOOL_CALL_COMPLETE,
    TOOL_CALL_START,
    TURN_COMPLETE,
    TURN_START,
    WORKFLOW_COMPLETE,
    WORKFLOW_ERROR,
    WORKFLOW_START,
)
from graphweft.adapters.turn_book import ErrorFields, TurnFields
from graphweft.adapters.values import milliseconds
from graphweft.chat_formats import without_reasoning
from graphweft.chat_formats.parts import read_content
from graphweft.chat_formats.values import item
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.events import (
    AgentTurnComplete,
    AgentTurnStart,
    ModelCallComplete,
    ToolCallComplete,
    ToolCallStart,
    WorkflowComplete,
    data_of,
    known,
)
from graphweft_contracts.trace_context import TraceContext

SOURCE: Final = "/graphweft/otel"
"""``source`` of the events, on all paths."""
OPERATION: Final = "gen_ai.operation.name"
CONVERSATION: Final = "gen_ai.conversation.id"
APP_ID: Final = "graphweft.app_id"
"""Resource attribute: the app of the spans."""
_WORKFLOW_NAME: Final = "graphweft.workflow_name"
"""Resource attribute: the workflow of the events; it overrides that of spans."""
_AGENT_NAME: Final = "gen_ai.agent.name"
_AGENT_ID: Final = "gen_ai.agent.id"
_WORKFLOW: Final = "gen_ai.workflow.name"
_TOOL: Final = "gen_ai.tool.name"
_CALL_ID: Final = "gen_ai.tool.call.id"
_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
_RESULT: Final = "gen_ai.tool.call.result"
_MESSAGES: Final = "gen_ai.output.messages"
_RESPONSE_MODEL: Final = "gen_ai.response.model"
_REQUEST_MODEL: Final = "gen_ai.request.model"
_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
_ERROR: Final = "error.type"
_USERS: Final = ("user.id", "enduser.id")
_MAF_ID, _MAF_NAME = "workflow.id", "workflow.name"
"""Attributes of the spans ``workflow.run`` of Agent Framework."""

ATTRIBUTES: Final = frozenset(
    {
        OPERATION, CONVERSATION, _AGENT_NAME, _AGENT_ID, _WORKFLOW, _TOOL, _CALL_ID, _ARGUMENTS, _RESULT, _MESSAGES,
        _RESPONSE_MODEL, _REQUEST_MODEL, _INPUT_TOKENS, _OUTPUT_TOKENS, _ERROR, _MAF_ID, _MAF_NAME, *_USERS,
        *span_conventions.ATTRIBUTES,
    }
)  # fmt: skip
"""The attributes of spans that this module reads."""
RESOURCE_ATTRIBUTES: Final = frozenset({APP_ID, _WORKFLOW_NAME, *_USERS})
"""The attributes of resources that this module reads."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

Kind: TypeAlias = Literal["workflow", "agent", "tool", "model"]

_KINDS: Final[Mapping[str, Kind]] = {
    "invoke_workflow": "workflow",
    "invoke_agent": "agent",
    "execute_tool": "tool",
    "chat": "model",
    "generate_content": "model",
    "text_completion": "model",
}
_NAMED: Final = frozenset({"invoke_workflow", "invoke_agent", "execute_tool"})
"""Operations that the name of a span may start with, as in ``invoke_agent Planner``. "chat …" is too common."""
_UNKNOWN: Final = "unknown"
_NO_ERROR_TYPE: Final = "_OTHER"
"""The conventions' value for an error without a type."""
_MAX_JSON: Final = 200_000
"""Longest JSON attribute that is parsed, in characters; a longer one stays a text and yields no response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span, ended or open. Ids are hexadecimal, times are nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str = ""
    start_ns: int
    end_ns: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    resource: Mapping[str, Any] = field(default_factory=dict[str, Any])
    failed: bool = False
    """Whether its status is ERROR."""
    status_message: str | None = None
    exception_type: str | None = None
    exception_message: str | None = None

    def __post_init__(self) -> None:
        attributes = span_conventions.in_genai_names(self.attributes, self.name)
        object.__setattr__(self, "attributes", attributes)  # the class is frozen

    @property
    def trace(self) -> TraceContext | None:
        """Its name for what belongs to it; None without ids."""
        return TraceContext.of_ids(self.trace_id, self.span_id)

    @property
    def kind(self) -> Kind | None:
        """The kind of operation, or None for spans that are not about agents."""
        operation = self.attributes.get(OPERATION)
        if operation is not None:
            return _KINDS.get(str(operation))
        word, _, _ = self.name.partition(" ")
        if word in _NAMED:
            return _KINDS[word]
        return "workflow" if self.name == "workflow.run" and _MAF_ID in self.attributes else None

    @property
    def agent(self) -> str:
        """The agent's name, for a span of an agent."""
        return self._text(_AGENT_NAME) or self._rest_of_name() or self._text(_AGENT_ID) or _UNKNOWN

    @property
    def named_agent(self) -> str | None:
        """The agent that the span's own attributes name."""
        return self._text(_AGENT_NAME) or self._text(_AGENT_ID)

    @property
    def agent_id(self) -> str | None:
        """The agent's id."""
        return self._text(_AGENT_ID)

    @property
    def conversation(self) -> str | None:
        """The conversation in the span's own attributes."""
        return self._text(CONVERSATION)

    @property
    def workflow(self) -> str | None:
        """The workflow in the span's own attributes."""
        own = self._text(_WORKFLOW)
        return own or ((self._text(_MAF_NAME) or self._rest_of_name()) if self.kind == "workflow" else None)

    @property
    def user_id(self) -> str | None:
        """The user in the attributes of the span or its resource."""
        named = (_name(values.get(name)) for values in (self.attributes, self.resource) for name in _USERS)
        return next((name for name in named if name), None)

    @property
    def tool(self) -> str:
        """The tool's name, for a span of a tool."""
        return self._text(_TOOL) or self._rest_of_name() or _UNKNOWN

    @property
    def call_id(self) -> str:
        """The id of the tool call, by default of the span."""
        return self._text(_CALL_ID) or self.span_id

    @property
    def arguments(self) -> Any:
        """The arguments of the tool call."""
        return _structured(self.attributes.get(_ARGUMENTS))

    @property
    def result(self) -> Any:
        """The result of the tool call."""
        return _structured(self.attributes.get(_RESULT))

    @property
    def response(self) -> str | None:
        """The text of the agent's last message, if the span holds messages."""
        for message in reversed(_items(_structured(self.attributes.get(_MESSAGES)))):
            if item(message, "role") == "assistant":
                return without_reasoning("".join(read_content(item(message, "parts")).texts)) or None
        return None

    @property
    def failure(self) -> ErrorFields | None:
        """The failure of the span, if any."""
        named = self._text(_ERROR)
        if named is None and not self.failed:
            return None
        kind = named if named and named != _NO_ERROR_TYPE else self.exception_type
        return ErrorFields(error_type=kind or "Error", error_message=self.exception_message or self.status_message)

    @property
    def duration_s(self) -> float:
        """The duration in seconds."""
        return max(0, self.end_ns - self.start_ns) / 1e9

    def model_fields(self) -> dict[str, Any]:
        """Return the further fields of a model call's event."""
        failure = self.failure
        return data_of(
            ModelCallComplete,
            duration_ms=milliseconds(self.duration_s),
            model=known(self._text(_RESPONSE_MODEL) or self._text(_REQUEST_MODEL)),
            input_tokens=known(self.attributes.get(_INPUT_TOKENS)),
            output_tokens=known(self.attributes.get(_OUTPUT_TOKENS)),
            error_type=known(None if failure is None else failure.error_type),
        )

    def event_id(self, moment: Literal["start", "end"]) -> str:
        """Return the id of the event of a moment."""
        return f"{self.trace_id}-{self.span_id}-{moment}"

    def error_id(self, failure: ErrorFields, chat_id: str) -> str:
        """Return the id of the event of a failure, the same for all spans of a trace and chat that it ended."""
        text = f"{chat_id}\0{failure.error_type}\0{failure.error_message or ''}".encode(errors="replace")
        return f"{self.trace_id}-error-{hashlib.sha256(text).hexdigest()[:16]}"

    def _text(self, name: str) -> str | None:
        return _name(self.attributes.get(name))

    def _rest_of_name(self) -> str | None:
        word, _, rest = self.name.partition(" ")
        return rest.strip() or None if word in _NAMED else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPlace:
    """The chat of a span, and the agent that runs it, with the id of the agent's span."""

    chat_id: str
    workflow: str | None = None
    user_id: str | None = None
    agent: str | None = None
    run: str = ""
    workflows: int = 0
    """The number of workflow spans around and including this one; inner workflows emit no events."""

    @classmethod
    def of(cls, span: Span, above: SpanPlace | None, conversation: str | None) -> SpanPlace:
        """Return a span's place from that of its parent, ``above``, and the known conversation of its trace."""
        kind = span.kind
        inherited = above or cls(chat_id=conversation or span.trace_id)
        # A span of a tool may arrive without its parents, and then names its agent itself.
        agent = span.agent if kind == "agent" else span.named_agent or inherited.agent
        run = span.span_id if kind == "agent" else inherited.run
        configured = _name(span.resource.get(_WORKFLOW_NAME))
        return cls(
            chat_id=span.conversation or inherited.chat_id,
            workflow=configured or inherited.workflow or span.workflow,
            user_id=span.user_id or inherited.user_id,
            agent=agent,
            run=run,
            workflows=inherited.workflows + (kind == "workflow"),
        )


class Conversations:
    """The conversations of the latest traces, at most ``limit`` of them."""

    def __init__(self, limit: int = 10_000) -> None:
        self._known: BoundedDict[tuple[str, str], str] = BoundedDict(limit)

    def find(self, app_id: str, trace_id: str) -> str | None:
        """Return the conversation of a trace."""
        return self._known.get((app_id, trace_id))

    def add(self, app_id: str, trace_id: str, conversation: str) -> None:
        """Keep the first conversation of a trace."""
        if (app_id, trace_id) not in self._known:
            self._known[app_id, trace_id] = conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """An event of a span; ``data`` excludes ``context``."""

    type: str
    id: str
    time_ns: int
    span: Span
    place: SpanPlace
    data: dict[str, Any]


def time_of(ns: int) -> datetime:
    """Return the time from nanoseconds since 1970. Raises ``OverflowError`` if it is out of range."""
    return _EPOCH + timedelta(microseconds=ns // 1000)


def events_of(
    spans: Iterable[Span], conversation: Callable[[str], str | None] = lambda trace_id: None
) -> list[SpanEvent]:
    """Return the events of ended spans, ordered by time.

    ``conversation`` returns the known conversation of a trace. Duplicate spans count once. A span whose parents are not
    among ``spans`` has no agent. Events have no numbers of turns and calls.
    """
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    named: dict[str, str] = {}
    for span in by_id.values():
        if span.conversation:
            named.setdefault(span.trace_id, span.conversation)
    found = [
        event
        for moment, span, place in _walk(by_id, lambda trace_id: named.get(trace_id) or conversation(trace_id))
        for event in (_started if moment == "start" else _ended)(span, place)
    ]
    return sorted(found, key=lambda event: event.time_ns)  # stable: events of inner spans stay inside


def _walk(
    by_id: Mapping[tuple[str, str], Span], conversation: Callable[[str], str | None]
) -> Iterator[tuple[Literal["start", "end"], Span, SpanPlace]]:
    """Yield each span's start, then its descendants, then its end. Not recursive, because traces may be deep."""
    below: dict[tuple[str, str], list[Span]] = {}
    roots: list[Span] = []
    for span in sorted(by_id.values(), key=lambda span: span.start_ns):
        above = (span.trace_id, span.parent_id or "")
        (below.setdefault(above, []) if above in by_id else roots).append(span)
    seen: set[tuple[str, str]] = set()
    for root in (*roots, *by_id.values()):  # a cycle of parents has no root
        stack: list[tuple[Span, SpanPlace | None, bool]] = [(root, None, False)]
        while stack:
            span, place, started = stack.pop()
            key = (span.trace_id, span.span_id)
            if started and place is not None:
                yield "end", span, place
            elif key not in seen:
                seen.add(key)
                place = SpanPlace.of(span, place, conversation(span.trace_id))
                yield "start", span, place
                stack.append((span, place, True))
                stack += [(child, place, False) for child in reversed(below.get(key, []))]


def _started(span: Span, place: SpanPlace) -> Iterator[SpanEvent]:
    def event(type: str, data: dict[str, Any]) -> SpanEvent:
        return SpanEvent(
            type=type, id=span.event_id("start"), time_ns=span.start_ns, span=span, place=place, data=data
        )  # fmt: skip

    match span.kind:
        case "workflow" if place.workflows == 1:
            yield event(WORKFLOW_START, {})
        case "agent":
            yield event(TURN_START, data_of(AgentTurnStart, agent_name=span.agent, agent_id=known(span.agent_id)))
        case "tool":
            called = data_of(
                ToolCallStart,
                tool_name=span.tool,
                call_id=span.call_id,
                arguments=span.arguments,
                agent_name=known(place.agent),
            )
            yield event(TOOL_CALL_START, called)
        case _:
            pass


def _ended(span: Span, place: SpanPlace) -> Iterator[SpanEvent]:
    def event(type: str, data: dict[str, Any], id: str | None = None) -> SpanEvent:
        return SpanEvent(
            type=type, id=id or span.event_id("end"), time_ns=span.end_ns, span=span, place=place, data=data
        )  # fmt: skip

    failure, response, duration_ms = span.failure, span.response, milliseconds(span.duration_s)
    succeeded = failure is None
    match span.kind:
        case "workflow" if place.workflows == 1 and succeeded:
            duration_s = round(span.duration_s, 6)
            yield event(
                WORKFLOW_COMPLETE, data_of(WorkflowComplete, status="COMPLETE", duration=duration_s, outputs=response)
            )
        case "agent":
            done = data_of(
                AgentTurnComplete,
                agent_name=span.agent,
                agent_id=known(span.agent_id),
                success=succeeded,
                outcome="completed" if succeeded else "failed",
                response=response,
                duration_ms=duration_ms,
                error_type=known(None if failure is None else failure.error_type),
                error_message=known(None if failure is None else failure.error_message),
            )
            yield event(TURN_COMPLETE, done)
        case "tool":
            called = data_of(
                ToolCallComplete,
                tool_name=span.tool,
                call_id=span.call_id,
                agent_name=known(place.agent),
                result=span.result,
                success=succeeded,
                duration_ms=duration_ms,
                error=known(None if failure is None else failure.error_message or failure.error_type),
            )
            yield event(TOOL_CALL_COMPLETE, called)
        case "model":
            called = data_of(ModelCallComplete, agent_name=known(place.agent), success=succeeded)
            yield event(MODEL_CALL_COMPLETE, {**called, **span.model_fields()})
        case _:
            pass
    if failure is not None and (span.kind == "agent" or (span.kind == "workflow" and place.workflows == 1)):
        whose: TurnFields = {"agent_name": span.agent} if span.kind == "agent" else {}
        yield event(WORKFLOW_ERROR, failure.data(whose), span.error_id(failure, place.chat_id))


def _name(value: Any) -> str | None:
    """Return a text or a number as a name, and None for lists and maps, which any attribute may hold."""
    return str(value) or None if isinstance(value, str | int | float) else None


def _structured(value: Any) -> Any:
    """Return an attribute's value. The conventions allow maps and lists as JSON."""
    if not isinstance(value, str) or not value.startswith(("{", "[")) or len(value) > _MAX_JSON:
        return value
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError:
        return value


def _items(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()

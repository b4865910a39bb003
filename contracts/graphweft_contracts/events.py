"""The event envelope and the payloads of the lifecycle events.

The envelope is CloudEvents 1.0 (https://github.com/cloudevents/spec, ``cloudevents/spec.md``). Of the documented
extensions we use ``partitionkey``, ``sequence``, ``traceparent``, ``tracestate``, ``recordedtime`` and ``dataref``;
``appid``, ``chatid``, ``workflow`` and ``userid`` are our own. Extension names are lower-case alphanumeric by the
specification, therefore no underscore.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, ParamSpec, TypeVar, cast
from uuid import uuid4

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SkipValidation,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from typing_extensions import Self

from graphweft_contracts.argument_names import takes_synonyms
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.moments import Moment

APP_ID_PATTERN: Final = r"^[A-Za-z0-9_-]{1,64}$"
"""App ids name graphs, files and metrics, so few characters are allowed."""

EXTENSION_NAME_PATTERN: Final = r"^[a-z0-9]{1,20}$"
"""Attribute names of CloudEvents. With ``re`` use ``fullmatch``, because ``$`` also matches before a line end."""

TYPE_PATTERN: Final = r"^[a-z0-9_]+(\.[a-z0-9_]+)+$"

FORMS: Final = {
    APP_ID_PATTERN: "expected 1 to 64 characters from A-Z, a-z, 0-9, '_' and '-'",
    TYPE_PATTERN: "expected words of a-z, 0-9 and '_' with dots in between, such as order.paid",
}
"""What a value needs that does not match a pattern."""

AppId = Annotated[str, StringConstraints(pattern=APP_ID_PATTERN)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]

DEFAULT_WORKFLOW: Final = "default"
"""The workflow of turns that name none, and of the rules that graphweft brings."""


Outcome = Literal["completed", "failed", "handed_off", "abandoned"]
"""How a turn ended. ``success`` is true for completed and handed_off. abandoned: its end was not reported."""

_P = ParamSpec("_P")
_T = TypeVar("_T")
_UNKNOWN: Final = object()
_Milliseconds = Annotated[float, Field(ge=0)]
_Count = Annotated[int, Field(ge=0)]
_TURN: Final = "The turn of the agent, from 1 within the chat."


class Payload(BaseModel):
    """What every payload may carry: the context variables that rules read as ``$context.*``, and free fields."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="allow")
    chat_pattern: ClassVar[str | None] = None
    """The pattern of ``chatid`` for these events."""

    context: dict[str, Any] = Field(default_factory=dict, description="Context variables: `$context.*` in rules.")

    @classmethod
    def renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return data that somebody gives, with the names of this contract in place of others that mean the same.

        Only what takes new events calls it: workers read the log as it is.
        """
        return data

    def check_at(self, time: datetime) -> None:
        """Raise ``ValueError`` for what does not fit to the time of the event."""


# ``SkipValidation``: the field was sent before it was declared, with whatever value, and such events stay valid.


class TurnPayload(Payload):
    """A payload of an event that may belong to an agent's turn."""

    agent_name: SkipValidation[Name | None] = Field(
        default=None, description="The agent whose turn the event belongs to."
    )
    turn_number: SkipValidation[_Count | None] = Field(default=None, description=_TURN)


class AgentTurnStart(Payload):
    """``agent.turn_start``: an agent is about to process."""

    agent_name: Name
    turn_number: int | None = Field(default=None, ge=0, description=_TURN)
    agent_id: SkipValidation[str | None] = Field(default=None, description="The runtime's own id of the agent.")


class AgentTurnComplete(Payload):
    """``agent.turn_complete``: an agent has responded, or failed to (``success`` false)."""

    agent_name: Name
    turn_number: int | None = Field(default=None, ge=0, description=_TURN)
    response: Any = None
    success: bool | None = None
    context_id: str | None = Field(default=None, description="Name of the context that the agent was given.")
    outcome: SkipValidation[Outcome | None] = Field(
        default=None, description="How the turn ended; `success` is true for `completed` and `handed_off`."
    )
    duration_ms: SkipValidation[_Milliseconds | None] = None
    handed_to: SkipValidation[str | None] = Field(default=None, description="The agent that works on.")
    agent_id: SkipValidation[str | None] = Field(default=None, description="The runtime's own id of the agent.")
    error_type: SkipValidation[str | None] = Field(default=None, description="The kind of error, if the turn failed.")
    error_message: SkipValidation[str | None] = None


class WorkflowPhaseComplete(TurnPayload):
    """``workflow.phase_complete``: the workflow goes over from one phase to the next."""

    phase_name: Name
    next_phase: str | None = None


class WorkflowComplete(TurnPayload):
    """``workflow.complete``: the workflow has finished."""

    status: str | None = None
    duration: float | None = Field(default=None, description="Seconds from the workflow's start to its end.")
    outputs: Any = None


class WorkflowError(TurnPayload):
    """``workflow.error``: the workflow failed."""

    error_type: Name
    error_message: str | None = None


class ToolCallComplete(TurnPayload):
    """``tool.call_complete``: a tool has returned or failed."""

    tool_name: Name
    result: Any = None
    success: bool | None = None
    call_id: SkipValidation[str | None] = Field(default=None, description="The id of the call, as at its start.")
    arguments: Any = Field(default=None, description="Only of an imported run, which has no event of the start.")
    error: SkipValidation[str | None] = Field(default=None, description="The text of the error, if the tool failed.")
    duration_ms: SkipValidation[_Milliseconds | None] = None


class WorkflowStart(TurnPayload):
    """``workflow.start``: a run of the workflow begins."""

    reason: SkipValidation[str | None] = Field(default=None, description="Why the session of a coding agent begins.")


class ToolCallStart(TurnPayload):
    """``tool.call_start``: a tool is about to be called."""

    tool_name: Name
    call_id: SkipValidation[str | None] = Field(default=None, description="Unique within the turn, or the chat.")
    arguments: Any = None


class ModelCallComplete(TurnPayload):
    """``model.call_complete``: a model has answered, or failed to (``success`` false)."""

    agent_name: Name | None = None
    success: bool | None = None
    call_number: SkipValidation[_Count | None] = Field(default=None, description="The call, from 1 within the turn.")
    duration_ms: SkipValidation[_Milliseconds | None] = None
    model: SkipValidation[str | None] = None
    input_tokens: SkipValidation[_Count | None] = None
    output_tokens: SkipValidation[_Count | None] = None
    error_type: SkipValidation[str | None] = Field(default=None, description="The kind of error, if the call failed.")


def data_of(model: Callable[_P, Payload], /, *_: _P.args, **fields: _P.kwargs) -> dict[str, Any]:
    """Return the data of an event with these fields of its payload model, in this order and unchecked.

    Type checkers know the names and types of the fields from ``model``, which is not called: it would cost some
    microseconds for each event. ``known`` leaves out a field without a value.
    """
    return {name: value for name, value in fields.items() if value is not _UNKNOWN}


def known(value: _T | None) -> _T:
    """Return the value of a field for ``data_of``; None leaves the field out."""
    return cast("_T", _UNKNOWN) if value is None else value


LIFECYCLE: Final[Mapping[str, type[Payload]]] = {
    "agent.turn_start": AgentTurnStart,
    "agent.turn_complete": AgentTurnComplete,
    "workflow.phase_complete": WorkflowPhaseComplete,
    "workflow.complete": WorkflowComplete,
    "workflow.error": WorkflowError,
    "tool.call_complete": ToolCallComplete,
    "workflow.start": WorkflowStart,
    "tool.call_start": ToolCallStart,
    "model.call_complete": ModelCallComplete,
}
"""The six event types of the rule contract, and three more that runtimes emit.

Events may have any other dotted type (``order.paid``).
"""


_payloads: Final[dict[str, type[Payload]]] = {}
_FAMILIES: Final = {"memory": "graphweft_contracts.memory", "episode": "graphweft_contracts.episodes"}
"""Modules that are not imported yet, and register the payloads of a family of event types: by its first word."""


def register_payloads(payloads: Mapping[str, type[Payload]]) -> None:
    """Add the payload models of event types. An event of such a type is valid only if its ``data`` fits the model.

    Raises ``ValueError`` for a type that has another model already.
    """
    for type, payload in payloads.items():
        if _payloads.setdefault(type, payload) is not payload:
            msg = f"event type {type!r} has the payload model {_payloads[type].__name__} already"
            raise ValueError(msg)


def registered_payloads() -> Mapping[str, type[Payload]]:
    """Return the payload models by event type, in the order of their registration."""
    for family in tuple(_FAMILIES):
        _import(family)
    return MappingProxyType(_payloads)


def payload_of(type: str) -> type[Payload]:
    """Return the payload model of an event type; ``Payload``, which takes any field, for an unregistered type."""
    found = _payloads.get(type)
    if found is None and (family := type.partition(".")[0]) in _FAMILIES:
        _import(family)
        found = _payloads.get(type)
    return found or Payload


def _import(family: str) -> None:
    # By name: these modules import this one.
    if module := _FAMILIES.get(family):
        import_module(module)
        _FAMILIES.pop(family, None)


register_payloads(LIFECYCLE)


def _for_senders(schema: dict[str, Any]) -> None:
    """Add to the JSON Schema what the model checks by validators, and what a sender must give.

    Without ``time``, a reader uses the log's time of the entry.
    """
    required = {"specversion", "id", "source", "type", *schema["required"]} - {"time"}
    schema["required"] = [name for name in schema["properties"] if name in required]
    schema["propertyNames"] = {"pattern": EXTENSION_NAME_PATTERN}
    schema["additionalProperties"] = {"type": ["string", "integer", "boolean", "null"]}


class Event(BaseModel):
    """One thing that happened, as a CloudEvent. ``source`` and ``id`` together identify it for ever.

    The order of events is kept within one ``key`` (app and chat) and nowhere else. Unknown attributes are kept when
    their names are lawful CloudEvents extension names. For the lifecycle types, and those of memory and
    episodes, ``data`` is checked against their payload models; ``data`` of other types is free apart from ``context``.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="allow", json_schema_extra=_for_senders)

    specversion: Literal["1.0"] = "1.0"
    id: Name
    source: Name
    type: Annotated[str, StringConstraints(pattern=TYPE_PATTERN, max_length=128)]
    time: Moment
    appid: AppId
    chatid: Name
    workflow: Name | None = None
    userid: Name | None = None
    subject: Name | None = None
    datacontenttype: Literal["application/json"] = "application/json"
    dataschema: str | None = None
    partitionkey: str | None = None
    sequence: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    recordedtime: Moment | None = None
    dataref: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if not re.fullmatch(EXTENSION_NAME_PATTERN, name):
                plain = name.replace("_", "").lower()
                hint = f" (did you mean {plain!r}?)" if plain in type(self).model_fields else ""
                known = "use 1 to 20 of a-z and 0-9, or put it into data"
                msg = f"{name!r} is not a CloudEvents attribute name{hint}: {known}"
                raise ValueError(msg)
            if value is not None and not isinstance(value, str | int | bool):
                msg = f"the extension attribute {name!r} must be a string, an integer or a boolean; put it into data"
                raise ValueError(msg)
        payload = payload_of(self.type)
        payload.model_validate(self.data).check_at(self.time)
        if payload.chat_pattern is not None and not re.fullmatch(payload.chat_pattern, self.chatid):
            msg = "invalid chatid: events of memory allow no control characters, and no blank at either end"
            raise ValueError(msg)
        return self

    @classmethod
    @takes_synonyms
    def create(
        cls,
        type: str,
        *,
        app_id: str,
        chat_id: str,
        workflow: str | None = None,
        user_id: str | None = None,
        data: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        id: str | None = None,
        source: str = "/graphweft",
        time: datetime | None = None,
    ) -> Self:
        """Create an event that happened now, or at ``time``, which must have a time zone.

        Without an ``id`` the event gets a random one; pass an id if the same event may be reported twice. ``context``
        becomes ``data["context"]``. Raises ``pydantic.ValidationError`` for an invalid field; its text does not quote
        the value.
        """
        payload = dict(data or {})
        if context is not None:
            payload["context"] = dict(context)
        payload = payload_of(type).renamed(payload)
        try:
            return cls(
                id=str(uuid4()) if id is None else id,
                source=source,
                type=type,
                time=time or SYSTEM_CLOCK.now(),
                appid=app_id,
                chatid=chat_id,
                workflow=workflow,
                userid=user_id,
                data=payload,
            )
        except ValidationError as error:
            raise _explained(error) from None

    @classmethod
    def of_valid(cls, fields: dict[str, Any]) -> Self:
        """Return the event that has these values, one for each field and all valid, without checking them.

        Its ``model_fields_set`` holds all fields. ``model_construct`` does the same at ten times the cost.
        """
        event = cls.__new__(cls)
        _set_values(event, fields)
        _set_extra(event, {})
        _set_private(event, None)
        _set_given(event, _ALL_FIELDS)
        return event

    @property
    def key(self) -> str:
        """The key ``app/chat``. Events with equal keys take effect in log order; see ``Layout`` for those of an app."""
        return f"{self.appid}/{self.chatid}"

    @property
    def identity(self) -> tuple[str, str]:
        """``(source, id)``: events with equal identity are the same event, delivered again."""
        return (self.source, self.id)

    @property
    def agent(self) -> str | None:
        """The agent in ``data["agent_name"]``, if any."""
        name = self.data.get("agent_name")
        return name if isinstance(name, str) else None

    @property
    def context(self) -> dict[str, Any]:
        """The context variables: ``$context.*`` in rules."""
        value = self.data.get("context")
        return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _explained(error: ValidationError) -> ValidationError:
    """Return the same faults with texts that say what to write, and without the values and links to pydantic."""
    faults = [
        InitErrorDetails(
            type=PydanticCustomError(
                "missing" if item["type"] == "missing" else "invalid", "{fault}", {"fault": _fault(item)}
            ),
            loc=item["loc"],
            input=item["input"],
        )
        for item in error.errors(include_url=False)
    ]
    return ValidationError.from_exception_data("Event.create", faults, hide_input=True)


def _fault(item: ErrorDetails) -> str:
    match item["type"]:
        case "timezone_aware":
            return "expected a time with its zone, such as datetime.now(timezone.utc)"
        case "string_too_short":
            return "expected at least 1 character"
        case "string_too_long":
            return f"expected at most {item.get('ctx', {}).get('max_length')} characters"
        case _:
            return FORMS.get(str(item.get("ctx", {}).get("pattern")), item["msg"])


# Events are frozen, and ``object.__setattr__`` takes twice as long as these.
_set_values, _set_extra, _set_private, _set_given = (
    BaseModel.__dict__[name].__set__
    for name in ("__dict__", "__pydantic_extra__", "__pydantic_private__", "__pydantic_fields_set__")
)
_ALL_FIELDS: Final = set(Event.model_fields)
"""Shared by events: pydantic copies it before it changes it."""

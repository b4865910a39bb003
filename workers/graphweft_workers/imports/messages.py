"""Validates one message of the chat-completions format.

The format is ``messages`` of https://platform.openai.com/docs/api-reference/chat/create. Recordings use its
current form (``tool_calls``, role ``tool``) and the deprecated one (``function_call``, role ``function``).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, StringConstraints, ValidationError, model_validator

from graphweft_contracts.wire import explain
from graphweft_workers.imports.runs import ImportProblem, RecordedRun, parse_json

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")

_Text = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class ImportedFunctionCall(BaseModel):
    """A function call of a model."""

    model_config = ConfigDict(frozen=True)

    name: _Text
    arguments: str | dict[str, JsonValue] | None = None


class ImportedToolCall(BaseModel):
    """One call of an assistant message. Its id is unique within that message, but not always within the run."""

    model_config = ConfigDict(frozen=True)

    id: str | None = None
    function: ImportedFunctionCall

    @model_validator(mode="before")
    @classmethod
    def _custom(cls, value: Any) -> Any:
        """Read a call of type "custom", which has free text as input, as a function call."""
        match value:
            case {"type": "custom", "custom": {"name": name, **more}}:
                return {"id": value.get("id"), "function": {"name": name, "arguments": more.get("input")}}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            case _:
                return value


class ImportedMessage(BaseModel):
    """The fields of a message that events need; other fields are ignored."""

    model_config = ConfigDict(frozen=True)

    role: Role
    content: str | list[str | dict[str, JsonValue]] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ImportedToolCall] | None = None
    function_call: ImportedFunctionCall | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str | None:
        """The text of the message, or its refusal, or None. Text parts are joined by newlines; others are ignored."""
        if isinstance(self.content, str):
            return self.content or self.refusal
        texts = (
            part if isinstance(part, str) else part.get("text", part.get("refusal")) for part in self.content or ()
        )
        return "\n".join(text for text in texts if isinstance(text, str)) or self.refusal

    @property
    def calls(self) -> tuple[ImportedToolCall, ...]:
        """The tool calls in their order. A deprecated ``function_call`` becomes a call without an id."""
        if self.tool_calls:
            return tuple(self.tool_calls)
        return (ImportedToolCall(function=self.function_call),) if self.function_call else ()


def messages_of(run: RecordedRun) -> tuple[ImportedMessage, ...]:
    """Return the messages of a run. Raises ``ImportProblem`` at the first invalid one."""
    return tuple(_message(value, place=f"{run.place}, messages[{i}]") for i, value in enumerate(run.messages))


def parsed(text: str) -> JsonValue:
    """Return the JSON object or array in the text, or else the text.

    Numbers and words stay text: a flight ``007`` must not become 7.
    """
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return parse_json(text)
    except ValueError:
        return text


def _message(value: JsonValue, *, place: str) -> ImportedMessage:
    if not isinstance(value, dict):
        raise ImportProblem(f"{place}: expected a message as an object, found {type(value).__name__}")
    role = value.get("role")
    if role not in _ROLES:
        raise ImportProblem(
            f"{place}: unknown role {role!r}; the roles are {', '.join(_ROLES)}: rename it or remove the message"
        )
    try:
        return ImportedMessage.model_validate(value)
    except ValidationError as error:
        raise ImportProblem(f"{place}: {explain(error)}; correct the message or remove the record") from error

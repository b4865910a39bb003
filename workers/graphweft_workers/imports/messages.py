"""One message of the chat-completions format, checked, and what can be read out of it.

The format: https://platform.openai.com/docs/api-reference/chat/create, ``messages``; both its present form
(``tool_calls``, role ``tool``) and the deprecated one (``function_call``, role ``function``) occur in recordings.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, StringConstraints, ValidationError, model_validator

from graphweft_contracts.wire import explain
from graphweft_workers.imports.runs import ImportProblem, Run, parse_json

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
_ERROR_TEXT: Final = re.compile(r"\s*error(?![\w-])", re.IGNORECASE)
"""``Error: no seats`` and ``error`` are errors; ``Errors: 0`` and ``error-free`` are not."""

_Text = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class FunctionCall(BaseModel):
    """The function that a model wants called."""

    model_config = ConfigDict(frozen=True)

    name: _Text
    arguments: str | dict[str, JsonValue] | None = None


class ToolCall(BaseModel):
    """One call of an assistant message; its id is unique inside that message, and not always beyond it."""

    model_config = ConfigDict(frozen=True)

    id: str | None = None
    function: FunctionCall

    @model_validator(mode="before")
    @classmethod
    def _custom(cls, value: Any) -> Any:
        """Take a call of type "custom", whose input is free text, for a function call."""
        match value:
            case {"type": "custom", "custom": {"name": name, **more}}:
                return {"id": value.get("id"), "function": {"name": name, "arguments": more.get("input")}}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            case _:
                return value


class Message(BaseModel):
    """A message, as far as events need it; other fields of the format are not looked at."""

    model_config = ConfigDict(frozen=True)

    role: Role
    content: str | list[str | dict[str, JsonValue]] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str | None:
        """The text of the message, or its refusal, or None. Text parts are joined by newlines, other parts left out."""
        if isinstance(self.content, str):
            return self.content or self.refusal
        texts = (
            part if isinstance(part, str) else part.get("text", part.get("refusal")) for part in self.content or ()
        )
        return "\n".join(text for text in texts if isinstance(text, str)) or self.refusal

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in their order; a deprecated ``function_call`` is one without an id."""
        if self.tool_calls:
            return tuple(self.tool_calls)
        return (ToolCall(function=self.function_call),) if self.function_call else ()


def messages_of(run: Run) -> tuple[Message, ...]:
    """Check every message of a run. Raises ``ImportProblem`` at the first that breaks the format."""
    return tuple(_message(value, place=f"{run.place}, messages[{i}]") for i, value in enumerate(run.messages))


def parsed(text: str) -> JsonValue:
    """Return what the text says as JSON when that is an object or an array, otherwise the text.

    Numbers and words stay text: a flight ``007`` or a tool's ``true`` is not for us to interpret.
    """
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return parse_json(text)
    except ValueError:
        return text


def error_in(result: JsonValue) -> str | None:
    """Return what a tool's result says went wrong, or None for a result that reports no error.

    An error is a text that begins with the word "error", or an object with a non-empty ``error`` or with ``isError``
    or ``is_error`` true (the Model Context Protocol's and Anthropic's flags).
    """
    match result:
        case str() if _ERROR_TEXT.match(result):
            return result
        case {"error": str(text)} | {"error": {"message": str(text)}} if text:
            return text
        case {"error": error} if error:
            return "error"
        case {"isError": True} | {"is_error": True}:
            return "error"
        case _:
            return None


def _message(value: JsonValue, *, place: str) -> Message:
    if not isinstance(value, dict):
        raise ImportProblem(f"{place}: a message must be an object, but this is {type(value).__name__}")
    role = value.get("role")
    if role not in _ROLES:
        raise ImportProblem(
            f"{place}: unknown role {role!r}; the roles of the format are {', '.join(_ROLES)}: rename it or take the "
            "message out"
        )
    try:
        return Message.model_validate(value)
    except ValidationError as error:
        raise ImportProblem(f"{place}: {explain(error)}; correct the message or take the record out") from error

"""Groups a flat list of messages into turns with their tool calls.

Some recordings repeat a tool call id within a run. So a result belongs to a call of the last assistant message
before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from graphweft.adapters.values import error_in
from graphweft_workers.imports.messages import ImportedMessage, ImportedToolCall, parsed
from graphweft_workers.imports.runs import ImportProblem

_DEFAULT_AGENT: Final = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call with its result. ``at`` is the index of the message with the result, or with the call without one."""

    tool: str
    id: str | None
    arguments: JsonValue
    answered: bool
    result: JsonValue
    at: int

    @property
    def error(self) -> str | None:
        """The error that the tool reported, or None."""
        return error_in(self.result)

    @property
    def success(self) -> bool | None:
        """Whether the tool succeeded; None for a call without a result in the recording."""
        return self.error is None if self.answered else None


@dataclass(slots=True, kw_only=True)
class ImportedTurn:
    """The work of one agent between two user messages, from message ``first`` to message ``last``."""

    agent: str
    first: int
    last: int
    user_message: str | None
    calls: list[Call] = field(default_factory=list[Call])
    response: str | None = None


def turns_of(messages: Sequence[ImportedMessage], *, agent: str | None, place: str) -> list[ImportedTurn]:
    """Return the turns of a run in their order.

    A turn starts with an assistant message and ends with the first assistant message that calls no tool. A user
    message, a message of another agent or the end of the run ends it earlier, without a response. ``agent`` is the
    agent of all turns; by default, the ``name`` of each assistant message. Raises ``ImportProblem`` for a result
    without a call.
    """
    results = _results(messages, place=place)
    turns: list[ImportedTurn] = []
    turn: ImportedTurn | None = None
    user_message: str | None = None
    for i, message in enumerate(messages):
        match message.role:
            case "user":
                turn, user_message = None, message.text
            case "assistant":
                name = agent or message.name or _DEFAULT_AGENT
                if turn is None or turn.agent != name:
                    turn = ImportedTurn(agent=name, first=i, last=i, user_message=user_message)
                    turns.append(turn)
                turn.last = i
                turn.calls.extend(_calls(messages, i, results))
                if not message.calls:
                    turn.response, turn = message.text, None
            case "tool" | "function":
                if turn is not None:
                    turn.last = i
            case "system" | "developer":
                pass  # an instruction does not end the turn
    return turns


def _calls(messages: Sequence[ImportedMessage], i: int, results: dict[tuple[int, int], int]) -> Iterator[Call]:
    for k, call in enumerate(messages[i].calls):
        at = results.get((i, k))
        arguments = call.function.arguments
        yield Call(
            tool=call.function.name,
            id=call.id,
            arguments=_arguments(arguments) if isinstance(arguments, str) else arguments,
            answered=at is not None,
            result=None if at is None else parsed(messages[at].text or ""),
            at=i if at is None else at,
        )


def _arguments(text: str) -> JsonValue:
    value = parsed(text)
    return value if isinstance(value, dict) else text


def _results(messages: Sequence[ImportedMessage], *, place: str) -> dict[tuple[int, int], int]:
    """Map (index of the assistant message, number of the call in it) to the index of the message with the result."""
    found: dict[tuple[int, int], int] = {}
    unanswered: list[tuple[tuple[int, int], ImportedToolCall]] = []
    for i, message in enumerate(messages):
        match message.role:
            case "assistant":
                unanswered = [((i, k), call) for k, call in enumerate(message.calls)]
            case "user":
                unanswered = []
            case "tool" | "function":
                number = next((n for n, (_, call) in enumerate(unanswered) if _answers(message, call)), None)
                if number is None:
                    raise ImportProblem(
                        f"{place}, messages[{i}]: the result of call {message.tool_call_id!r} (tool {message.name!r}) "
                        "answers no open call of the assistant message before it: move it behind the message that "
                        "calls the tool and give it the id of that call, or remove it"
                    )
                found[unanswered.pop(number)[0]] = i
            case "system" | "developer":
                pass
    return found


def _answers(message: ImportedMessage, call: ImportedToolCall) -> bool:
    """Match by id, or by the function's name in the deprecated form, which has no id."""
    if message.tool_call_id:
        return message.tool_call_id == call.id
    return message.name is not None and message.name == call.function.name

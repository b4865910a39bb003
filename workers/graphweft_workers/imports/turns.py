"""Groups a flat list of messages into turns with their tool calls, whatever form the recording has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from graphweft.adapters.values import error_in
from graphweft.chat_formats import (
    CallPlace,
    ChatMessage,
    Results,
    UnknownRole,
    read_messages,
    results_of,
    without_reasoning,
)
from graphweft.chat_formats.messages import ROLES
from graphweft.chat_formats.results import questions
from graphweft_workers.imports.runs import ImportProblem, RecordedRun, parse_json

_DEFAULT_AGENT: Final = "assistant"
_MAX_NAME: Final = 256
"""Characters of a tool's name that the contract allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call with its result. ``at`` is the index of the message with the result, or with the call without one."""

    tool: str
    id: str | None
    arguments: JsonValue
    answered: bool
    result: JsonValue
    at: int
    failed: bool = False
    """Whether the form of the recording says that the tool failed."""

    @property
    def error(self) -> str | None:
        """The error that the tool reported, or None."""
        found = error_in(self.result)
        return found if found is not None or not self.failed else str(self.result or "error")

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


def read_run(run: RecordedRun) -> tuple[ChatMessage, ...]:
    """Return the messages of a run. Raises ``ImportProblem`` at the first invalid one."""
    for number, value in enumerate(run.messages):
        place = f"{run.place}, messages[{number}]"
        if not isinstance(value, dict):
            raise ImportProblem(f"{place}: expected a message as an object, found {type(value).__name__}")
        try:
            list(read_messages([value]))
        except UnknownRole as error:
            raise ImportProblem(
                f"{place}: {error}; the roles are {', '.join(ROLES)}: rename it or remove the message"
            ) from error
    return tuple(read_messages(run.messages))


def turns_of(messages: Sequence[ChatMessage], *, agent: str | None, keep_reasoning: bool = False) -> list[ImportedTurn]:
    """Return the turns of a run in their order.

    A turn starts with an assistant message and ends with the first assistant message that calls no tool. A question of
    the user, a message of another agent or the end of the run ends it earlier, without a response. ``agent`` is the
    agent of all turns; by default, the ``name`` of each assistant message.
    """
    results, asked = results_of(messages), set(questions(messages))
    turns: list[ImportedTurn] = []
    turn: ImportedTurn | None = None
    user_message: str | None = None
    for place, message in enumerate(messages):
        if place in asked:
            turn, user_message = None, message.text
        elif message.role == "assistant":
            name = agent or message.agent or _DEFAULT_AGENT
            if turn is None or turn.agent != name:
                turn = ImportedTurn(agent=name, first=message.at, last=message.at, user_message=user_message)
                turns.append(turn)
            turn.last = message.at
            turn.calls.extend(_calls(messages, place, results))
            if not message.calls:
                said = message.text if keep_reasoning or message.text is None else without_reasoning(message.text)
                turn.response, turn = said or None, None
        elif message.results and turn is not None:
            turn.last = message.at
    return turns


def parts_left_out(messages: Sequence[ChatMessage]) -> Mapping[str, int]:
    """Return how many parts no event holds, by what they are: forms that are not read, results without a call."""
    found = Counter(name for message in messages for name in message.unread)
    if strays := len(results_of(messages).strays):
        found["result without a call"] = strays
    return found


def _calls(messages: Sequence[ChatMessage], place: int, results: Results) -> Iterator[Call]:
    for number, call in enumerate(messages[place].calls):
        found = results.answers.get(CallPlace(place, number))
        at = messages[place].at if found is None else messages[found.message].at
        result = None if found is None else messages[found.message].results[found.number]
        value: JsonValue = None
        if result is not None:
            value = parsed(result.text or "") if result.text is not None or not result.content else result.content
        yield Call(
            tool=call.name[:_MAX_NAME],
            id=call.id,
            arguments=_arguments(call.arguments) if isinstance(call.arguments, str) else call.arguments,
            answered=result is not None,
            result=value,
            at=at,
            failed=result is not None and result.failed,
        )


def _arguments(text: str) -> JsonValue:
    value = parsed(text)
    return value if isinstance(value, dict) else text


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

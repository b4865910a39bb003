"""Which call a result answers, and which message is the user's question.

Servers and agents leave ids out, repeat them, and put messages of the user between calls and results. So a result
belongs to a call of the last message before it that calls tools: by its id, or else by the tool's name, or else by
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphweft.chat_formats.messages import ChatMessage
from graphweft.chat_formats.parts import ToolCall, ToolResult


class CallPlace(NamedTuple):
    """A call or a result: the number of the message in a list, and its number in the message."""

    message: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The results in a list of messages: ``answers`` maps each call to its result, ``strays`` answer no open call."""

    answers: Mapping[CallPlace, CallPlace]
    strays: Sequence[CallPlace]


def results_of(messages: Sequence[ChatMessage]) -> Results:
    """Return which result answers which call."""
    answers: dict[CallPlace, CallPlace] = {}
    strays: list[CallPlace] = []
    unanswered: list[tuple[CallPlace, ToolCall]] = []
    for place, message in enumerate(messages):
        if message.calls:
            unanswered = [(CallPlace(place, number), call) for number, call in enumerate(message.calls)]
        for number, result in enumerate(message.results):
            found = _answered(result, unanswered)
            if found is None:
                strays.append(CallPlace(place, number))
            else:
                answers[unanswered.pop(found)[0]] = CallPlace(place, number)
    return Results(answers=answers, strays=strays)


def question_of(messages: Sequence[ChatMessage]) -> int | None:
    """Return the place of the user's last question, or None without one."""
    return next(reversed([*questions(messages)]), None)


def questions(messages: Sequence[ChatMessage]) -> Iterator[int]:
    """Yield the places of the user's own messages, in order.

    A message of a user behind the result of a tool, before the model speaks again, is the agent's: it holds what a
    result cannot, such as a picture.
    """
    behind_result = False
    for place, message in enumerate(messages):
        if message.results:
            behind_result = True
        elif message.role == "assistant":
            behind_result = False
        elif message.role == "user" and not behind_result:
            yield place


def _answered(result: ToolResult, unanswered: Sequence[tuple[CallPlace, ToolCall]]) -> int | None:
    """Return the index of the call that a result answers, or None."""
    calls = [call for _, call in unanswered]
    if result.call_id is not None:
        same = [n for n, call in enumerate(calls) if call.id == result.call_id]
        if same:
            return same[0]
    # Two ids that differ are two calls; without one of them, the name or else the order decides.
    possible = [n for n, call in enumerate(calls) if result.call_id is None or call.id is None]
    if result.tool is not None:
        possible = [n for n in possible if calls[n].name == result.tool]
    return next(iter(possible), None)

"""What the APIs of model providers have in common: a request, an answer with tool calls, and a stream of parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from graphweft.adapters.context_place import ContextPlace
from graphweft.adapters.values import error_in, parsed, structured
from graphweft.chat_formats import (
    CallPlace,
    ChatMessage,
    ToolCall,
    ToolResult,
    question_of,
    read_message,
    read_messages,
    results_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToolResult:
    """The result of a tool call in a request. ``error`` is the error that it reports.

    ``call`` is the call that it answers, if the same request has that. ``latest`` is true for a result after the last
    message of the model: no earlier request had it.
    """

    call_id: str | None
    call: ToolCall | None = None
    tool: str | None = None
    content: Any = None
    error: str | None = None
    latest: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuestion:
    """A request: the user's question, results of tools, and the forms behind the model's last message left out."""

    message: str | None = None
    results: Sequence[ModelToolResult] = ()
    unread: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """A model's answer. With ``calls`` its turn goes on. ``error`` is a failure that the provider reports as data."""

    text: str | None = None
    calls: Sequence[ToolCall] = ()
    unread: Sequence[str] = ()
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None


class StreamReader(Protocol):
    """Reads the parts of one answer."""

    @property
    def done(self) -> bool:
        """Whether no further part matters."""
        ...

    def feed(self, part: Any) -> None:
        """Read a part. May raise for parts of unknown form."""
        ...

    def answer(self) -> ModelAnswer | None:
        """Return the answer, or None if its end is missing."""
        ...


class Shape(Protocol):
    """The form of one API. Its methods do not change their arguments, and may raise for unknown forms."""

    def asked(self, options: Mapping[str, Any]) -> ModelQuestion:
        """Return what a request says; ``options`` are the named arguments of the call."""
        ...

    def with_context(self, options: Mapping[str, Any], text: str, place: ContextPlace) -> dict[str, Any]:
        """Return the arguments with the context at ``place``, or in the instructions if they have no such place."""
        ...

    def answer(self, response: Any) -> ModelAnswer:
        """Return the answer in a response that is not streamed."""
        ...

    def reader(self, options: Mapping[str, Any]) -> StreamReader:
        """Return a reader for the stream that a call with these arguments returns."""
        ...


def listed(value: Any) -> list[Any]:
    """Return a copy of a list or tuple. Raises ``TypeError`` for other values, which may be read only once."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list of messages, not {type(value).__name__}")
    return list(cast("Sequence[Any]", value))


def asked_in(values: Iterable[Any]) -> ModelQuestion:
    """Return what the messages of a request say."""
    messages = list(read_messages(values, strict=False))
    question, since, results = question_of(messages), _last_answer(messages), results_of(messages)
    answered = {result: call for call, result in results.answers.items()}
    newest = {call.id: CallPlace(n, k) for n, message in enumerate(messages) for k, call in enumerate(message.calls)}
    found: list[ModelToolResult] = []
    for n, message in enumerate(messages):
        for k, result in enumerate(message.results):
            place = answered.get(CallPlace(n, k))
            call = None if place is None else messages[place.message].calls[place.number]
            latest = n > since
            if latest or (call is not None and call.id is not None and newest[call.id] == place):
                found.append(_result(result, call, latest=latest))
    return ModelQuestion(
        message=None if question is None else messages[question].text,
        results=found,
        unread=[name for message in messages[since + 1 :] for name in message.unread],
    )


def answer_in(message: Any, **about: Any) -> ModelAnswer:
    """Return the answer in a message of the model."""
    read = read_message(message)
    if read is None:
        return ModelAnswer(**about)
    return ModelAnswer(text=read.text, calls=read.calls, unread=read.unread, **about)


def _last_answer(messages: Sequence[ChatMessage]) -> int:
    """Return the place of the model's last message, or -1. One at the end is the beginning of the next answer."""
    place = len(messages) - 1
    while place >= 0 and messages[place].role == "assistant" and not messages[place].calls:
        place -= 1
    while place >= 0 and messages[place].role != "assistant":
        place -= 1
    return place


def _result(result: ToolResult, call: ToolCall | None, *, latest: bool) -> ModelToolResult:
    content = result.content if result.text is None else structured(result.text)
    error = (result.text or "error") if result.failed else error_in(content)
    return ModelToolResult(
        call_id=result.call_id, call=call, tool=result.tool, content=content, error=error, latest=latest
    )


def arguments_of(call: ToolCall) -> Any:
    """Return the arguments of a call, parsed if they are JSON."""
    return parsed(call.arguments)

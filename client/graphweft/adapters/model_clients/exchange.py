"""What the APIs of model providers have in common: a request, an answer with tool calls, and a stream of parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from graphweft.adapters.values import error_in, structured


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToolCall:
    """A tool call in a model's answer. ``arguments`` are parsed if they are JSON."""

    id: str
    name: str
    arguments: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToolResult:
    """The result of a tool call in a request. ``error`` is the error that it reports."""

    call_id: str
    content: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request: the text of the last user message, and the results of tools behind the model's last message."""

    message: str | None = None
    results: Sequence[ModelToolResult] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """A model's answer. With ``calls`` its turn goes on. ``error`` is a failure that the provider reports as data."""

    text: str | None = None
    calls: Sequence[ModelToolCall] = ()
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

    def asked(self, options: Mapping[str, Any]) -> Asked:
        """Return what a request says; ``options`` are the named arguments of the call."""
        ...

    def with_context(self, options: Mapping[str, Any], text: str) -> dict[str, Any]:
        """Return the arguments with the context below the instructions."""
        ...

    def answer(self, response: Any) -> ModelAnswer:
        """Return the answer in a response that is not streamed."""
        ...

    def reader(self, options: Mapping[str, Any]) -> StreamReader:
        """Return a reader for the stream that a call with these arguments returns."""
        ...


def item(value: Any, name: str) -> Any:
    """Return a field of a map, or an attribute of an object, or None."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(name)
    return getattr(value, name, None)


def listed(value: Any) -> list[Any]:
    """Return a copy of a list or tuple. Raises ``TypeError`` for other values, which may be read only once."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list of messages, not {type(value).__name__}")
    return list(cast("Sequence[Any]", value))


def items(value: Any) -> Iterator[Any]:
    """Yield the items of a list or tuple; nothing for other values, which may be read only once."""
    if isinstance(value, list | tuple):
        yield from cast("Sequence[Any]", value)


def text_in(content: Any) -> str | None:
    """Return the text of a message's content: a text, or a list with parts that have one. None without text."""
    if isinstance(content, str):
        return content or None
    texts = (part if isinstance(part, str) else item(part, "text") for part in items(content))
    return "\n".join(text for text in texts if isinstance(text, str)) or None


def joined(instructions: str | None, text: str) -> str:
    """Return the instructions with the context below them."""
    return f"{instructions}\n\n{text}" if instructions else text


def last_user_text(messages: Iterable[Any]) -> str | None:
    """Return the text of the last message of a user."""
    found: str | None = None
    for message in messages:
        if item(message, "role") == "user":
            found = text_in(item(message, "content")) or found
    return found


def result_of(call_id: str, content: Any, *, failed: bool = False) -> ModelToolResult:
    """Return the result of a tool call; without a flag, ``error_in`` says whether its text is an error."""
    text = text_in(content)
    value = content if text is None else structured(text)
    return ModelToolResult(call_id=call_id, content=value, error=(text or "error") if failed else error_in(value))

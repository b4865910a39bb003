"""The place of a turn's context in a prompt, and the one repetition without it if a provider refuses the prompt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, cast, get_args

from graphweft.chat_formats import question_of, read_messages
from graphweft.chat_formats.values import items
from graphweft_contracts import InvalidSettings

_M = TypeVar("_M")
_R = TypeVar("_R")
_T = TypeVar("_T")

ContextPlace: TypeAlias = Literal["last_message", "instructions", "own_message"]
"""``last_message``: below the user's question. ``instructions``: below the instructions, or in a system message if
there are none. ``own_message``: in a message behind the question.

Rejected as a default: the instructions. Models of the families Gemma and Mistral take no system message, and providers
cache the longest prefix that a request shares with an earlier one; the context differs from turn to turn.
"""
DEFAULT_PLACE: Final = "last_message"
_REFUSED: Final = frozenset({400, 413, 422})
"""Statuses by which providers refuse a request: invalid, too long, invalid for servers that check types."""
_MAX_CAUSES: Final = 8
"""Causes of an error that are looked at: runtimes put an error of a client into one of their own."""


def check_place(place: str) -> None:
    """Raise ``InvalidSettings`` for a place that does not exist."""
    if place not in get_args(ContextPlace):
        raise InvalidSettings(f"invalid context_place {place!r}: expected {', '.join(get_args(ContextPlace))}")


# Where a message takes the context


def placed(
    messages: Sequence[_M],
    block: str,
    place: ContextPlace,
    *,
    put: Callable[[_M, str], _M | None],
    own: Callable[[str], _M],
    read: Callable[[_M], Any] | None = None,
) -> list[_M] | None:
    """Return the messages with the context at ``place``, or None if it belongs into the instructions.

    That is so without a question, and if ``put``, which returns a message with the context below it, returns None.
    ``own`` makes a message of the context. ``read`` turns a message into a form that ``chat_formats`` knows.
    """
    question = None if place == "instructions" else question_in(messages if read is None else map(read, messages))
    if question is None:
        return None
    before, behind = messages[:question], messages[question + 1 :]
    if place == "own_message":
        return [*before, messages[question], own(block), *behind]
    found = put(messages[question], block)
    return None if found is None else [*before, found, *behind]


def question_in(values: Iterable[Any]) -> int | None:
    """Return the index of the user's question among the messages of a request, or None without one."""
    messages = list(read_messages(values, strict=False))
    place = question_of(messages)
    return None if place is None else messages[place].at


def joined(text: str | None, block: str) -> str:
    """Return a text with the context below it."""
    return f"{text}\n\n{block}" if text else block


def below(content: Any, block: str, *, kind: str = "text") -> Any:
    """Return a content, a text or a list of parts, with the context below it; None for other contents.

    ``kind`` is the type of a part with text.
    """
    if isinstance(content, str):
        return joined(content, block)
    if isinstance(content, list | tuple):
        return [*items(cast("Sequence[Any]", content)), {"type": kind, "text": block}]
    return None


def below_message(message: Any, block: str, *, kind: str = "text") -> Any:
    """Return a message that is a dictionary with the context below its content; None for others. See ``below``."""
    if not isinstance(message, dict):
        return None
    found = cast("dict[str, Any]", message)
    content = below(found.get("content"), block, kind=kind)
    return None if content is None else {**found, "content": content}


def change(before: Sequence[_M], after: Sequence[_M]) -> tuple[_M, list[_M]]:
    """Return the message that ``placed`` made, and the one that it replaced, if any."""
    n = next(n for n, one in enumerate(after) if n >= len(before) or one is not before[n])
    return after[n], [before[n]] if len(before) == len(after) else []


def undone(messages: Sequence[_M], added: _M, replaced: Sequence[_M]) -> list[_M]:
    """Return the messages without the change, whatever else has happened to them."""
    return [each for one in messages for each in (replaced if one is added else (one,))]


def user_message(block: str) -> dict[str, Any]:
    """Return a message of its own for the context: all providers take one of the user."""
    return {"role": "user", "content": block}


# Providers that refuse it


class Attempt(Generic[_R]):
    """A model call whose ``request`` holds the context. If the provider refuses it, it is sent once more without.

    ``plain`` is the request without context; the same object for both means that there is none. ``refused`` gets the
    error of a provider that took only the plain one. Runtimes that call the model themselves use ``goes_on`` and
    ``taken``; others pass the call to ``ask``.
    """

    def __init__(self, plain: _R, request: _R, *, refused: Callable[[BaseException], None]) -> None:
        self.plain = plain
        self._refused = refused
        self._refusal: BaseException | None = None
        self.request = request

    def goes_on(self, error: BaseException) -> bool:
        """Return whether to call again, with the ``request`` of now; if not, the call has failed."""
        if self.request is self.plain or not is_refusal(error):
            return False
        self._refusal, self.request = error, self.plain
        return True

    def taken(self) -> None:
        """The provider has taken the request. If it did so without context only, that is reported."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            self._refused(refusal)

    def ask(self, call: Callable[[_R], _T]) -> _T:
        """Return what the call of the model returns, or raise its error."""
        while True:
            try:
                found = call(self.request)
                break
            except BaseException as error:
                if not self.goes_on(error):
                    raise
        self.taken()
        return found

    async def aask(self, call: Callable[[_R], Awaitable[_T]]) -> _T:
        """Do the same as ``ask`` for a call that is awaited."""
        while True:
            try:
                found = await call(self.request)
                break
            except BaseException as error:
                if not self.goes_on(error):
                    raise
        self.taken()
        return found


def is_refusal(error: BaseException) -> bool:
    """Return whether a provider refused a request for what it holds. The first error with a status decides."""
    return next(filter(None, map(_status, _with_causes(error))), None) in _REFUSED


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__


def _status(error: BaseException) -> int | None:
    """Return the status of HTTP in an error of a provider's client: OpenAI, Anthropic, Google, httpx, aiohttp, boto."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, Mapping):
        about: Any = cast("Mapping[str, Any]", response).get("ResponseMetadata")
        found: Any = cast("Mapping[str, Any]", about).get("HTTPStatusCode") if isinstance(about, Mapping) else None
        return found if isinstance(found, int) else None
    named = (getattr(error, name, None) for name in ("status_code", "code", "status"))
    own = next((value for value in named if _is_status(value)), None)
    return int(own) if own is not None else _of_response(response)


def _of_response(response: Any) -> int | None:
    found = getattr(response, "status_code", None)
    return found if _is_status(found) else None


def _is_status(value: Any) -> bool:
    return isinstance(value, int) and 100 <= value < 600

"""The form of chat completions, which OpenAI, litellm and many servers speak."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from graphweft.adapters.context_place import ContextPlace, below_message, placed
from graphweft.adapters.model_clients.exchange import (
    ModelAnswer,
    ModelQuestion,
    answer_in,
    asked_in,
    listed,
)
from graphweft.adapters.values import is_json
from graphweft.chat_formats import ToolCall
from graphweft.chat_formats.parts import read_content
from graphweft.chat_formats.values import item, items, name_of

_INSTRUCTIONS: Final = ("system", "developer")


class ChatCompletions:
    """``chat.completions.create``: see ``Shape``. Only the first choice of an answer counts."""

    def asked(self, options: Mapping[str, Any]) -> ModelQuestion:
        """See ``Shape``."""
        return asked_in(items(options.get("messages")))

    def with_context(self, options: Mapping[str, Any], text: str, place: ContextPlace) -> dict[str, Any]:
        """See ``Shape``."""
        messages, own = listed(options.get("messages")), {"role": "system", "content": text}
        found = placed(messages, text, place, put=below_message, own=lambda _: own)
        return {**options, "messages": _below_instructions(messages, own) if found is None else found}

    def answer(self, response: Any) -> ModelAnswer:
        """See ``Shape``."""
        choice = next(items(item(response, "choices")), None)
        message = item(choice, "message")
        return ModelAnswer(**_about(response)) if message is None else answer_in(message, **_about(response))

    def reader(self, options: Mapping[str, Any]) -> _Chunks:
        """See ``Shape``."""
        return _Chunks(with_usage=bool(item(options.get("stream_options"), "include_usage")))


def _below_instructions(messages: list[Any], own: dict[str, Any]) -> list[Any]:
    """Return the messages with the context below the first instructions that have a place, or before all others."""
    for at, message in enumerate(messages):
        if item(message, "role") not in _INSTRUCTIONS:
            break
        found = below_message(message, own["content"])
        if found is not None:
            return [*messages[:at], found, *messages[at + 1 :]]
    return [own, *messages]


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    """A call whose parts arrive one after the other."""

    id: str | None = None
    name: str = ""
    arguments: str = ""


class _Chunks:
    """Parts of an answer. With ``with_usage`` the part with the token counts comes last.

    Gemini and gateways before it give each call of an answer the index 0, or none. So a new id begins a new call, as
    does, without ids, another name, or a name after complete arguments.
    """

    def __init__(self, *, with_usage: bool) -> None:
        self.done = False
        self._with_usage = with_usage
        self._finished = False
        self._texts: list[str] = []
        self._unread: list[str] = []
        self._calls: list[_Call] = []
        self._latest: dict[Hashable, _Call] = {}
        """By index: the call that began last."""
        self._about: dict[str, Any] = {}

    def feed(self, part: Any) -> None:
        self._about |= {name: value for name, value in _about(part).items() if value is not None}
        choice = next((each for each in items(item(part, "choices")) if not item(each, "index")), None)
        delta = item(choice, "delta")
        content = read_content(item(delta, "content") or item(delta, "refusal"))
        self._texts += content.texts
        self._unread += content.unread
        for call in items(item(delta, "tool_calls")):
            self._feed_call(call, item(call, "function", "custom"))
        legacy = item(delta, "function_call")
        if legacy is not None:
            self._feed_call(None, legacy)
        self._finished = self._finished or bool(item(choice, "finish_reason"))
        self.done = self._finished and not (self._with_usage and self._about.get("output_tokens") is None)

    def _feed_call(self, call: Any, function: Any) -> None:
        id, name, index = name_of(item(call, "id")), name_of(item(function, "name")), item(call, "index")
        known = self._latest.get(index)
        if known is None and index is None and id is None and name is None:
            known = self._calls[-1] if self._calls else None
        if known is None or _begins(known, id, name):
            known = self._latest[index] = _Call()
            self._calls.append(known)
        known.id = id or known.id
        known.name = name or known.name
        arguments = item(function, "arguments", "input")
        known.arguments += arguments if isinstance(arguments, str) else ""

    def answer(self) -> ModelAnswer | None:
        if not self._finished:
            return None
        calls: list[_Call] = []
        for call in self._calls:
            if not call.name and calls:  # a part of the call before it, with an id of its own
                calls[-1].arguments += call.arguments
            else:
                calls.append(call)
        return ModelAnswer(
            text="".join(self._texts) or None,
            calls=tuple(ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in calls if call.name),
            unread=self._unread,
            **self._about,
        )


def _begins(known: _Call, id: str | None, name: str | None) -> bool:
    """Return whether a part with this id and name begins a call after the one that is known at its index."""
    if id is not None and known.id is not None:
        return id != known.id
    if name is None or not known.name:
        return False
    return name != known.name or is_json(known.arguments)


def _about(response: Any) -> dict[str, Any]:
    usage = item(response, "usage")
    return {
        "model": item(response, "model") or None,
        "input_tokens": item(usage, "prompt_tokens"),
        "output_tokens": item(usage, "completion_tokens"),
    }

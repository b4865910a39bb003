"""The form of OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from graphweft.adapters.context_place import ContextPlace, below_message, joined, placed
from graphweft.adapters.model_clients.exchange import ModelAnswer, ModelQuestion, asked_in, listed
from graphweft.chat_formats import ToolCall, read_messages
from graphweft.chat_formats.values import item, items

_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
_KEPT: Final = ("previous_response_id", "conversation")
"""Arguments that name a conversation which the provider keeps, with everything in its messages."""


class Responses:
    """``responses.create``: see ``Shape``. In a conversation that the provider keeps, context is in instructions."""

    def asked(self, options: Mapping[str, Any]) -> ModelQuestion:
        """See ``Shape``."""
        given = options.get("input")
        return ModelQuestion(message=given or None) if isinstance(given, str) else asked_in(items(given))

    def with_context(self, options: Mapping[str, Any], text: str, place: ContextPlace) -> dict[str, Any]:
        """See ``Shape``."""
        given = options.get("input")
        own = {"role": "developer", "content": text}
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else listed(given)
        if any(options.get(name) for name in _KEPT):
            place = "instructions"
        found = placed(messages, text, place, put=partial(below_message, kind="input_text"), own=lambda _: own)
        if found is not None:
            only_text = isinstance(given, str) and len(found) == 1
            return {**options, "input": found[0]["content"] if only_text else found}
        instructions = options.get("instructions")
        if isinstance(instructions, str):
            return {**options, "instructions": joined(instructions, text)}
        if not options.get("prompt"):
            return {**options, "instructions": text}
        # A stored prompt has instructions of its own, which an argument would replace.
        return {**options, "input": [own, *messages]}

    def answer(self, response: Any) -> ModelAnswer:
        """See ``Shape``."""
        return _answer(response, list(items(item(response, "output"))))

    def reader(self, options: Mapping[str, Any]) -> _Events:
        """See ``Shape``."""
        return _Events()


def _answer(response: Any, output: list[Any]) -> ModelAnswer:
    texts: list[str] = []
    calls: list[ToolCall] = []
    unread: list[str] = []
    for message in read_messages(output):
        texts += [] if message.text is None else [message.text]
        calls += message.calls
        unread += message.unread
    usage, error = item(response, "usage"), item(response, "error")
    return ModelAnswer(
        text="\n".join(texts) or None,
        calls=calls,
        unread=unread,
        model=item(response, "model") or None,
        input_tokens=item(usage, "input_tokens"),
        output_tokens=item(usage, "output_tokens"),
        error=None if error is None else str(item(error, "code") or "failed"),
    )


class _Events:
    """Events of an answer. Servers other than OpenAI's may leave the output out of the last one."""

    def __init__(self) -> None:
        self.done = False
        self._output: list[Any] = []
        self._answer: ModelAnswer | None = None

    def feed(self, part: Any) -> None:
        kind = item(part, "type")
        if kind == "response.output_item.done":
            self._output.append(item(part, "item"))
        elif kind in _ENDS:
            response = item(part, "response")
            self.done, self._answer = True, _answer(response, list(items(item(response, "output"))) or self._output)
        elif kind == "error":
            self.done, self._answer = True, ModelAnswer(error=str(item(part, "code") or "error"))

    def answer(self) -> ModelAnswer | None:
        return self._answer

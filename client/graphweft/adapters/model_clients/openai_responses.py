"""The form of OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from graphweft.adapters.model_clients.exchange import (
    Asked,
    ModelAnswer,
    ModelToolCall,
    item,
    items,
    joined,
    last_user_text,
    listed,
    result_of,
    text_in,
)
from graphweft.adapters.values import parsed

_CALLS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
"""The types of calls that the caller runs, and the field of their arguments."""
_RESULTS: Final = ("function_call_output", "custom_tool_call_output")
_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")


class Responses:
    """``responses.create``: see ``Shape``."""

    def asked(self, options: Mapping[str, Any]) -> Asked:
        """See ``Shape``."""
        given = options.get("input")
        if isinstance(given, str):
            return Asked(message=given or None)
        results = [
            result_of(str(item(each, "call_id")), item(each, "output"))
            for each in items(given)
            if item(each, "type") in _RESULTS
        ]
        return Asked(message=last_user_text(items(given)), results=results)

    def with_context(self, options: Mapping[str, Any], text: str) -> dict[str, Any]:
        """See ``Shape``."""
        instructions, given = options.get("instructions"), options.get("input")
        if isinstance(instructions, str):
            return {**options, "instructions": joined(instructions, text)}
        if not options.get("prompt"):
            return {**options, "instructions": text}
        # A stored prompt has instructions of its own, which an argument would replace.
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else listed(given)
        return {**options, "input": [{"role": "developer", "content": text}, *messages]}

    def answer(self, response: Any) -> ModelAnswer:
        """See ``Shape``."""
        texts: list[str] = []
        calls: list[ModelToolCall] = []
        for each in items(item(response, "output")):
            kind = item(each, "type")
            if kind == "message":
                texts.append(text_in(item(each, "content")) or "")
            elif kind in _CALLS:
                arguments = parsed(item(each, _CALLS[kind]))
                calls.append(
                    ModelToolCall(id=str(item(each, "call_id")), name=str(item(each, "name")), arguments=arguments)
                )
        usage, error = item(response, "usage"), item(response, "error")
        return ModelAnswer(
            text="\n".join(filter(None, texts)) or None,
            calls=calls,
            model=item(response, "model") or None,
            input_tokens=item(usage, "input_tokens"),
            output_tokens=item(usage, "output_tokens"),
            error=None if error is None else str(item(error, "code") or "failed"),
        )

    def reader(self, options: Mapping[str, Any]) -> _Events:
        """See ``Shape``."""
        return _Events(self)


class _Events:
    def __init__(self, shape: Responses) -> None:
        self.done = False
        self._shape = shape
        self._answer: ModelAnswer | None = None

    def feed(self, part: Any) -> None:
        kind = item(part, "type")
        if kind in _ENDS:
            self.done, self._answer = True, self._shape.answer(item(part, "response"))
        elif kind == "error":
            self.done, self._answer = True, ModelAnswer(error=str(item(part, "code") or "error"))

    def answer(self) -> ModelAnswer | None:
        return self._answer

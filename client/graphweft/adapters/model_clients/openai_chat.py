"""The form of chat completions, which OpenAI, litellm and many servers speak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from graphweft.adapters.model_clients.exchange import (
    Asked,
    ModelAnswer,
    ModelToolCall,
    ModelToolResult,
    item,
    items,
    joined,
    last_user_text,
    listed,
    result_of,
    text_in,
)
from graphweft.adapters.values import parsed

_INSTRUCTIONS: Final = ("system", "developer")


class ChatCompletions:
    """``chat.completions.create``: see ``Shape``. Only the first choice of an answer counts."""

    def asked(self, options: Mapping[str, Any]) -> Asked:
        """See ``Shape``."""
        results: list[ModelToolResult] = []
        for message in items(options.get("messages")):
            role = item(message, "role")
            if role in {"assistant", "user"}:
                results = []
            elif role in {"tool", "function"}:
                call_id = item(message, "tool_call_id") or item(message, "name")
                results.append(result_of(str(call_id), item(message, "content")))
        return Asked(message=last_user_text(items(options.get("messages"))), results=results)

    def with_context(self, options: Mapping[str, Any], text: str) -> dict[str, Any]:
        """See ``Shape``."""
        messages = listed(options.get("messages"))
        for place, message in enumerate(messages):
            if item(message, "role") not in _INSTRUCTIONS:
                break
            content = item(message, "content")
            if isinstance(message, dict) and isinstance(content, str):
                messages[place] = {**message, "content": joined(content, text)}
                return {**options, "messages": messages}
            if isinstance(message, dict) and isinstance(content, list):
                messages[place] = {**message, "content": [*items(content), {"type": "text", "text": text}]}
                return {**options, "messages": messages}
        return {**options, "messages": [{"role": "system", "content": text}, *messages]}

    def answer(self, response: Any) -> ModelAnswer:
        """See ``Shape``."""
        choice = next(items(item(response, "choices")), None)
        message = item(choice, "message")
        return ModelAnswer(
            text=text_in(item(message, "content")) or item(message, "refusal"),
            calls=tuple(_calls(message)),
            **_about(response),
        )

    def reader(self, options: Mapping[str, Any]) -> _Chunks:
        """See ``Shape``."""
        return _Chunks(with_usage=bool(item(options.get("stream_options"), "include_usage")))


class _Chunks:
    """Parts of an answer. With ``with_usage`` the part with the token counts comes last."""

    def __init__(self, *, with_usage: bool) -> None:
        self.done = False
        self._with_usage = with_usage
        self._finished = False
        self._texts: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._about: dict[str, Any] = {}

    def feed(self, part: Any) -> None:
        self._about |= {name: value for name, value in _about(part).items() if value is not None}
        choice = next((each for each in items(item(part, "choices")) if not item(each, "index")), None)
        delta = item(choice, "delta")
        text = item(delta, "content") or item(delta, "refusal")
        if isinstance(text, str):
            self._texts.append(text)
        for call in items(item(delta, "tool_calls")):
            known = self._calls.setdefault(int(item(call, "index") or 0), {"id": "", "name": "", "arguments": ""})
            function = item(call, "function") or item(call, "custom")
            known["id"] = item(call, "id") or known["id"]
            known["name"] = item(function, "name") or known["name"]
            known["arguments"] += item(function, "arguments") or item(function, "input") or ""
        self._finished = self._finished or bool(item(choice, "finish_reason"))
        self.done = self._finished and not (self._with_usage and self._about.get("output_tokens") is None)

    def answer(self) -> ModelAnswer | None:
        if not self._finished:
            return None
        calls = (_call(each["id"], each["name"], each["arguments"]) for _, each in sorted(self._calls.items()))
        return ModelAnswer(text="".join(self._texts) or None, calls=tuple(calls), **self._about)


def _about(response: Any) -> dict[str, Any]:
    usage = item(response, "usage")
    return {
        "model": item(response, "model") or None,
        "input_tokens": item(usage, "prompt_tokens"),
        "output_tokens": item(usage, "completion_tokens"),
    }


def _calls(message: Any) -> list[ModelToolCall]:
    calls = list(items(item(message, "tool_calls")))
    legacy = item(message, "function_call")
    if not calls and legacy is not None:
        return [_call("", item(legacy, "name"), item(legacy, "arguments"))]
    found: list[ModelToolCall] = []
    for call in calls:
        function = item(call, "function")
        if function is None:  # free text as input
            function = item(call, "custom")
        arguments = item(function, "arguments")
        found.append(_call(item(call, "id"), item(function, "name"), arguments or item(function, "input")))
    return found


def _call(id: Any, name: Any, arguments: Any) -> ModelToolCall:
    return ModelToolCall(id=str(id or name), name=str(name), arguments=parsed(arguments))

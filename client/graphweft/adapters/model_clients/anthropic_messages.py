"""The form of Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from graphweft.adapters.context_place import ContextPlace, below_message, joined, placed, user_message
from graphweft.adapters.model_clients.exchange import (
    ModelAnswer,
    ModelQuestion,
    answer_in,
    asked_in,
    listed,
)
from graphweft.chat_formats.values import item, items


class Messages:
    """``messages.create``: see ``Shape``."""

    def asked(self, options: Mapping[str, Any]) -> ModelQuestion:
        """See ``Shape``."""
        return asked_in(items(options.get("messages")))

    def with_context(self, options: Mapping[str, Any], text: str, place: ContextPlace) -> dict[str, Any]:
        """See ``Shape``. A message of its own has the role of the user: this API has no other one for it."""
        messages = [] if place == "instructions" else listed(options.get("messages"))
        found = placed(messages, text, place, put=below_message, own=user_message)
        if found is not None:
            return {**options, "messages": found}
        system = options.get("system")
        if isinstance(system, list | tuple):
            return {**options, "system": [*items(system), {"type": "text", "text": text}]}
        return {**options, "system": joined(system if isinstance(system, str) else None, text)}

    def answer(self, response: Any) -> ModelAnswer:
        """See ``Shape``."""
        usage = item(response, "usage")
        return answer_in(
            {"role": "assistant", "content": item(response, "content")},
            model=item(response, "model") or None,
            input_tokens=item(usage, "input_tokens"),
            output_tokens=item(usage, "output_tokens"),
        )

    def reader(self, options: Mapping[str, Any]) -> _Events:
        """See ``Shape``."""
        return _Events()


class _Events:
    """Events of an answer. A gateway may give each of its blocks the same index, so a start begins a new one."""

    def __init__(self) -> None:
        self.done = False
        self._message: Any = None
        self._output_tokens: int | None = None
        self._blocks: list[dict[str, Any]] = []
        self._latest: dict[Hashable, dict[str, Any]] = {}
        """By index: the block that began last."""
        self._error: str | None = None

    def feed(self, part: Any) -> None:
        match item(part, "type"):
            case "message_start":
                self._message = item(part, "message")
            case "content_block_start":
                given = item(part, "content_block")
                block = {name: item(given, name) for name in ("type", "id", "name", "text", "input")} | {"json": ""}
                self._blocks.append(block)
                self._latest[item(part, "index")] = block
            case "content_block_delta":
                block, delta = self._latest.get(item(part, "index")) or self._blocks[-1], item(part, "delta")
                block["text"] = (block["text"] or "") + (item(delta, "text") or "")
                block["json"] += item(delta, "partial_json") or ""
            case "message_delta":
                self._output_tokens = item(item(part, "usage"), "output_tokens")
            case "message_stop":
                self.done = True
            case "error":
                self.done, self._error = True, str(item(item(part, "error"), "type") or "error")
            case _:
                pass

    def answer(self) -> ModelAnswer | None:
        if not self.done:
            return None
        content = [{**block, "input": block["json"] or block["input"]} for block in self._blocks]
        return answer_in(
            {"role": "assistant", "content": content},
            model=item(self._message, "model") or None,
            input_tokens=item(item(self._message, "usage"), "input_tokens"),
            output_tokens=self._output_tokens,
            error=self._error,
        )

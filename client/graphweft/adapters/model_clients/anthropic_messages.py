"""The form of Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphweft.adapters.model_clients.exchange import (
    Asked,
    ModelAnswer,
    ModelToolCall,
    item,
    items,
    joined,
    last_user_text,
    result_of,
    text_in,
)
from graphweft.adapters.values import parsed


class Messages:
    """``messages.create``: see ``Shape``."""

    def asked(self, options: Mapping[str, Any]) -> Asked:
        """See ``Shape``."""
        messages = list(items(options.get("messages")))
        content = item(messages[-1], "content") if messages else None
        results = [
            result_of(str(item(part, "tool_use_id")), item(part, "content"), failed=bool(item(part, "is_error")))
            for part in items(content)
            if item(part, "type") == "tool_result"
        ]
        return Asked(message=last_user_text(messages), results=results)

    def with_context(self, options: Mapping[str, Any], text: str) -> dict[str, Any]:
        """See ``Shape``."""
        system = options.get("system")
        if isinstance(system, list | tuple):
            return {**options, "system": [*items(system), {"type": "text", "text": text}]}
        return {**options, "system": joined(system if isinstance(system, str) else None, text)}

    def answer(self, response: Any) -> ModelAnswer:
        """See ``Shape``."""
        content = list(items(item(response, "content")))
        usage = item(response, "usage")
        return ModelAnswer(
            text=text_in(content),
            calls=[
                ModelToolCall(id=str(item(part, "id")), name=str(item(part, "name")), arguments=item(part, "input"))
                for part in content
                if item(part, "type") == "tool_use"
            ],
            model=item(response, "model") or None,
            input_tokens=item(usage, "input_tokens"),
            output_tokens=item(usage, "output_tokens"),
        )

    def reader(self, options: Mapping[str, Any]) -> _Events:
        """See ``Shape``."""
        return _Events()


class _Events:
    def __init__(self) -> None:
        self.done = False
        self._message: Any = None
        self._output_tokens: int | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._error: str | None = None

    def feed(self, part: Any) -> None:
        match item(part, "type"):
            case "message_start":
                self._message = item(part, "message")
            case "content_block_start":
                block = item(part, "content_block")
                fields = {name: item(block, name) for name in ("type", "id", "name", "text", "input")}
                self._blocks[int(item(part, "index"))] = {**fields, "json": ""}
            case "content_block_delta":
                block, delta = self._blocks[int(item(part, "index"))], item(part, "delta")
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
        blocks = [block for _, block in sorted(self._blocks.items())]
        texts = [block["text"] for block in blocks if block["type"] == "text" and block["text"]]
        return ModelAnswer(
            text="\n".join(texts) or None,
            calls=[
                ModelToolCall(id=str(block["id"]), name=str(block["name"]), arguments=_arguments(block))
                for block in blocks
                if block["type"] == "tool_use"
            ],
            model=item(self._message, "model") or None,
            input_tokens=item(item(self._message, "usage"), "input_tokens"),
            output_tokens=self._output_tokens,
            error=self._error,
        )


def _arguments(block: Mapping[str, Any]) -> Any:
    return parsed(block["json"]) if block["json"] else block["input"]

"""What the parts of a content say: text, calls of tools, their results, and forms that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from graphweft.chat_formats.values import item, items, name_of

_CALLS: Final = frozenset({"tool_use", "tool-call", "tool_call", "function_call", "custom_tool_call"})
"""Types of parts and items that call a tool which the caller runs."""
_RESULTS: Final = frozenset(
    {"tool_result", "tool-result", "tool_call_response", "function_call_output", "custom_tool_call_output"}
)
_REASONING: Final = frozenset(
    {"thinking", "redacted_thinking", "reasoning", "redacted-reasoning", "reasoning_content", "thought"}
)
_NESTED_CALLS: Final = ("functionCall", "function_call", "toolUse")
"""Fields that hold a call, in Gemini and Bedrock."""
_NESTED_RESULTS: Final = ("functionResponse", "function_response", "toolResult")
_NO_CONTENT: Final = frozenset({"cachePoint", "cache_point", "step-start", "thoughtSignature"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool. ``id`` is None if the server gave none. ``arguments`` are as they were written."""

    name: str
    id: str | None = None
    arguments: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a tool. ``text`` is what it says, or None if it is no text; ``failed`` is a flag of its form."""

    call_id: str | None = None
    tool: str | None = None
    content: Any = None
    text: str | None = None
    failed: bool = False


@dataclass(slots=True)
class Content:
    """What a content says."""

    texts: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    results: list[ToolResult] = field(default_factory=list[ToolResult])
    unread: list[str] = field(default_factory=list[str])
    """The names of the forms that are left out, such as ``image_url``."""

    @property
    def text(self) -> str | None:
        """The text, or None. Parts are joined by newlines."""
        return "\n".join(self.texts) or None


def read_content(content: Any) -> Content:
    """Return what a content says: a text, or a list of texts and parts."""
    found = Content()
    if isinstance(content, str):
        if content:
            found.texts.append(content)
    elif isinstance(content, list | tuple):
        for part in items(content):  # pyright: ignore[reportUnknownVariableType]
            _read_part(part, found)
    elif content is not None:
        _read_part(content, found)
    return found


def call_of(value: Any) -> ToolCall | None:
    """Return the call in an item of ``tool_calls``, in a part, or in an item of Responses; None without a name."""
    inner = item(value, "function", "custom")
    named = value if inner is None or isinstance(inner, str) else inner
    name = name_of(item(named, "name", "toolName", "tool_name"))
    if name is None:
        return None
    return ToolCall(
        name=name,
        id=name_of(item(value, "call_id", "toolCallId", "toolUseId", "tool_call_id")) or name_of(item(value, "id")),
        arguments=item(named, "arguments", "input", "args"),
    )


def result_of(value: Any, content: Any, unread: list[str]) -> ToolResult:
    """Return the result in a message, a part or an item, with this content."""
    inside = read_content(content)
    unread += inside.unread
    status = item(value, "status")
    return ToolResult(
        call_id=name_of(item(value, "tool_call_id", "tool_use_id", "call_id", "toolCallId", "toolUseId")),
        tool=name_of(item(value, "name", "tool_name", "toolName")),
        content=content,
        text=inside.text,
        failed=item(value, "is_error", "isError") is True or item(value, "error") is True or status == "error",
    )


def _read_part(part: Any, found: Content) -> None:
    if isinstance(part, str):
        if part:
            found.texts.append(part)
        return
    kind = item(part, "type")
    nested_call = next((inner for name in _NESTED_CALLS if _is_filled(inner := item(part, name))), None)
    nested_result = next((inner for name in _NESTED_RESULTS if _is_filled(inner := item(part, name))), None)
    if kind in _REASONING or item(part, "thought") is True or item(part, "reasoningContent") is not None:
        return
    if kind in _CALLS or nested_call is not None:
        call = call_of(part if nested_call is None else nested_call)
        if call is None:
            found.unread.append(f"{kind or 'call'} without a name")
        else:
            found.calls.append(call)
    elif kind in _RESULTS:
        given = item(part, "content", "output", "result", "response")
        failed = False
        if kind == "tool-result" and isinstance(given, Mapping) and "value" in given:  # of the AI SDK, since version 5
            output = cast("Mapping[str, Any]", given)
            given, failed = output["value"], str(output.get("type")).startswith("error")
        result = result_of(part, given, found.unread)
        call_id = result.call_id or name_of(item(part, "id"))
        found.results.append(replace(result, call_id=call_id, failed=result.failed or failed))
    elif nested_result is not None:
        _read_nested_result(nested_result, found)
    else:
        _read_text(part, kind, found)


def _read_nested_result(inner: Any, found: Content) -> None:
    """Read a result of Gemini, which is an object, or of Bedrock, which is parts with ``text`` or ``json``."""
    response = item(inner, "response")
    parts = list(items(item(inner, "content")))
    if response is None and len(parts) == 1:
        response = item(parts[0], "json")
    if response is None:
        found.results.append(result_of(inner, parts, found.unread))
        return
    own = result_of(inner, None, [])
    call_id = own.call_id or name_of(item(inner, "id"))
    found.results.append(replace(own, call_id=call_id, content=response))


def _read_text(part: Any, kind: Any, found: Content) -> None:
    text = item(part, "text", "refusal", "transcript")
    if text is None and kind in {"text", "input_text", "output_text", None}:
        text = item(part, "content")  # of the GenAI conventions
    if isinstance(text, str):
        if text:
            found.texts.append(text)
        return
    if kind in _NO_CONTENT:
        return
    names = [str(name) for name in _fields_of(part)]
    if not any(name in _NO_CONTENT for name in names):
        found.unread.append(str(kind or next(iter(names), _kind_of(part)))[:64])


def _fields_of(part: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", part) if isinstance(part, Mapping) else {}


def _kind_of(part: object) -> str:
    return type(part).__name__


def _is_filled(value: Any) -> bool:
    return value is not None and not isinstance(value, str)

"""One message of a chat, and a list of them, whatever form they have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from graphweft.chat_formats.parts import Content, ToolCall, ToolResult, call_of, read_content, result_of
from graphweft.chat_formats.values import item, items, name_of

Role: TypeAlias = Literal["instructions", "user", "assistant", "tool"]

ROLES: Final[Mapping[str, Role]] = {
    "system": "instructions",
    "developer": "instructions",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "chatbot": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""The names of roles, and what they mean."""
_CALL_ITEMS: Final = frozenset({"function_call", "custom_tool_call"})
_RESULT_ITEMS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
_WRAPPED: Final = ("user", "assistant")
"""Types of the entries of a transcript of Claude Code that hold a message."""
_OF_PROGRAM: Final = re.compile(
    r"\s*(<(task-notification|teammate-message|system-reminder|channel|(local-command|bash)-std(out|err))[ >]"
    r"|\[Request interrupted by user)"
)
"""Begins a text in the user's name that the program itself writes: news of a subagent, output of a command. It would
become a memory of what the user said, although it may quote a web page.
"""
_SILENT: Final = frozenset({"reasoning", "item_reference", "compaction"})
"""Items of Responses that say nothing."""


class UnknownRole(ValueError):
    """A message has a role that is not known. ``role`` is what it has."""

    def __init__(self, role: object) -> None:
        super().__init__(f"unknown role {role!r}")
        self.role = role


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """What a message says.

    ``agent`` is the name in it. ``unread`` names the forms in its content that are left out. ``at`` is its index among
    the messages that were read.
    """

    role: Role
    text: str | None = None
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    agent: str | None = None
    unread: tuple[str, ...] = ()
    at: int = 0


def is_of_program(text: str) -> bool:
    """Return whether a coding agent wrote a text in the name of its user."""
    return _OF_PROGRAM.match(text) is not None


def read_messages(values: Iterable[Any], *, strict: bool = True) -> Iterator[ChatMessage]:
    """Yield the messages. Raises ``UnknownRole``, unless not ``strict``: then such a message counts as left out.

    Calls that a form spreads over several items, as Responses and Claude Code do, become those of one message. An item
    of an unknown type becomes instructions without text that name it in ``unread``.
    """
    before: ChatMessage | None = None
    key_before: object = None
    for at, value in enumerate(values):
        try:
            message = read_message(value)
        except UnknownRole as error:
            if strict:
                raise
            message = ChatMessage(role="instructions", unread=(f"role {error.role}"[:64],))
        if message is None:
            continue
        key = _answer_of(value, message)
        if before is not None and key is not None and key == key_before:
            before = replace(
                before,
                text="\n".join(filter(None, (before.text, message.text))) or None,
                calls=(*before.calls, *message.calls),
                unread=(*before.unread, *message.unread),
            )
            continue
        if before is not None:
            yield before
        before, key_before = replace(message, at=at), key
    if before is not None:
        yield before


def read_message(value: Any) -> ChatMessage | None:
    """Return what a message says, or None for an entry that is no message. Raises ``UnknownRole``."""
    kind, role = item(value, "type"), item(value, "role")
    role = getattr(role, "value", role)  # of an enumeration, in LlamaIndex and others
    if role is None and kind in _WRAPPED and item(value, "message") is not None:
        return _of_transcript(value)
    if role is None and kind in _CALL_ITEMS:
        call = call_of(value)
        return None if call is None else ChatMessage(role="assistant", calls=(call,))
    if role is None and kind in _RESULT_ITEMS:
        unread: list[str] = []
        result = result_of(value, item(value, "output"), unread)
        return ChatMessage(role="tool", results=(result,), unread=tuple(unread))
    if role is None and isinstance(kind, str) and kind not in ROLES:
        if kind in _SILENT:
            return None
        return ChatMessage(role="instructions", unread=(kind[:64],))
    meaning = ROLES.get(str(role if role is not None else kind))
    if meaning is None:
        raise UnknownRole(role)
    content = read_content(item(value, "content", "parts"))
    content.unread += ["images"] * bool(item(value, "images"))  # of Ollama
    if meaning == "tool" or (meaning == "user" and item(value, "message_type") == "observation"):
        return _result(value, content)
    calls = _calls(value, content) if meaning == "assistant" else ()
    text = content.text or name_of(item(value, "refusal")) or name_of(item(item(value, "audio"), "transcript"))
    if content.results and meaning == "instructions":
        meaning = "tool"
    return ChatMessage(
        role=meaning,
        text=text,
        calls=calls,
        results=tuple(content.results),
        agent=name_of(item(value, "name")),
        unread=tuple(content.unread),
    )


def _calls(value: Any, content: Content) -> tuple[ToolCall, ...]:
    found = list(content.calls)
    for each in items(item(value, "tool_calls", "toolCalls")):
        call = call_of(each)
        if call is None:
            content.unread.append("tool_calls without a name")
        elif call.id is None or all(call.id != known.id for known in content.calls):  # LangChain writes calls twice
            found.append(call)
    legacy = item(value, "function_call")
    if not found and legacy is not None:
        call = call_of(legacy)
        found += [] if call is None else [call]
    return tuple(found)


def _result(value: Any, content: Content) -> ChatMessage:
    """Return a message that is the result of a tool, or of several."""
    if content.results:
        results = content.results
    else:
        own = result_of(value, item(value, "content", "parts"), [])
        ids = [name for each in items(item(value, "tool_call_ids")) if (name := name_of(each))]  # of SWE-agent
        if own.call_id is None and not ids:
            ids = [name for name in (name_of(item(value, "id")),) if name]  # of tau2-bench
        results = [replace(own, call_id=each) for each in ids] if own.call_id is None and ids else [own]
    return ChatMessage(role="tool", results=tuple(results), unread=tuple(content.unread))


def _of_transcript(entry: Any) -> ChatMessage | None:
    """Return the message of an entry of Claude Code. Those of the program itself count as instructions."""
    if item(entry, "isSidechain") is True:
        return ChatMessage(role="instructions", unread=("message of a subagent",))
    message = read_message(item(entry, "message"))
    if message is None or message.results:
        return message
    flags = ("isMeta", "isCompactSummary", "isApiErrorMessage")
    if any(item(entry, flag) is True for flag in flags) or (
        message.role == "user" and is_of_program(message.text or "")
    ):
        return replace(message, role="instructions")
    return message


def _answer_of(value: Any, message: ChatMessage) -> object:
    """Return what tells items of one answer from those of another, or None for a message that stands alone."""
    if message.role != "assistant":
        return None
    if item(value, "role") is None and item(value, "type") in _CALL_ITEMS:
        return "items"
    return name_of(item(item(value, "message"), "id")) if item(value, "role") is None else None

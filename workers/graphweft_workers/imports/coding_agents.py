"""What a hook of a coding agent says, as events and as a question for context. No I/O.

Claude Code and Codex run a command at moments of a session and give it a JSON object: the name of the moment in
``hook_event_name``, the session, and what is special to the moment. Codex's older ``notify`` gives one object after
each turn. Fields that are missing or of another type count as absent, because both programs add and change fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import uuid4

from graphweft.adapters.turn_memory import MEMORY_ADD, memory_of
from graphweft.adapters.values import error_in
from graphweft.chat_formats import without_reasoning
from graphweft.chat_formats.messages import is_of_program
from graphweft.json_copy import json_copy
from graphweft_contracts import (
    AgentTurnComplete,
    AgentTurnStart,
    Event,
    ToolCallComplete,
    ToolCallStart,
    WorkflowComplete,
    WorkflowError,
    WorkflowStart,
)
from graphweft_contracts.events import data_of
from graphweft_contracts.memory import derived_id
from graphweft_workers.text.redaction import redact_cell

SOURCE: Final = "/graphweft/hook"
_MAX_VALUES: Final = 2_000
_MAX_TEXT: Final = 8_000
"""Characters kept of one text."""
_MAX_CHARACTERS: Final = 40_000
"""Characters kept of all texts of an event: redaction reads each, at about 0.2 s for so many."""
_MAX_PROMPT: Final = 20_000
_LONGEST_MS: Final = 10**12
_QUIET: Final = frozenset(
    {"Notification", "PreCompact", "PostCompact", "PermissionRequest", "PermissionDenied", "Setup", "Interrupt"}
)
"""Moments that no event stands for."""


class UnreadableHook(ValueError):
    """The input is not a hook's. The text names fields, and no values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose session it is."""

    app_id: str
    user_id: str | None
    workflow: str
    agent: str
    remember: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HookPlan:
    """What to do for one hook: emit ``before``, request context if ``asks``, and then emit ``after``."""

    name: str
    chat_id: str
    before: Sequence[Event] = ()
    after: Sequence[Event] = ()
    asks: bool = False
    message: str | None = None
    """What the user has said."""
    agent: str = ""
    variables: Mapping[str, Any]
    unknown: bool = False
    """Whether nothing is known of a moment with this name."""


def read_hook(raw: object, owner: Owner) -> HookPlan:
    """Return what a hook says. Raises ``UnreadableHook``, and ``ValidationError`` for ids beyond the contract."""
    if not isinstance(raw, dict):
        raise UnreadableHook("a hook is a JSON object")
    fields = cast("dict[str, Any]", raw)
    if fields.get("type") == "agent-turn-complete":
        return _notified(fields, owner)
    name, chat_id = _text(fields, "hook_event_name"), _text(fields, "session_id")
    missing = [field for field, value in (("hook_event_name", name), ("session_id", chat_id)) if value is None]
    if name is None or chat_id is None:
        raise UnreadableHook(f"the hook has no {' and no '.join(missing)}: pass on what the coding agent writes")
    return _HookReader(fields, owner, name, chat_id).plan()


class _HookReader:
    """Reads one hook of a session."""

    def __init__(self, fields: Mapping[str, Any], owner: Owner, name: str, chat_id: str) -> None:
        self._fields = fields
        self._owner = owner
        self._name = name
        self._chat_id = chat_id
        self._agent = _text(fields, "agent_type") or owner.agent
        self._variables: dict[str, Any] = {
            "chat_id": chat_id,
            "workflow_name": owner.workflow,
            **({} if owner.user_id is None else {"user_id": owner.user_id}),
            **{key: value for key in ("cwd", "model", "permission_mode") if (value := _text(fields, key)) is not None},
        }

    def plan(self) -> HookPlan:
        match self._name:
            case "SessionStart":
                return self._does(
                    self.event("workflow.start", data_of(WorkflowStart, reason=self._redacted_text("source"))),
                    asks=True,
                )
            case "SessionEnd":
                ended = data_of(WorkflowComplete, status=self._redacted_text("reason") or "COMPLETE")
                return self._does(self.event("workflow.complete", ended))
            case "UserPromptSubmit":
                prompt = self._redacted_text("prompt")
                if prompt is not None and is_of_program(prompt):
                    prompt = None
                kept = self._remembered(prompt, None)
                return self._does(self._started(), after=kept, asks=True, message=prompt)
            case "SubagentStart":
                return self._does(self._started())
            case "Stop" | "SubagentStop":
                said = self._redacted_text("last_assistant_message")
                answer = None if said is None else without_reasoning(said) or None
                ended = data_of(
                    AgentTurnComplete, agent_name=self._agent, success=True, outcome="completed", response=answer
                )
                kept = self._remembered(None, answer) if self._name == "Stop" else ()
                return self._does(self.event("agent.turn_complete", ended), after=kept)
            case "StopFailure":
                return self._failed(_error_type(self._fields.get("error")), self._redacted_text("error_details"))
            case "PreToolUse":
                called = data_of(
                    ToolCallStart,
                    tool_name=self._tool(),
                    call_id=_text(self._fields, "tool_use_id"),
                    agent_name=self._agent,
                    arguments=self._fields.get("tool_input"),
                )
                return self._does(self.event("tool.call_start", called))
            case "PostToolUse":
                result = self._fields.get("tool_response")
                return self._ended_tool(result, error_in(result))
            case "PostToolUseFailure":
                return self._ended_tool(None, self._redacted_text("error") or "error")
            case _:
                return self._does(unknown=self._name not in _QUIET)

    def event(self, type: str, data: Mapping[str, Any], *more: str) -> Event:
        """Return an event. Its id derives from the hook if the hook has an id, so that a copy has no effect."""
        named = [_text(self._fields, key) for key in ("turn_id", "prompt_id", "tool_use_id", "agent_id")]
        id = None
        if any(named[:3]) and self._name not in {"SessionStart", "SessionEnd"}:
            answer = str(self._fields.get("last_assistant_message"))
            id = derived_id("hook", self._chat_id, self._name, type, *named, answer, *more)
        return Event.create(
            type,
            app_id=self._owner.app_id,
            chat_id=self._chat_id,
            workflow=self._owner.workflow,
            user_id=self._owner.user_id,
            data={key: value for key, value in _redacted_copy(data).items() if value is not None or key == "response"},
            context=self._variables,
            id=id,
            source=SOURCE,
        )

    def _does(self, *before: Event, **more: Any) -> HookPlan:
        return HookPlan(
            name=self._name, chat_id=self._chat_id, before=before, variables=self._variables, agent=self._agent, **more
        )

    def _started(self) -> Event:
        return self.event("agent.turn_start", data_of(AgentTurnStart, agent_name=self._agent))

    def _failed(self, error_type: str, message: str | None) -> HookPlan:
        ended = data_of(
            AgentTurnComplete,
            agent_name=self._agent,
            success=False,
            outcome="failed",
            response=None,
            error_type=error_type,
            error_message=message,
        )
        error = data_of(WorkflowError, agent_name=self._agent, error_type=error_type, error_message=message)
        return self._does(self.event("agent.turn_complete", ended), self.event("workflow.error", error))

    def _tool(self) -> str:
        name = _text(self._fields, "tool_name")
        if name is None:
            raise UnreadableHook(f"the hook {self._name} has no tool_name: pass on what the coding agent writes")
        return name

    def _ended_tool(self, result: Any, error: str | None) -> HookPlan:
        ended = data_of(
            ToolCallComplete,
            tool_name=self._tool(),
            call_id=_text(self._fields, "tool_use_id"),
            agent_name=self._agent,
            result=result,
            success=error is None,
            error=error,
            duration_ms=self._duration_ms(),
        )
        return self._does(self.event("tool.call_complete", ended))

    def _duration_ms(self) -> int | float | None:
        value = self._fields.get("duration_ms")
        sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LONGEST_MS
        return value if sound else None

    def _remembered(self, message: str | None, answer: str | None) -> Sequence[Event]:
        scope = {"thread_id": self._chat_id} | ({"user_id": self._owner.user_id} if self._owner.user_id else {})
        data = memory_of(scope, message, answer) if self._owner.remember else None
        return () if data is None else (self.event(MEMORY_ADD, data),)

    def _redacted_text(self, key: str) -> str | None:
        said = _text(self._fields, key)
        return None if said is None else redact_cell("", said[:_MAX_PROMPT])


def _notified(fields: Mapping[str, Any], owner: Owner) -> HookPlan:
    """Return the turn that ``notify`` of Codex reports when it has ended."""
    chat_id = _text(fields, "thread-id")
    if chat_id is None:
        raise UnreadableHook("the notification has no thread-id: this version of Codex has hooks instead")
    prompts = [text for text in _list(fields.get("input-messages")) if isinstance(text, str)]
    hook = {
        "turn_id": _text(fields, "turn-id") or uuid4().hex,
        "cwd": fields.get("cwd"),
        "prompt": "\n".join(prompts),
        "last_assistant_message": fields.get("last-assistant-message"),
    }
    started = _HookReader(hook, owner, "UserPromptSubmit", chat_id).plan()
    ended = _HookReader(hook, owner, "Stop", chat_id).plan()
    events = (*started.before, *started.after, *ended.before, *ended.after)
    return HookPlan(name="notify", chat_id=chat_id, before=events, variables=ended.variables, agent=owner.agent)


def _redacted_copy(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of limited size, without secrets."""
    left = _MAX_CHARACTERS

    def shown(value: Any, label: str) -> Any:
        nonlocal left
        if isinstance(value, str):
            kept = value[: max(0, left)]
            left -= len(kept)
            return redact_cell(label, kept) if len(kept) == len(value) else f"{redact_cell(label, kept)}…"
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value)  # a copy of JSON
            return {redact_cell("", key): shown(item, key) for key, item in items.items()}
        return [shown(item, label) for item in _list(value)] if isinstance(value, list) else value

    return {
        key: shown(value, key)
        for key, value in json_copy(data, max_values=_MAX_VALUES, max_characters=_MAX_TEXT).items()
    }


def _error_type(error: object) -> str:
    """Return the kind of a failure: a word, and no text that may quote what was said."""
    kind = cast("dict[str, Any]", error).get("type") if isinstance(error, dict) else error
    return kind[:256] if isinstance(kind, str) and kind.strip() else "Error"


def _text(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return value if isinstance(value, str) and value.strip() else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]

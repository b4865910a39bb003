"""Makes lifecycle events of recorded chat-completion runs.

A second import of the same file gives identical events, byte for byte: ids come from chat, turn and call, and times
from the record or from its place in the file, never from a clock. So no event of a repeated import takes effect twice.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from string import Formatter
from typing import Final

from pydantic import JsonValue, ValidationError

from graphweft.chat_formats import question_of
from graphweft_contracts import AgentTurnComplete, AgentTurnStart, Event, ToolCallComplete, WorkflowComplete
from graphweft_contracts.events import data_of, known
from graphweft_contracts.moments import since_1970
from graphweft_contracts.wire import explain
from graphweft_workers.imports.runs import ImportProblem, RecordedRun, named
from graphweft_workers.imports.turns import ImportedTurn, parts_left_out, read_run, turns_of
from graphweft_workers.text.iso_time import in_utc, iso_time

_CHAT_FIELDS: Final = ("chat_id", "conversation_id", "session_id", "id")
_TIME_FIELDS: Final = ("created", "created_at", "timestamp")
_USER_FIELD: Final = "user_id"
_MESSAGE_STEP: Final = timedelta(seconds=5)
"""Recordings seldom have times of messages. With this step, a run of 720 messages ends before the next one starts."""
_RUN_STEP: Final = timedelta(hours=1)
_NEXT: Final = timedelta(milliseconds=1)
"""Between two events of one message, so that times within a run always increase."""
_MAX_CHAT_ID: Final = 200
"""Characters. Event ids add a turn and a call to it, and the contract allows 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatImportOptions:
    """Options of the import."""

    app_id: str
    workflow: str
    agent: str | None = None
    """Agent of every turn; by default the ``name`` of each assistant message, or "assistant"."""
    chat_id: str | None = None
    """Template over the record's fields, ``"order{order}-{attempt:02d}"``; by default the record's own chat id."""
    start: datetime = datetime(2024, 1, 1, tzinfo=UTC)
    """Time of a file's first run, for records without a time. Each further run starts an hour later."""
    context_fields: tuple[str, ...] = ()
    """Fields of the record that rules see as ``$context.*``. Every record must have them (null is fine)."""
    handover_tools: tuple[str, ...] = ("transfer_to_*",)
    """Shell patterns of tools that hand the chat over. A turn that ends with such a call needs no text to succeed."""

    keep_reasoning: bool = False
    """Whether what a model thinks aloud in its answer, as in ``<think>…</think>``, is part of the response."""

    @property
    def source(self) -> str:
        """The CloudEvents source. It names app and workflow, so an import for another one gives other events."""
        return f"/import/openai-chat/{self.app_id}/{self.workflow}"


def events_of_runs(
    runs: Iterable[RecordedRun], options: ChatImportOptions, skipped: Counter[str] | None = None
) -> Iterator[Event]:
    """Yield the events of many runs; of each run either all events or none.

    ``skipped`` counts the parts of messages that no event holds, by what they are.

    Raises ``ImportProblem`` at the first run that is invalid or has the chat id of an earlier run.
    """
    places: dict[str, str] = {}
    for run in runs:
        events = events_of(run, options, skipped)
        chat_id = events[0].chatid
        if chat_id in places:
            raise ImportProblem(
                f"{run.place}: the chat id {chat_id!r} is also that of {places[chat_id]}: choose a chat id template "
                f"that gives them different ids, from the fields {named(_scalars(run.fields))}"
            )
        places[chat_id] = run.place
        yield from events


def events_of(run: RecordedRun, options: ChatImportOptions, skipped: Counter[str] | None = None) -> tuple[Event, ...]:
    """Return the events of one run in the order of their times; there is at least a ``workflow.complete``.

    Raises ``ImportProblem`` with the place and the next step.
    """
    messages = read_run(run)
    if skipped is not None:
        skipped.update(parts_left_out(messages))
    turns = turns_of(messages, agent=options.agent, keep_reasoning=options.keep_reasoning)
    chat_id, used = _chat_id(run, options)
    writer = _Writer(run=run, options=options, chat_id=chat_id)
    for number, turn in enumerate(turns, start=1):
        _write_turn(writer, turn, number, options)
    question = question_of(messages)
    said = None if question is None else messages[question].text
    left_out = {_USER_FIELD, used, writer.time_field}
    outputs = {name: value for name, value in _scalars(run.fields).items() if name not in left_out}
    at = writer.moment(len(run.messages) - 1)
    writer.add(
        "workflow.complete",
        "end",  # not "complete": chat "a/1" would then end with the id that turn 1 of chat "a" completes with
        at=at,
        user_message=said,
        data=data_of(
            WorkflowComplete, status="COMPLETE", duration=(at - writer.start).total_seconds(), outputs=outputs
        ),
    )
    return tuple(writer.events)


def _write_turn(writer: _Writer, turn: ImportedTurn, number: int, options: ChatImportOptions) -> None:
    # The agent starts at the time of the message before its own.
    started = writer.moment(max(turn.first - 1, 0))
    data = data_of(AgentTurnStart, agent_name=turn.agent, turn_number=number)
    writer.add("agent.turn_start", f"{number}/start", at=started, user_message=turn.user_message, data=data)
    for k, call in enumerate(turn.calls, start=1):
        data = data_of(
            ToolCallComplete,
            agent_name=turn.agent,
            turn_number=number,
            tool_name=call.tool,
            call_id=call.id,
            arguments=call.arguments,
            result=call.result,
            success=call.success,
            error=known(call.error),
        )
        writer.add(
            "tool.call_complete",
            f"{number}/tool/{k}",
            at=writer.moment(call.at),
            user_message=turn.user_message,
            data=data,
        )
    data = data_of(
        AgentTurnComplete,
        agent_name=turn.agent,
        turn_number=number,
        response=turn.response,
        success=turn.response is not None or _handed_over(turn, options),
    )
    writer.add(
        "agent.turn_complete",
        f"{number}/complete",
        at=writer.moment(turn.last),
        user_message=turn.user_message,
        data=data,
    )


def _handed_over(turn: ImportedTurn, options: ChatImportOptions) -> bool:
    if not turn.calls or turn.calls[-1].success is False:
        return False
    return any(fnmatchcase(turn.calls[-1].tool, pattern) for pattern in options.handover_tools)


class _Writer:
    """Makes the events of one run, with their common fields."""

    def __init__(self, *, run: RecordedRun, options: ChatImportOptions, chat_id: str) -> None:
        self._run = run
        self._options = options
        self._chat_id = chat_id
        self._user_id = _user_id(run)
        self._context: dict[str, JsonValue] = _context(run, options)
        if self._user_id is not None:
            self._context[_USER_FIELD] = self._user_id
        self._context["chat_id"] = chat_id
        self.start, self.time_field = _start(run, options)
        self._earliest = self.start
        self.events: list[Event] = []

    def moment(self, message: int) -> datetime:
        """Return the time of the next event at this message. It is always later than the event before."""
        try:
            return max(self.start + message * _MESSAGE_STEP, self._earliest)
        except OverflowError as error:
            raise ImportProblem(
                f"{self._run.place}: the run ends after the year 9999: give an earlier start"
            ) from error

    def add(self, type: str, id: str, *, at: datetime, user_message: str | None, data: Mapping[str, JsonValue]) -> None:
        context = self._context if user_message is None else self._context | {"last_user_message": user_message}
        try:
            event = Event.create(
                type,
                app_id=self._options.app_id,
                chat_id=self._chat_id,
                workflow=self._options.workflow,
                user_id=self._user_id,
                data=data,
                context=context,
                id=f"{self._chat_id}/{id}",
                source=self._options.source,
                time=at,
            )
        except ValidationError as error:
            raise ImportProblem(
                f"{self._run.place}: {explain(error)}; correct the record or the option of that name"
            ) from error
        self.events.append(event)
        self._earliest = at + _NEXT


def _chat_id(run: RecordedRun, options: ChatImportOptions) -> tuple[str, str | None]:
    """Return the chat id, and the record's field that it comes from, if any."""
    used: str | None = None
    if options.chat_id is not None:
        chat_id = _filled(options.chat_id, run)
    else:
        used = next((name for name in _CHAT_FIELDS if _is_key(run.fields.get(name))), None)
        chat_id = _digest(run) if used is None else str(run.fields[used])
    if not 0 < len(chat_id) <= _MAX_CHAT_ID:
        raise ImportProblem(
            f"{run.place}: the chat id {chat_id!r} has {len(chat_id)} characters; expected 1 to {_MAX_CHAT_ID}: "
            "choose another chat id template"
        )
    return chat_id, used


def _filled(template: str, run: RecordedRun) -> str:
    """Fill the template from plain fields. It cannot use attributes, indexes or conversions."""
    fields = _scalars(run.fields)
    parts: list[str] = []
    try:
        for literal, name, spec, conversion in Formatter().parse(template):
            parts.append(literal)
            if name is None:
                continue
            if name not in fields or conversion:
                raise ImportProblem(
                    f"{run.place}: the chat id template {template!r} uses {name!r}, but the record's fields are "
                    f"{named(fields)}: use one of these"
                )
            parts.append(format(fields[name], spec or ""))
    except (ValueError, TypeError) as error:
        raise ImportProblem(
            f"{run.place}: invalid chat id template {template!r} ({error}): write it like 'order{{id}}'"
        ) from error
    return "".join(parts)


def _digest(run: RecordedRun) -> str:
    content = json.dumps(run.messages, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(content).hexdigest()[:32]


def _user_id(run: RecordedRun) -> str | None:
    value = run.fields.get(_USER_FIELD)
    if value is None or value == "":
        return None
    if not _is_key(value):
        raise ImportProblem(
            f"{run.place}: invalid 'user_id' {value!r}: expected a string or a whole number; correct it or remove it"
        )
    return str(value)


def _context(run: RecordedRun, options: ChatImportOptions) -> dict[str, JsonValue]:
    absent = [name for name in options.context_fields if name not in run.fields]
    if absent:
        raise ImportProblem(
            f"{run.place}: the context field {absent[0]!r} is not among the record's fields ({named(run.fields)}): "
            "remove it from the context fields, or add it to the record (null is fine)"
        )
    return {name: run.fields[name] for name in options.context_fields}


def _start(run: RecordedRun, options: ChatImportOptions) -> tuple[datetime, str | None]:
    """Return the time of the run's first message, and the record's field that it comes from, if any."""
    name = next((name for name in _TIME_FIELDS if run.fields.get(name) is not None), None)
    value = run.fields[name] if name else None
    try:
        match value:
            case None:
                return in_utc(options.start) + run.number * _RUN_STEP, None
            case int() | float():
                return since_1970(value), name
            case str():
                return in_utc(iso_time(value)), name
            case _:
                raise ValueError("it is neither a number nor a text")
    except (ValueError, OverflowError, OSError) as error:
        raise ImportProblem(
            f"{run.place}: invalid {name or 'start'!r} {value or str(options.start)!r} ({error}): expected seconds "
            "since 1970 or an ISO 8601 time such as 2024-05-01T10:00:00Z"
        ) from error


def _is_key(value: JsonValue) -> bool:
    return (isinstance(value, str) and value != "") or (isinstance(value, int) and not isinstance(value, bool))


def _scalars(fields: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: value for name, value in fields.items() if not isinstance(value, dict | list)}

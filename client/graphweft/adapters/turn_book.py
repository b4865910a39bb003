"""Tracks open runs, turns and tool calls, and decides which events to emit. No clock, no threads, no I/O.

Runtimes call back more often than agents take turns (once for each model call), or not at all (hand-offs, failures,
streams that are not read to the end). ``TurnBook`` accepts callbacks in any order and returns the events: one start and
one completion for each turn, and one completion, within its turn, for each tool call that started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypedDict

from typing_extensions import Self

from graphweft.adapters.events import (
    MODEL_CALL_COMPLETE,
    PHASE_COMPLETE,
    TOOL_CALL_COMPLETE,
    TOOL_CALL_START,
    TURN_COMPLETE,
    TURN_START,
    WORKFLOW_COMPLETE,
    WORKFLOW_ERROR,
    WORKFLOW_START,
)
from graphweft.adapters.values import MAX_CHARACTERS, milliseconds
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.events import (
    AgentTurnComplete,
    AgentTurnStart,
    ModelCallComplete,
    Outcome,
    ToolCallComplete,
    ToolCallStart,
    WorkflowComplete,
    WorkflowError,
    WorkflowPhaseComplete,
    data_of,
    known,
)

_TOOL_PATIENCE: Final = 12
"""A turn with an open tool call is abandoned after this many times ``idle_s``: tools may wait for people."""
_MAX_CALLS: Final = 1_000
"""Tool calls remembered for each chat, separately for those outside of turns and for those that ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """The ids of one chat; ``app_id`` and ``chat_id`` identify it."""

    app_id: str
    chat_id: str
    workflow: str | None = None
    user_id: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The identity of the chat."""
        return (self.app_id, self.chat_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackMoment:
    """Where and when a callback happens.

    ``context`` holds the context variables. ``now_s`` is in seconds of one monotonic clock and never decreases.
    """

    chat: Chat
    context: Mapping[str, Any]
    now_s: float

    def event(self, type: str, data: dict[str, Any]) -> EmittedEvent:
        """Return an event of this chat, with these context variables."""
        return EmittedEvent(type=type, chat=self.chat, data=data, context=self.context)


class TurnFields(TypedDict, total=False):
    """The fields that identify the turn of an event, if there is one."""

    agent_name: str
    turn_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFields:
    """The error fields of an event."""

    error_type: str
    error_message: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the failure of an exception, whose own code may fail."""
        try:
            message = str(error)[:MAX_CHARACTERS].encode(errors="replace").decode()
        except Exception:  # noqa: BLE001 - an exception's own code
            message = None
        return cls(error_type=type(error).__name__, error_message=message)

    def data(self, turn: TurnFields | None = None) -> dict[str, Any]:
        """Return the data of ``workflow.error``."""
        message = known(self.error_message)
        return data_of(WorkflowError, error_type=self.error_type, error_message=message, **(turn or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedEvent:
    """An event to publish. ``data`` excludes ``context``. Without ``id`` and ``time`` it gets a new id and now."""

    type: str
    chat: Chat
    data: dict[str, Any]
    context: Mapping[str, Any]
    id: str | None = None
    time: datetime | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class AgentTurn:
    """An agent's open turn. The caller sets ``context_id``."""

    agent: str
    run: str
    number: int
    chat: Chat
    last: CallbackMoment
    """The latest callback of the turn."""
    started_s: float
    model_calls: int = 0
    calls: dict[str, _Call] = field(default_factory=dict[str, "_Call"])
    context_id: str | None = None

    @property
    def fields(self) -> TurnFields:
        """The fields that identify the turn in an event's data."""
        return {"agent_name": self.agent, "turn_number": self.number}

    def event(self, type: str, data: dict[str, Any]) -> EmittedEvent:
        """Return an event of the turn, with the latest context variables."""
        return EmittedEvent(type=type, chat=self.chat, data=data, context=self.last.context)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    tool: str
    started_s: float


@dataclass(slots=True, eq=False)
class _ChatState:
    turns: dict[tuple[str, str], AgentTurn] = field(default_factory=dict[tuple[str, str], AgentTurn])
    last_turn: int = 0
    phase: str | None = None
    """The agent at work, in chats where agents work one at a time."""
    run_started_s: float | None = None
    failures: set[ErrorFields] = field(default_factory=set[ErrorFields])
    """Failures of turns emitted since the run began: the runtime may report them again for the run."""
    calls: dict[str, _Call] = field(default_factory=lambda: BoundedDict(_MAX_CALLS))
    """Open tool calls outside of turns."""
    ended: dict[str, None] = field(default_factory=lambda: BoundedDict(_MAX_CALLS))
    """Tool calls whose completion was emitted."""


class TurnBook:
    """Tracks all chats of one adapter. Not thread-safe.

    A turn without callbacks for ``idle_s`` seconds is abandoned. Beyond ``max_chats`` chats, the one idle longest is
    forgotten and its open turns are closed. ``Adapter`` has these methods too: there a call takes context variables in
    place of ``at``.
    """

    def __init__(self, *, idle_s: float = 300.0, max_chats: int = 10_000) -> None:
        self._idle_s = idle_s
        self._max_chats = max_chats
        self._chats: dict[tuple[str, str], _ChatState] = {}
        self.strays = 0
        """Ends of turns and tool calls that were not open; no event is emitted for them."""

    # Runs

    def start_run(self, at: CallbackMoment) -> list[EmittedEvent]:
        """Start a run of the workflow. If a run is open it continues, and no event is emitted."""
        state, events = self._state(at)
        if state.run_started_s is None:
            state.run_started_s = at.now_s
            state.failures.clear()
            state.phase = None
            events.append(at.event(WORKFLOW_START, {}))
        return events

    def end_run(self, at: CallbackMoment, *, outputs: Any = None) -> list[EmittedEvent]:
        """End the run successfully. Open turns are closed as abandoned, even without an open run."""
        state, events = self._state(at)
        events += self._close_turns(state, at.now_s)
        if state.run_started_s is None:
            self.strays += 1
            return events
        duration_s = round(at.now_s - state.run_started_s, 6)
        data = data_of(WorkflowComplete, status="COMPLETE", duration=duration_s, outputs=outputs)
        state.run_started_s = None
        return [*events, at.event(WORKFLOW_COMPLETE, data)]

    def fail_run(self, at: CallbackMoment, failure: ErrorFields) -> list[EmittedEvent]:
        """Fail the run and its open turns. A failure that a turn of the run emitted is not emitted again."""
        state, events = self._state(at)
        for turn in list(state.turns.values()):
            events += self._close(state, turn, at.now_s, "failed", failure=failure)
        state.run_started_s = None
        if failure in state.failures:
            state.failures.clear()
            return events
        return [*events, at.event(WORKFLOW_ERROR, failure.data())]

    # Turns

    def start_turn(
        self, at: CallbackMoment, agent: str, *, run: str = "", fresh: bool = False, sequential: bool = False
    ) -> list[EmittedEvent]:
        """Start the agent's turn. If its turn is open this is one more step of it, and no event is emitted.

        ``run`` separates turns that the same agent takes at the same time. ``fresh``: a new turn begins, so an open one
        was abandoned. ``sequential``: agents of this chat work one at a time, so another agent's open turn was handed
        over, unless it waits for a tool: then this agent works for that tool.
        """
        state, events = self._state(at)
        open_turn = state.turns.get((agent, run))
        if open_turn is not None and not fresh:
            open_turn.last = at
            return events
        if open_turn is not None:
            events += self._close(state, open_turn, at.now_s, "abandoned")
        if sequential:
            events += self._take_over(state, at, agent)
        state.last_turn += 1
        turn = AgentTurn(agent=agent, run=run, number=state.last_turn, chat=at.chat, last=at, started_s=at.now_s)
        state.turns[agent, run] = turn
        data = data_of(AgentTurnStart, agent_name=agent, turn_number=turn.number)
        return [*events, at.event(TURN_START, data)]

    def end_turn(
        self,
        at: CallbackMoment,
        agent: str,
        *,
        run: str = "",
        response: Any = None,
        failure: ErrorFields | None = None,
        reported: bool = False,
    ) -> list[EmittedEvent]:
        """End the agent's turn, as failed if there is a ``failure``. If no turn is open only the failure is emitted.

        ``reported``: an agent that worked inside the turn had the same failure, so it is not emitted again.
        """
        state, events = self._state(at)
        turn = state.turns.get((agent, run))
        fields: TurnFields = {"agent_name": agent}
        if turn is None:
            self.strays += 1
        else:
            fields = self._touch(turn, at)
            outcome: Outcome = "completed" if failure is None else "failed"
            events += self._close(state, turn, at.now_s, outcome, response=response, failure=failure)
        if failure is not None and not reported:
            if state.run_started_s is not None:
                state.failures.add(failure)
            events.append(at.event(WORKFLOW_ERROR, failure.data(fields)))
        return events

    def hand_over(
        self, at: CallbackMoment, agent: str, to: str, *, run: str = "", response: Any = None
    ) -> list[EmittedEvent]:
        """Hand the chat over to the agent ``to``: the turn and the phase of ``agent`` end successfully.

        ``response`` is what the agent has said before.
        """
        state, events = self._state(at)
        turn = state.turns.get((agent, run))
        if turn is not None:
            turn.last = at
            events += self._close(state, turn, at.now_s, "handed_off", response=response, handed_to=to)
        state.phase = to
        data = data_of(WorkflowPhaseComplete, phase_name=agent, next_phase=to)
        return [*events, at.event(PHASE_COMPLETE, data)]

    def abandon_turn(self, at: CallbackMoment, agent: str, *, run: str = "") -> list[EmittedEvent]:
        """End the agent's turn as abandoned, for example when the reader of a stream closes it."""
        state, events = self._state(at)
        turn = state.turns.get((agent, run))
        if turn is None:
            self.strays += 1
            return events
        turn.last = at
        return [*events, *self._close(state, turn, at.now_s, "abandoned")]

    def turn(self, chat: Chat, agent: str, run: str = "") -> AgentTurn | None:
        """Return the agent's open turn."""
        state = self._chats.get(chat.key)
        return None if state is None else state.turns.get((agent, run))

    # Within a turn

    def start_tool(
        self,
        at: CallbackMoment,
        tool: str,
        call_id: str,
        *,
        arguments: Any = None,
        agent: str | None = None,
        run: str = "",
    ) -> list[EmittedEvent]:
        """Start a tool call of ``agent`` or, without one, of the open turn with the latest callback.

        ``call_id`` is unique within the agent's turn or, without an agent, within the chat. A call that is open
        already emits no event.
        """
        state, events = self._state(at)
        turn = self._turn_of(state, agent, run)
        caller = turn if agent is not None else self._calling(state, call_id)
        if call_id in (state.calls if caller is None else caller.calls):
            return events
        state.ended.pop(call_id, None)  # an id that comes back is a new call
        (state.calls if turn is None else turn.calls)[call_id] = _Call(tool=tool, started_s=at.now_s)
        fields = self._touch(turn, at)
        data = data_of(ToolCallStart, tool_name=tool, call_id=call_id, arguments=arguments, **fields)
        return [*events, at.event(TOOL_CALL_START, data)]

    def end_tool(
        self,
        at: CallbackMoment,
        tool: str,
        call_id: str,
        *,
        result: Any = None,
        success: bool | None = None,
        error: str | None = None,
        agent: str | None = None,
        run: str = "",
    ) -> list[EmittedEvent]:
        """End a tool call; ``agent`` and ``run`` are those of its start.

        A second end of a call, or one after the end of its turn, emits no event. The end of a call that never started
        belongs to the open turn with the latest callback.
        """
        state, events = self._state(at)
        turn = self._calling(state, call_id) if agent is None else state.turns.get((agent, run))
        call = (state.calls if turn is None else turn.calls).pop(call_id, None)
        if call is None and call_id in state.ended:
            self.strays += 1
            return events
        state.ended[call_id] = None
        fields = self._touch(self._turn_of(state, agent, run) if call is None else turn, at)
        data = data_of(
            ToolCallComplete,
            tool_name=tool,
            call_id=call_id,
            result=result,
            success=success,
            **fields,
            error=known(error),
            duration_ms=known(None if call is None else milliseconds(at.now_s - call.started_s)),
        )
        return [*events, at.event(TOOL_CALL_COMPLETE, data)]

    def model_call(
        self, at: CallbackMoment, agent: str, *, run: str = "", success: bool, about: Mapping[str, Any] | None = None
    ) -> list[EmittedEvent]:
        """Record a model call that has ended; ``about`` holds further fields of the event."""
        state, events = self._state(at)
        turn = state.turns.get((agent, run))
        data = {**data_of(ModelCallComplete, agent_name=agent, success=success), **(about or {})}
        if turn is not None:
            turn.model_calls += 1
            data |= data_of(ModelCallComplete, **self._touch(turn, at), call_number=turn.model_calls)
        return [*events, at.event(MODEL_CALL_COMPLETE, data)]

    def emit(
        self, at: CallbackMoment, type: str, data: Mapping[str, Any], *, agent: str | None = None, run: str = ""
    ) -> list[EmittedEvent]:
        """Emit an event of the runtime's own, as part of the agent's turn if one is open."""
        state, events = self._state(at)
        fields: TurnFields = {} if agent is None else {"agent_name": agent}
        fields |= self._touch(None if agent is None else state.turns.get((agent, run)), at)
        return [*events, at.event(type, {**fields, **data})]

    # Time

    def tick(self, now_s: float) -> list[EmittedEvent]:
        """Close abandoned turns; call it every few seconds."""
        events: list[EmittedEvent] = []
        for state in self._chats.values():
            for turn in list(state.turns.values()):
                patience = _TOOL_PATIENCE if turn.calls else 1
                if now_s - turn.last.now_s >= self._idle_s * patience:
                    events += self._close(state, turn, now_s, "abandoned")
        return events

    def close(self, now_s: float) -> list[EmittedEvent]:
        """Close all open turns as abandoned."""
        return [event for state in self._chats.values() for event in self._close_turns(state, now_s)]

    def open_turns(self) -> Iterator[AgentTurn]:
        """Yield the open turns of all chats."""
        for state in self._chats.values():
            yield from state.turns.values()

    def _state(self, at: CallbackMoment) -> tuple[_ChatState, list[EmittedEvent]]:
        """Return the chat's state, and the events of a chat that is forgotten for it."""
        state = self._chats.pop(at.chat.key, None) or _ChatState()
        self._chats[at.chat.key] = state  # the chat with the latest callback comes last
        if len(self._chats) <= self._max_chats:
            return state, []
        return state, self._close_turns(self._chats.pop(next(iter(self._chats))), at.now_s)

    def _close_turns(self, state: _ChatState, now_s: float) -> list[EmittedEvent]:
        turns = list(state.turns.values())
        return [event for turn in turns for event in self._close(state, turn, now_s, "abandoned")]

    def _close(
        self,
        state: _ChatState,
        turn: AgentTurn,
        now_s: float,
        outcome: Outcome,
        *,
        response: Any = None,
        failure: ErrorFields | None = None,
        handed_to: str | None = None,
    ) -> list[EmittedEvent]:
        del state.turns[turn.agent, turn.run]
        events: list[EmittedEvent] = []
        for call_id, call in turn.calls.items():
            state.ended[call_id] = None
            data = data_of(
                ToolCallComplete,
                tool_name=call.tool,
                call_id=call_id,
                result=None,
                success=None,
                **turn.fields,
                duration_ms=milliseconds(now_s - call.started_s),
            )
            events.append(turn.event(TOOL_CALL_COMPLETE, data))
        data = data_of(
            AgentTurnComplete,
            agent_name=turn.agent,
            turn_number=turn.number,
            success=outcome in {"completed", "handed_off"},
            outcome=outcome,
            response=response,
            duration_ms=milliseconds(now_s - turn.started_s),
            context_id=known(turn.context_id),
            handed_to=known(handed_to),
            error_type=known(None if failure is None else failure.error_type),
            error_message=known(None if failure is None else failure.error_message),
        )
        return [*events, turn.event(TURN_COMPLETE, data)]

    def _take_over(self, state: _ChatState, at: CallbackMoment, agent: str) -> list[EmittedEvent]:
        events: list[EmittedEvent] = []
        others = [turn for turn in state.turns.values() if turn.agent != agent]
        if any(turn.calls for turn in others):  # this agent works for one of their tools
            return events
        for turn in others:
            events += self._close(state, turn, at.now_s, "handed_off", handed_to=agent)
        if state.phase is not None and state.phase != agent:
            data = data_of(WorkflowPhaseComplete, phase_name=state.phase, next_phase=agent)
            events.append(at.event(PHASE_COMPLETE, data))
        state.phase = agent
        return events

    def _calling(self, state: _ChatState, call_id: str) -> AgentTurn | None:
        return next((turn for turn in state.turns.values() if call_id in turn.calls), None)

    def _turn_of(self, state: _ChatState, agent: str | None, run: str) -> AgentTurn | None:
        if agent is not None:
            return state.turns.get((agent, run))
        return max(state.turns.values(), key=lambda turn: turn.last.now_s, default=None)

    def _touch(self, turn: AgentTurn | None, at: CallbackMoment) -> TurnFields:
        if turn is None:
            return {}
        turn.last = at
        return turn.fields

"""Which runs, turns and tool calls are open, and what is to be told of them. No clock, no threads, no I/O.

Runtimes call back more often than agents take turns (once for each model call), or not at all (hand-offs, failures,
streams that nobody reads to the end). ``TurnBook`` takes whatever callbacks there are, in any order, and returns the
events: for each turn one start and then one completion, for each tool call that started one completion within its turn.
Times are seconds of one monotonic clock, given by the caller and never going back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from graphweft.adapters.values import milliseconds
from graphweft.adapters.vocabulary import (
    MODEL_CALL_COMPLETE,
    PHASE_COMPLETE,
    TOOL_CALL_COMPLETE,
    TOOL_CALL_START,
    TURN_COMPLETE,
    TURN_START,
    WORKFLOW_COMPLETE,
    WORKFLOW_ERROR,
    WORKFLOW_START,
    Outcome,
)

__all__ = ("Chat", "Failure", "Told", "Turn", "TurnBook")

_TOOL_PATIENCE: Final = 12
"""A turn that waits for a tool is given so many times ``idle_s``: tools may wait for people."""
_CALLS: Final = 1_000
"""Tool calls of a chat, open outside of turns or over, that are remembered; the oldest go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """The ids of one conversation; ``app_id`` and ``chat_id`` are its identity."""

    app_id: str
    chat_id: str
    workflow: str | None = None
    user_id: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What tells this chat from others."""
        return (self.app_id, self.chat_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong, as events say it."""

    error_type: str
    error_message: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of an event's data."""
        message = {} if self.error_message is None else {"error_message": self.error_message}
        return {"error_type": self.error_type, **message}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One event to be published; ``data`` is without ``context``. By default its id is a new one, and its time now."""

    type: str
    chat: Chat
    data: dict[str, Any]
    context: Mapping[str, Any]
    id: str | None = None
    time: datetime | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """An agent's open turn. ``context_id`` is for the caller to set."""

    agent: str
    run: str
    number: int
    chat: Chat
    context: Mapping[str, Any]
    started_s: float
    touched_s: float
    model_calls: int = 0
    calls: dict[str, _Call] = field(default_factory=dict[str, "_Call"])
    context_id: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return what events of the turn say of it."""
        return {"agent_name": self.agent, "turn_number": self.number}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    tool: str
    started_s: float


@dataclass(slots=True, eq=False)
class _ChatState:
    turns: dict[tuple[str, str], Turn] = field(default_factory=dict[tuple[str, str], Turn])
    last_turn: int = 0
    phase: str | None = None
    """The agent that is at work, where one works at a time."""
    run_started_s: float | None = None
    failures: set[Failure] = field(default_factory=set[Failure])
    """Told of turns since the run began: the runtime may report them of the run once more."""
    calls: dict[str, _Call] = field(default_factory=dict[str, _Call])
    """Tool calls outside of all turns."""
    over: dict[str, None] = field(default_factory=dict[str, None])
    """Tool calls whose end was told; what still comes of them is known already."""


class TurnBook:
    """Keeps the books of all chats of one adapter. Not safe to share between threads.

    ``idle_s``: a turn without any callback for so long was abandoned. ``most_chats``: beyond so many chats the one that
    was quiet longest is forgotten, and its open turns are closed.
    """

    def __init__(self, *, idle_s: float = 300.0, most_chats: int = 10_000) -> None:
        self._idle_s = idle_s
        self._most_chats = most_chats
        self._chats: dict[tuple[str, str], _ChatState] = {}
        self.strays = 0
        """Ends of turns and tools that no start had told of, or that were told twice; nothing is published for them."""

    # Runs

    def start_run(self, chat: Chat, context: Mapping[str, Any], now_s: float) -> list[Told]:
        """A run of the workflow begins. One that is open already goes on, and nothing is told."""
        state, told = self._state(chat, now_s)
        if state.run_started_s is None:
            state.run_started_s = now_s
            state.failures.clear()
            state.phase = None
            told.append(Told(type=WORKFLOW_START, chat=chat, data={}, context=context))
        return told

    def end_run(
        self, chat: Chat, context: Mapping[str, Any], now_s: float, *, status: str = "COMPLETE", outputs: Any = None
    ) -> list[Told]:
        """The run has ended well. Without an open run nothing is told of it, but open turns are closed."""
        state, told = self._state(chat, now_s)
        told += self._close_turns(state, now_s)
        if state.run_started_s is None:
            self.strays += 1
            return told
        data = {"status": status, "duration": round(now_s - state.run_started_s, 6), "outputs": outputs}
        state.run_started_s = None
        return [*told, Told(type=WORKFLOW_COMPLETE, chat=chat, data=data, context=context)]

    def fail_run(self, chat: Chat, context: Mapping[str, Any], now_s: float, failure: Failure) -> list[Told]:
        """The run has failed: its open turns too, and the failure is told once, whoever reports it how often."""
        state, told = self._state(chat, now_s)
        for turn in list(state.turns.values()):
            told += self._close(state, turn, now_s, "failed", failure=failure)
        state.run_started_s = None
        if failure in state.failures:
            state.failures.clear()
            return told
        return [*told, Told(type=WORKFLOW_ERROR, chat=chat, data=failure.fields(), context=context)]

    # Turns

    def start_turn(
        self,
        chat: Chat,
        agent: str,
        context: Mapping[str, Any],
        now_s: float,
        *,
        run: str = "",
        fresh: bool = False,
        sequential: bool = False,
    ) -> list[Told]:
        """The agent is about to work. While its turn is open this is one more step of it, and nothing is told.

        ``run`` tells turns apart that the same agent takes at the same time. ``fresh``: the caller knows that a new
        turn begins, so one that is still open was abandoned. ``sequential``: agents of this chat work one at a time,
        so another agent's open turn has been handed over, unless it waits for a tool: then this one works for it.
        """
        state, told = self._state(chat, now_s)
        open_turn = state.turns.get((agent, run))
        if open_turn is not None and not fresh:
            open_turn.touched_s, open_turn.context = now_s, context
            return told
        if open_turn is not None:
            told += self._close(state, open_turn, now_s, "abandoned")
        if sequential:
            told += self._take_over(state, chat, agent, context, now_s)
        state.last_turn += 1
        turn = Turn(
            agent=agent, run=run, number=state.last_turn, chat=chat, context=context, started_s=now_s, touched_s=now_s
        )
        state.turns[agent, run] = turn
        return [*told, Told(type=TURN_START, chat=chat, data=turn.fields(), context=context)]

    def end_turn(
        self,
        chat: Chat,
        agent: str,
        context: Mapping[str, Any],
        now_s: float,
        *,
        run: str = "",
        response: Any = None,
        failure: Failure | None = None,
    ) -> list[Told]:
        """The agent has answered, or failed. Without an open turn nothing is told but the failure."""
        state, told = self._state(chat, now_s)
        turn = state.turns.get((agent, run))
        about: dict[str, Any] = {"agent_name": agent}
        if turn is None:
            self.strays += 1
        else:
            about, turn.context = turn.fields(), context
            outcome: Outcome = "completed" if failure is None else "failed"
            told += self._close(state, turn, now_s, outcome, response=response, failure=failure)
        if failure is not None:
            if state.run_started_s is not None:
                state.failures.add(failure)
            told.append(Told(type=WORKFLOW_ERROR, chat=chat, data={**failure.fields(), **about}, context=context))
        return told

    def hand_over(
        self, chat: Chat, agent: str, to: str, context: Mapping[str, Any], now_s: float, *, run: str = ""
    ) -> list[Told]:
        """The agent hands the chat over: its turn ends well, and so does its phase."""
        state, told = self._state(chat, now_s)
        turn = state.turns.get((agent, run))
        if turn is not None:
            turn.context = context
            told += self._close(state, turn, now_s, "handed_off", handed_to=to)
        state.phase = to
        data = {"phase_name": agent, "next_phase": to}
        return [*told, Told(type=PHASE_COMPLETE, chat=chat, data=data, context=context)]

    def abandon_turn(
        self, chat: Chat, agent: str, context: Mapping[str, Any], now_s: float, *, run: str = ""
    ) -> list[Told]:
        """Nobody waits for the agent's answer any more; without an open turn nothing is told."""
        state, told = self._state(chat, now_s)
        turn = state.turns.get((agent, run))
        if turn is None:
            self.strays += 1
            return told
        turn.context = context
        return [*told, *self._close(state, turn, now_s, "abandoned")]

    def turn(self, chat: Chat, agent: str, run: str = "") -> Turn | None:
        """Return the agent's open turn."""
        state = self._chats.get(chat.key)
        return None if state is None else state.turns.get((agent, run))

    # Within a turn

    def start_tool(
        self,
        chat: Chat,
        tool: str,
        call_id: str,
        context: Mapping[str, Any],
        now_s: float,
        *,
        arguments: Any = None,
        agent: str | None = None,
        run: str = "",
    ) -> list[Told]:
        """A tool is about to be called, by ``agent`` or, where the runtime does not say, by the latest open turn.

        Ids tell calls apart within the agent's turn, or, where no agent is named, within the chat.
        """
        state, told = self._state(chat, now_s)
        turn = self._turn_of(state, agent, run)
        caller = turn if agent is not None else self._calling(state, call_id)
        if call_id in (state.calls if caller is None else caller.calls):
            return told
        state.over.pop(call_id, None)  # an id that comes back is a new call
        (state.calls if turn is None else turn.calls)[call_id] = _Call(tool=tool, started_s=now_s)
        if turn is None:
            _bound(state.calls)
        about = self._touch(turn, context, now_s)
        data = {"tool_name": tool, "call_id": call_id, "arguments": arguments, **about}
        return [*told, Told(type=TOOL_CALL_START, chat=chat, data=data, context=context)]

    def end_tool(
        self,
        chat: Chat,
        tool: str,
        call_id: str,
        context: Mapping[str, Any],
        now_s: float,
        *,
        result: Any = None,
        success: bool | None = None,
        error: str | None = None,
        agent: str | None = None,
        run: str = "",
    ) -> list[Told]:
        """The tool has returned or failed. A second end of a call, or one after its turn's, tells nothing; one without
        a start is told of the latest open turn. ``agent`` and ``run`` are those of its start.
        """
        state, told = self._state(chat, now_s)
        turn = self._calling(state, call_id) if agent is None else state.turns.get((agent, run))
        call = (state.calls if turn is None else turn.calls).pop(call_id, None)
        if call is None and call_id in state.over:
            self.strays += 1
            return told
        state.over[call_id] = None
        _bound(state.over)
        about = self._touch(self._turn_of(state, agent, run) if call is None else turn, context, now_s)
        data = {"tool_name": tool, "call_id": call_id, "result": result, "success": success, **about}
        data |= {} if error is None else {"error": error}
        data |= {} if call is None else {"duration_ms": milliseconds(now_s - call.started_s)}
        return [*told, Told(type=TOOL_CALL_COMPLETE, chat=chat, data=data, context=context)]

    def model_call(
        self,
        chat: Chat,
        agent: str,
        context: Mapping[str, Any],
        now_s: float,
        *,
        run: str = "",
        success: bool,
        about: Mapping[str, Any] | None = None,
    ) -> list[Told]:
        """A model has answered the agent, or failed to; ``about`` has further fields of the event."""
        state, told = self._state(chat, now_s)
        turn = state.turns.get((agent, run))
        data: dict[str, Any] = {"agent_name": agent, "success": success, **(about or {})}
        if turn is not None:
            turn.model_calls += 1
            data |= {**self._touch(turn, context, now_s), "call_number": turn.model_calls}
        return [*told, Told(type=MODEL_CALL_COMPLETE, chat=chat, data=data, context=context)]

    def tell(
        self,
        chat: Chat,
        type: str,
        context: Mapping[str, Any],
        now_s: float,
        *,
        data: Mapping[str, Any],
        agent: str | None = None,
        run: str = "",
    ) -> list[Told]:
        """Something of the runtime's own happened, in the agent's turn if one is open."""
        state, told = self._state(chat, now_s)
        about = {} if agent is None else {"agent_name": agent}
        turn = None if agent is None else state.turns.get((agent, run))
        about |= self._touch(turn, context, now_s)
        return [*told, Told(type=type, chat=chat, data={**about, **data}, context=context)]

    # Time

    def tick(self, now_s: float) -> list[Told]:
        """Close the turns that were abandoned; to be called now and then."""
        told: list[Told] = []
        for state in self._chats.values():
            for turn in list(state.turns.values()):
                patience = _TOOL_PATIENCE if turn.calls else 1
                if now_s - turn.touched_s >= self._idle_s * patience:
                    told += self._close(state, turn, now_s, "abandoned")
        return told

    def close(self, now_s: float) -> list[Told]:
        """Close all open turns: nothing more will come of them."""
        return [told for state in self._chats.values() for told in self._close_turns(state, now_s)]

    def open_turns(self) -> Iterator[Turn]:
        """Yield the turns that are open."""
        for state in self._chats.values():
            yield from state.turns.values()

    def _state(self, chat: Chat, now_s: float) -> tuple[_ChatState, list[Told]]:
        """Return the chat's state, and what is told of chats that had to go for it."""
        state = self._chats.pop(chat.key, None) or _ChatState()
        self._chats[chat.key] = state  # the last one is the one that was quiet shortest
        if len(self._chats) <= self._most_chats:
            return state, []
        return state, self._close_turns(self._chats.pop(next(iter(self._chats))), now_s)

    def _close_turns(self, state: _ChatState, now_s: float) -> list[Told]:
        return [
            told for turn in list(state.turns.values()) for told in self._close(state, turn, now_s, "abandoned")
        ]  # fmt: skip

    def _close(
        self,
        state: _ChatState,
        turn: Turn,
        now_s: float,
        outcome: Outcome,
        *,
        response: Any = None,
        failure: Failure | None = None,
        handed_to: str | None = None,
    ) -> list[Told]:
        del state.turns[turn.agent, turn.run]
        told: list[Told] = []
        for call_id, call in turn.calls.items():
            state.over[call_id] = None
            data = {"tool_name": call.tool, "call_id": call_id, "result": None, "success": None, **turn.fields()}
            data["duration_ms"] = milliseconds(now_s - call.started_s)
            told.append(Told(type=TOOL_CALL_COMPLETE, chat=turn.chat, data=data, context=turn.context))
        _bound(state.over)
        optional = {"context_id": turn.context_id, "handed_to": handed_to}
        data = {
            **turn.fields(),
            "success": outcome in {"completed", "handed_off"},
            "outcome": outcome,
            "response": response,
            "duration_ms": milliseconds(now_s - turn.started_s),
            **{name: value for name, value in optional.items() if value is not None},
            **({} if failure is None else failure.fields()),
        }
        return [*told, Told(type=TURN_COMPLETE, chat=turn.chat, data=data, context=turn.context)]

    def _take_over(
        self, state: _ChatState, chat: Chat, agent: str, context: Mapping[str, Any], now_s: float
    ) -> list[Told]:
        told: list[Told] = []
        others = [turn for turn in state.turns.values() if turn.agent != agent]
        if any(turn.calls for turn in others):  # a tool of theirs lets this agent work
            return told
        for turn in others:
            told += self._close(state, turn, now_s, "handed_off", handed_to=agent)
        if state.phase is not None and state.phase != agent:
            data = {"phase_name": state.phase, "next_phase": agent}
            told.append(Told(type=PHASE_COMPLETE, chat=chat, data=data, context=context))
        state.phase = agent
        return told

    def _calling(self, state: _ChatState, call_id: str) -> Turn | None:
        return next((turn for turn in state.turns.values() if call_id in turn.calls), None)

    def _turn_of(self, state: _ChatState, agent: str | None, run: str) -> Turn | None:
        if agent is not None:
            return state.turns.get((agent, run))
        return max(state.turns.values(), key=lambda turn: turn.touched_s, default=None)

    def _touch(self, turn: Turn | None, context: Mapping[str, Any], now_s: float) -> dict[str, Any]:
        if turn is None:
            return {}
        turn.touched_s, turn.context = now_s, context
        return turn.fields()


def _bound(kept: dict[str, Any]) -> None:
    while len(kept) > _CALLS:
        del kept[next(iter(kept))]

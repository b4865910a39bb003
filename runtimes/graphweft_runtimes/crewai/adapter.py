"""CrewAI (``crewai``): events of crews, turns, models and tools, and context in the messages of each model call.

Rejected: handlers of CrewAI's event bus, which run in a pool of threads and see events in any order, and hooks around
calls of models and tools alone, which see no failures and no calls that end with a request for tools. A sink of the
stream context sees each event where and when it is emitted. A hook of the block's scope changes the messages.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, cast
from uuid import uuid4

from graphweft.adapters.context_place import (
    DEFAULT_PLACE,
    ContextPlace,
    below_message,
    change,
    is_refusal,
    placed,
    undone,
    user_message,
)
from graphweft.adapters.core import Adapter
from graphweft.adapters.values import IDS, parsed, variables_of, with_ids
from graphweft_runtimes.chat_runs import ChatRuns
from graphweft_runtimes.runtime_adapter import ModelCall, RuntimeAdapter
from graphweft_runtimes.versions import require

_SOURCE: Final = "/graphweft/crewai"


@dataclass(slots=True, eq=False, kw_only=True)
class _Turn:
    """An agent's open turn: its work on one task."""

    id: str
    """What identifies it in its run."""
    agent: str
    run: str
    """Separates it from other turns of the agent."""
    call: ModelCall = field(default_factory=ModelCall)
    calls: dict[str, str] = field(default_factory=dict[str, str])
    """The names of the tools of open calls, by the id of the call."""
    undo: Callable[[], None] | None = None
    """Takes the context out of the messages again."""

    def clean(self) -> None:
        """Take the context out of the messages, if it is there."""
        undo, self.undo = self.undo, None
        if undo is not None:
            undo()


@dataclass(slots=True, eq=False, kw_only=True)
class _Run:
    """A block of ``workflow``."""

    owner: CrewAIAdapter
    key: tuple[str, str]
    variables: dict[str, Any]
    around: _Run | None
    """The block around it, if both are of the same chat."""
    turns: dict[str, _Turn] = field(default_factory=dict[str, _Turn])
    latest: str | None = None
    """The agent that works, or has worked, without another one around it."""
    outputs: Any = None
    failure: BaseException | None = None
    """The latest error of a turn."""
    refusals: dict[str, BaseException] = field(default_factory=dict[str, BaseException])
    """By what identifies a turn: the error of a provider that refused its context. CrewAI then tries the task again."""
    over: bool = False


_RUN: ContextVar[_Run | None] = ContextVar("graphweft_crewai_run", default=None)


class CrewAIAdapter(RuntimeAdapter):
    """Emits events of crews and agents, and gives agents context. ``settings`` are those of ``Adapter``.

    ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` default to the variables of ``workflow``. Raises
    ``InvalidSettings`` without a supported version of ``crewai``.
    """

    def __init__(
        self, adapter: Adapter | None = None, *, context_place: ContextPlace = DEFAULT_PLACE, **settings: Any
    ) -> None:
        require("crewai", extra="crewai", lowest="1.15.30", below="1.16", part="events.stream_context")
        self._sinks: Any = importlib.import_module("crewai.events.stream_context")
        self._hooks: Any = importlib.import_module("crewai.hooks.dispatch")
        super().__init__(adapter, _SOURCE, settings, context_place=context_place)
        self._lock = threading.Lock()
        self._runs = ChatRuns(self.core)
        self._steps: dict[str, Callable[[_Run, Any], None]] = {
            "agent_execution_started": self._turn_starts,
            "agent_execution_completed": self._turn_ends,
            "agent_execution_error": self._turn_fails,
            "lite_agent_execution_started": self._turn_starts,
            "lite_agent_execution_completed": self._turn_ends,
            "lite_agent_execution_error": self._turn_fails,
            "llm_call_started": self._model_starts,
            "llm_call_completed": self._model_ends,
            "llm_call_failed": self._model_fails,
            "tool_usage_started": self._tool_starts,
            "tool_usage_finished": self._tool_ends,
            "tool_usage_error": self._tool_ends,
            "crew_kickoff_completed": self._crew_ends,
        }

    @contextlib.contextmanager
    def workflow(self, variables: Any = None, /, **more: Any) -> Generator[None]:
        """Report what crews and agents do in the block, and give the agents context. It is one run of a workflow.

        ``variables``, a mapping, a dataclass or a model, and ``more`` are the context variables. A block inside a tool
        has the ids of the block around it. The block takes part in the context of its thread or task: use one for each
        user who is served at the same time.
        """
        run = self._begin({**variables_of(variables), **more})
        with contextlib.ExitStack() as stack:
            if run is not None:
                self._attach(run, stack)
            try:
                yield
            except BaseException as error:
                self._failed(run, error)
                raise
        self._ended(run)

    def publish(self, type: str, data: Mapping[str, Any], *, agent: str | None = None) -> None:
        """Emit your own event within a block, for example in a tool; ``type`` is a lower-case dotted name."""
        with self.core.guarded("publish"):
            run = self._current()
            if run is None:
                self.core.unplaced("an event was published outside of a block: publish it inside of workflow()")
                return
            turn = next((turn for turn in reversed(run.turns.values()) if turn.agent == agent), None)
            self.core.emit(run.variables, type, data, agent=agent, run="" if turn is None else turn.run)

    # Blocks. These methods read values of the runtime, and never raise into it.

    def _begin(self, given: dict[str, Any]) -> _Run | None:
        run: _Run | None = None
        with self.core.guarded("workflow"):
            around = self._current()
            ids: Mapping[str, Any] = {} if around is None else {n: around.variables.get(n) for n in IDS}
            variables = with_ids(given, {name: value for name, value in ids.items() if value})
            key = self.chat_key(variables)
            inner = around is not None and around.key == key
            run = _Run(owner=self, key=key, variables=variables, around=around if inner else None)
            if run.around is None:
                self._runs.enter(key, variables)
        return run

    def _attach(self, run: _Run, stack: contextlib.ExitStack) -> None:
        """Make the run the current one, and see the events and model calls of this context."""
        with self.core.guarded("workflow"):
            attached = self._current() is not None
            stack.callback(_reset, _RUN.reset, _RUN.set(run))
            if attached:
                return
            stack.callback(_reset, self._sinks.reset_stream_sinks, self._sinks.add_stream_sink(self._seen))
            points = self._hooks.InterceptionPoint
            hooks = {point: self._hooks.get_scoped_hooks(point) for point in points}
            hooks[points.PRE_MODEL_CALL].append(self._before_model)
            stack.enter_context(self._hooks.scoped_hooks(hooks))

    def _ended(self, run: _Run | None) -> None:
        with self.core.guarded("workflow"):
            if run is None or run.over:
                return
            run.over = True
            for turn in run.turns.values():
                turn.clean()
                self.core.abandon_turn(run.variables, turn.agent, run=turn.run)
            if run.around is None:
                self._runs.leave(run.key, run.variables, outputs=run.outputs)

    def _failed(self, run: _Run | None, error: BaseException) -> None:
        with self.core.guarded("workflow"):
            if run is None or run.over:
                return
            run.over = True
            for turn in list(run.turns.values()):
                self._fail(run, turn, error)
            if run.around is None:
                self._runs.leave(run.key, run.variables, failure=run.failure or error)

    def _current(self) -> _Run | None:
        run = _RUN.get()
        return run if run is not None and run.owner is self and not run.over else None

    # Events of CrewAI

    def _seen(self, source: Any, event: Any) -> None:
        """Take an event where it is emitted."""
        with self.core.guarded("event"):
            step = self._steps.get(event.type)
            if step is None:
                return
            run = self._current()
            if run is not None:
                step(run, event)
            elif event.type.endswith("execution_started"):
                self.core.unplaced("an agent works after the end of its block: wait for it, or read its stream, inside")

    def _turn_starts(self, run: _Run, event: Any) -> None:
        name, id = _agent(event)
        with self._lock:
            if id in run.turns:  # another attempt
                return
            before = None if run.turns else run.latest
            run.latest = run.latest if run.turns else name
            turn = run.turns[id] = _Turn(id=id, agent=name, run=uuid4().hex)
        if before is not None and before != name:
            self.core.hand_over(run.variables, before, name)
        self.core.start_turn(run.variables, name, run=turn.run)

    def _turn_ends(self, run: _Run, event: Any) -> None:
        turn = run.turns.pop(_agent(event)[1], None)
        if turn is not None:
            turn.clean()
            run.outputs = event.output
            self.core.end_turn(run.variables, turn.agent, run=turn.run, response=event.output)

    def _turn_fails(self, run: _Run, event: Any) -> None:
        turn = run.turns.pop(_agent(event)[1], None)
        if turn is not None:
            self._fail(run, turn, _error(event))

    def _fail(self, run: _Run, turn: _Turn, error: BaseException) -> None:
        turn.clean()
        run.failure = error
        self.fail_turn(turn.call, run.variables, turn.agent, error, run=turn.run)

    def _model_starts(self, run: _Run, event: Any) -> None:
        turn = _turn_of(run, event)
        if turn is not None:
            turn.call.start()

    def _model_ends(self, run: _Run, event: Any) -> None:
        self._model(run, event, None)

    def _model_fails(self, run: _Run, event: Any) -> None:
        self._model(run, event, _error(event))

    def _model(self, run: _Run, event: Any, error: BaseException | None) -> None:
        turn = _turn_of(run, event)
        if turn is None or not turn.call.is_open:
            return
        self._note_refusal(run, turn, error)
        turn.clean()
        about = {"model": event.model, **_tokens(event)}
        self.end_model_call(turn.call, run.variables, turn.agent, run=turn.run, error=error, **about)

    def _tool_starts(self, run: _Run, event: Any) -> None:
        turn = _turn_of(run, event)
        if turn is not None:
            turn.calls[event.event_id] = event.tool_name
            self.core.start_tool(
                run.variables, event.tool_name, event.event_id, arguments=parsed(event.tool_args),
                agent=turn.agent, run=turn.run,
            )  # fmt: skip

    def _tool_ends(self, run: _Run, event: Any) -> None:
        turn = _turn_of(run, event)
        if turn is None:
            return
        call_id = event.started_event_id
        if call_id not in turn.calls:
            call_id = next((id for id, name in turn.calls.items() if name == event.tool_name), uuid4().hex)
        turn.calls.pop(call_id, None)
        failure = getattr(event, "error", None) or getattr(event, "failure", None)
        error = None if failure is None else str(getattr(failure, "message", None) or failure)
        self.core.end_tool(
            run.variables, event.tool_name, call_id, result=getattr(event, "output", None), success=error is None,
            error=error, agent=turn.agent, run=turn.run,
        )  # fmt: skip

    def _crew_ends(self, run: _Run, event: Any) -> None:
        run.outputs = getattr(event.output, "raw", event.output)

    # Context

    def _before_model(self, call: Any) -> None:
        """Put the turn's context into the messages of a model call; the end of the call takes it out."""
        with self.core.guarded("context"):
            run = self._current()
            turn = None if run is None else run.turns.get(_id(call.agent, call.task))
            if run is not None and turn is not None:
                turn.clean()
                if turn.id in run.refusals:
                    return
                said = call.messages if call.task is None else [user_message(call.task.description)]
                block = self.core.context(run.variables, turn.agent, run=turn.run, messages=said).text
                turn.undo = _put(call.messages, block, self.place) if block else None

    def _note_refusal(self, run: _Run, turn: _Turn, error: BaseException | None) -> None:
        """Remember that the provider refused the context, or report it once a model call without it has ended."""
        if error is None:
            refusal = run.refusals.pop(turn.id, None)
            if refusal is not None:
                self.core.refuse_context(run.variables, turn.agent, refusal, run=turn.run)
        elif turn.undo is not None and is_refusal(error):
            run.refusals[turn.id] = error


def _reset(reset: Callable[[Any], None], token: Any) -> None:
    with contextlib.suppress(ValueError):  # left in another context
        reset(token)


def _id(agent: Any, task: Any) -> str:
    """Return what identifies a turn: an agent's work on a task."""
    return f"{getattr(agent, 'id', None)}/{getattr(task, 'id', None)}"


def _agent(event: Any) -> tuple[str, str]:
    """Return the name of the agent that an event is about, and what identifies its turn."""
    info = getattr(event, "agent_info", None)
    if info is None:
        return str(event.agent.role).strip(), _id(event.agent, event.task)
    return str(info.get("role")).strip(), f"{info.get('id')}/None"


def _turn_of(run: _Run, event: Any) -> _Turn | None:
    """Return the turn that a call of a model or a tool belongs to."""
    turn = run.turns.get(f"{event.agent_id}/{event.task_id}")
    if turn is not None or event.agent_role is None:
        return turn
    role = str(event.agent_role).strip()
    return next((turn for turn in reversed(run.turns.values()) if turn.agent == role), None)


def _error(event: Any) -> BaseException:
    """Return the exception that is being handled where the event is emitted."""
    return sys.exc_info()[1] or RuntimeError(event.error)


def _put(messages: list[Any], block: str, place: ContextPlace) -> Callable[[], None]:
    """Put the block into the messages, and return what undoes that."""
    before = list(messages)
    messages[:] = placed(before, block, place, put=below_message, own=user_message) or _below_instructions(
        before, block
    )
    added, replaced = change(before, messages)

    def undo() -> None:
        messages[:] = undone(messages, added, replaced)

    return undo


def _below_instructions(messages: list[Any], block: str) -> list[Any]:
    """Return the messages with the block at the end of the system message, or of the first message, or before them."""
    n = next((n for n, one in enumerate(messages) if one.get("role") == "system"), 0)
    found = below_message({**messages[n], "content": messages[n].get("content") or ""}, block)
    if found is None:
        return [{"role": "system", "content": block}, *messages]
    return [*messages[:n], found, *messages[n + 1 :]]


def _tokens(event: Any) -> dict[str, Any]:
    """Return the token counts of a model's answer, in the form of OpenAI or of Anthropic."""
    usage: Any = getattr(event, "usage", None)
    counts: Mapping[str, Any] = cast("Mapping[str, Any]", usage) if isinstance(usage, Mapping) else {}
    return {
        "input_tokens": counts.get("prompt_tokens", counts.get("input_tokens")),
        "output_tokens": counts.get("completion_tokens", counts.get("output_tokens")),
    }

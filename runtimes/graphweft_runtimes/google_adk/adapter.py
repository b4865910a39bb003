"""Google ADK 2.x (``google.adk``): events of runs, agents, model calls and tools, and context in each model request.

Rejected: callbacks of single agents, which must be set on each one, and its tracing, which cannot change a prompt. A
plugin sees all agents of an app, also those inside tools. ADK does not report a cancelled run to plugins, but calls
``after_agent_callback`` while it handles the cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

from graphweft.adapters.context_place import DEFAULT_PLACE, Attempt, ContextPlace, joined, placed
from graphweft.adapters.core import Adapter
from graphweft.adapters.values import IDS, error_in, error_text, with_ids
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_runtimes.chat_runs import ChatRuns
from graphweft_runtimes.google_adk.memory import memory_service
from graphweft_runtimes.google_adk.texts import text_of
from graphweft_runtimes.runtime_adapter import ModelCall, RuntimeAdapter
from graphweft_runtimes.versions import require

_SOURCE: Final = "/graphweft/google-adk"
_PRIVATE: Final = ("temp:", "_adk")
"""Prefixes of state that lasts for one invocation, or is ADK's own."""
_MAX_RUNS: Final = 10_000
"""Open invocations, and waiting turns, that are remembered; the oldest are forgotten first."""

_Place: TypeAlias = tuple[str, str]
"""The name and the branch of an agent: in one invocation, an agent may work in several branches at a time."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The parts of a model request that hold the context."""

    contents: list[Any]
    instruction: Any

    @classmethod
    def of(cls, request: Any) -> _Prompt:
        return cls(request.contents, request.config.system_instruction)

    def into(self, request: Any) -> None:
        request.contents, request.config.system_instruction = self.contents, self.instruction


@dataclass(slots=True, eq=False, kw_only=True)
class _Turn:
    """An agent's open turn."""

    run: str
    """Separates the turn from others of the chat."""
    call: ModelCall = field(default_factory=ModelCall)
    answer: str | None = None
    """The text of the latest answer without tool calls."""
    attempt: Attempt[_Prompt] | None = None
    """The open model call, with and without context."""
    waiting: set[str] = field(default_factory=set[str])
    """Tool calls that a person has to confirm."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Run:
    """An invocation."""

    owner: GoogleADKAdapter
    key: tuple[str, str]
    ids: Mapping[str, Any]
    around: _Run | None
    """The invocation whose tool it runs in, if both are of the same chat."""
    handled: int
    """The identity of the error that the program was handling when the invocation started."""
    turns: dict[_Place, _Turn] = field(default_factory=dict[_Place, _Turn])
    outputs: str | None = None
    reported: int = 0
    """The identity of the latest error that a turn inside has reported."""


_AROUND: ContextVar[_Run | None] = ContextVar("graphweft_google_adk_run", default=None)
"""The invocation whose tool runs here."""


class GoogleADKAdapter(RuntimeAdapter):
    """Emits events of agents and gives them context. ``settings`` are those of ``Adapter``.

    ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` default to the state of the session, then to the session
    itself: its ``app_name`` for the app and the workflow, its id for the chat, its ``user_id``. An agent inside another
    agent's tool has the ids of that agent. Raises ``InvalidSettings`` without a supported version of ``google.adk``.
    """

    def __init__(
        self, adapter: Adapter | None = None, *, context_place: ContextPlace = DEFAULT_PLACE, **settings: Any
    ) -> None:
        require("google.adk", extra="google-adk", lowest="2.13", below="3", part="plugins")
        base: Any = importlib.import_module("google.adk.plugins.base_plugin").BasePlugin
        self._llm_agent: Any = importlib.import_module("google.adk.agents").LlmAgent
        self._types: Any = importlib.import_module("google.genai.types")
        super().__init__(adapter, _SOURCE, settings, context_place=context_place)
        kind: Any = type("Graphweft", (_Hooks, base), {})
        self._plugin: Any = kind(name="graphweft")
        self._plugin.adapter = self
        self._lock = threading.Lock()
        self._open: BoundedDict[str, _Run] = BoundedDict(_MAX_RUNS)
        self._runs = ChatRuns(self.core)
        self._waiting: BoundedDict[tuple[tuple[str, str], _Place], str] = BoundedDict(_MAX_RUNS)

    def plugin(self) -> Any:
        """Return the plugin for ``App(…, plugins=[…])``. Put it first in the list; apps may share it."""
        return self._plugin

    def memory_service(self, *, top_k: int = 5, budget_ms: int | None = None) -> Any:
        """Return a memory service for ``Runner(…, memory_service=…)``: ADK's tools for memories use it.

        Its memories belong to the app, from this adapter's settings or else the ``app_name``, and to the user. A search
        returns at most ``top_k`` results within ``budget_ms``, by default the adapter's.
        """
        return memory_service(self.core, top_k=top_k, budget_ms=budget_ms)

    def publish(self, context: Any, type: str, data: Mapping[str, Any]) -> None:
        """Emit your own event within a tool or callback of an agent; ``context`` is its ``Context``.

        ``type`` is a lower-case dotted name.
        """
        with self.core.guarded("publish"):
            run = self._open.get(context.invocation_id)
            variables, agent = self._variables(context, run), str(context.agent_name)
            turn = None if run is None else run.turns.get(_place(context))
            self.core.emit(variables, type, data, agent=agent, run="" if turn is None else turn.run)

    # Invocations. These methods read values of the runtime, and never raise into it.

    def begin(self, context: Any) -> _Run:
        """Return the invocation, which starts unless it is open."""
        with self._lock:
            run = self._open.get(context.invocation_id)
            if run is not None:
                return run
            around = _AROUND.get()
            around = around if around is not None and around.owner is self else None
            variables = self._variables(context, around)
            key = self.chat_key(variables)
            ids: dict[str, Any] = {name: variables[name] for name in IDS if name in variables}
            inner = around is not None and around.key == key
            handled = id(sys.exc_info()[1])
            run = _Run(owner=self, key=key, ids=ids, around=around if inner else None, handled=handled)
            self._open[context.invocation_id] = run
        if run.around is None:
            self._runs.enter(key, variables)
        return run

    def end(self, context: Any, error: BaseException | None = None) -> None:
        """End the invocation and the turns whose end ADK did not report, unless it waits for a person."""
        with self._lock:
            run = self._open.pop(context.invocation_id, None)
        if run is None:  # it was cancelled
            return
        error = error or _left(run)
        variables = self._variables(context, run)
        for place, turn in list(run.turns.items()):
            if error is not None:
                self._fail(run, place, turn, variables, error)
            elif not turn.waiting:
                self.core.end_turn(variables, place[0], run=turn.run, response=turn.answer)
        if run.around is not None:
            run.around.reported = run.reported
        else:
            paused = error is None and any(turn.waiting for turn in run.turns.values())
            self._runs.leave(run.key, variables, outputs=run.outputs, failure=error, paused=paused)

    def produced(self, context: Any, event: Any) -> None:
        """Keep the latest answer of the invocation, also one that a callback gave in place of the agent."""
        run = self._open.get(context.invocation_id)
        text = text_of(event.content) if run is not None and event.is_final_response() else None
        if run is not None and text:
            run.outputs = text
            turn = run.turns.get((str(event.author), str(event.branch or "")))
            if turn is not None:
                turn.answer = text

    # Turns

    def turn_starts(self, agent: Any, context: Any) -> None:
        """An agent starts, perhaps again after a person has confirmed a tool call."""
        run = self.begin(context)
        if agent.sub_agents and not isinstance(agent, self._llm_agent):
            return  # it only runs other agents
        place, variables = _place(context), self._variables(context, run)
        name = f"{context.invocation_id}/{place[1]}"
        waiting = self._waiting.pop((run.key, place), None)
        if waiting is not None and waiting != name:
            self.core.abandon_turn(variables, place[0], run=waiting)
        alone = run.around is None and not run.turns
        run.turns[place] = _Turn(run=name)
        self.core.start_turn(variables, place[0], run=name, sequential=alone)

    def turn_ends(self, context: Any) -> None:
        """An agent has ended. ADK also calls this while it handles the cancellation of an agent."""
        run, turn = self._turn(context)
        if run is None:
            return
        place, variables = _place(context), self._variables(context, run)
        cancelled = _left(run)
        if turn is not None and cancelled is not None:
            self._fail(run, place, turn, variables, cancelled)
            if not run.turns:  # ADK does not report the end of a cancelled invocation
                self.end(context, cancelled)
        elif turn is not None and turn.waiting:
            self._waiting[run.key, place] = turn.run
        elif turn is not None:
            del run.turns[place]
            self.core.end_turn(variables, place[0], run=turn.run, response=turn.answer)

    def turn_fails(self, context: Any, error: BaseException) -> None:
        """An agent has raised."""
        run, turn = self._turn(context)
        if run is not None and turn is not None:
            self._fail(run, _place(context), turn, self._variables(context, run), error)

    def _fail(self, run: _Run, place: _Place, turn: _Turn, variables: Mapping[str, Any], error: BaseException) -> None:
        del run.turns[place]
        reported = run.reported == id(error)
        run.reported = id(error)
        self.fail_turn(turn.call, variables, place[0], error, run=turn.run, reported=reported)

    def _turn(self, context: Any) -> tuple[_Run | None, _Turn | None]:
        run = self._open.get(context.invocation_id)
        return run, None if run is None else run.turns.get(_place(context))

    # Model calls

    async def asked(self, context: Any, request: Any) -> None:
        """A model call starts: put the turn's context into its request."""
        run, turn = self._turn(context)
        if run is None or turn is None:
            return
        variables, agent = self._variables(context, run), str(context.agent_name)
        # In the request, what other agents said stands in the name of the user.
        said = [context.user_content]
        block = (await self.core.acontext(variables, agent, run=turn.run, messages=said)).text
        turn.attempt = None
        if block:
            plain = _Prompt.of(request)
            self._put(request, block)
            turn.attempt = self.attempt(plain, _Prompt.of(request), variables, agent, run=turn.run)
        turn.call.start(request.model)
        turn.answer = None

    def _put(self, request: Any, block: str) -> None:
        def put(content: Any, block: str) -> Any:
            parts = list(content.parts or ())
            last = parts.pop() if parts and parts[-1].text else self._types.Part(text="")
            return content.model_copy(
                update={"parts": [*parts, last.model_copy(update={"text": joined(last.text, block)})]}
            )

        def own(block: str) -> Any:
            return self._types.Content(role="user", parts=[self._types.Part(text=block)])

        place: ContextPlace = "instructions" if request.previous_interaction_id else self.place
        contents = placed(request.contents, block, place, put=put, own=own)
        if contents is None:
            request.append_instructions([block])
        else:
            request.contents = contents

    async def again(self, context: Any, request: Any, error: Exception) -> Any:
        """Return the answer of a model that refused the context, to the request without it; None for other errors."""
        _, turn = self._turn(context)
        if turn is None or turn.attempt is None or not turn.attempt.goes_on(error):
            return None
        turn.attempt.request.into(request)
        agent = context.get_invocation_context().agent
        found: Any = None
        with contextlib.suppress(Exception):  # the caller gets the first error
            async for response in (await agent.canonical_model_async(context)).generate_content_async(request):
                found = response
        return found

    def answered(self, context: Any, response: Any) -> None:
        """A model call has ended, or has a further part of its answer."""
        run, turn = self._turn(context)
        if run is None or turn is None or response.partial:
            return
        turn.answer = text_of(response.content)
        if turn.attempt is not None:
            turn.attempt.taken()
        if turn.call.is_open:
            usage = response.usage_metadata
            self.end_model_call(
                turn.call, self._variables(context, run), str(context.agent_name), run=turn.run,
                input_tokens=getattr(usage, "prompt_token_count", None),
                output_tokens=getattr(usage, "candidates_token_count", None),
            )  # fmt: skip

    def unanswered(self, context: Any, error: Exception) -> None:
        """A model call has failed."""
        run, turn = self._turn(context)
        if run is not None and turn is not None:
            agent, variables = str(context.agent_name), self._variables(context, run)
            self.end_model_call(turn.call, variables, agent, run=turn.run, error=error)

    # Tools

    def tool_starts(self, tool: Any, arguments: Any, context: Any) -> None:
        """A tool call starts, perhaps again after a person has confirmed it."""
        run, turn = self._turn(context)
        if run is None or turn is None:
            return
        _AROUND.set(run)
        call_id = str(context.function_call_id)
        turn.waiting.discard(call_id)
        self.core.start_tool(
            self._variables(context, run), tool.name, call_id,
            arguments=arguments, agent=str(context.agent_name), run=turn.run,
        )  # fmt: skip

    def tool_ends(self, tool: Any, context: Any, result: Any = None, error: BaseException | None = None) -> None:
        """A tool call has ended; it handed over, or waits for a person, or its result comes later."""
        run, turn = self._turn(context)
        if run is None or turn is None:
            return
        _AROUND.set(run.around)
        call_id, agent = str(context.function_call_id), str(context.agent_name)
        if error is None and call_id in (context.actions.requested_tool_confirmations or {}):
            turn.waiting.add(call_id)
            return
        if error is None and not result and getattr(tool, "is_long_running", False):
            return
        variables = self._variables(context, run)
        value = _value(result)
        failure = _failure(value) if error is None else error_text(error)
        self.core.end_tool(
            variables, tool.name, call_id, result=value, success=failure is None, error=failure,
            agent=agent, run=turn.run,
        )  # fmt: skip
        to = None if error is not None else context.actions.transfer_to_agent
        if to:
            del run.turns[_place(context)]
            self.core.hand_over(variables, agent, str(to), run=turn.run)

    # Ids

    def _variables(self, context: Any, run: _Run | None) -> dict[str, Any]:
        """Return the state of the session as variables, with the ids of the run or, without one, of the session.

        ``context`` is that of a callback or of the whole invocation.
        """
        session = context.session
        state: Mapping[str, Any] = session.state
        with contextlib.suppress(AttributeError):  # the state with the changes of this callback
            state = context.state.to_dict()
        found = {str(name): value for name, value in state.items() if not str(name).startswith(_PRIVATE)}
        own = {"app_id": session.app_name, "workflow_name": session.app_name}
        own |= {"chat_id": session.id, "user_id": session.user_id}
        return with_ids({**found, **({} if run is None else run.ids)}, own)


def _place(context: Any) -> _Place:
    return str(context.agent_name), str(context.branch or "")


def _left(run: _Run) -> BaseException | None:
    """Return the error that ADK handles while it calls back, if the run was cancelled or its reader has left."""
    error = sys.exc_info()[1]
    left = isinstance(error, asyncio.CancelledError | GeneratorExit) and id(error) != run.handled
    return error if left else None


def _value(result: Any) -> Any:
    """Return a tool's result: ADK wraps a result that is not an object as ``{"result": …}``."""
    if isinstance(result, Mapping):
        known = cast("Mapping[str, Any]", result)
        return known["result"] if set(known) == {"result"} else dict(known)
    return result


def _failure(result: Any) -> str | None:
    """Return the error that a result reports, also with the ``status`` that ADK recommends."""
    match result:
        case {"status": "error", "error_message": str(text)} if text:
            return text
        case {"status": "error"}:
            return error_in(result) or "error"
        case _:
            return error_in(result)


class _Hooks:
    """The plugin; a subclass adds the base class of ADK.

    It returns nothing, so that ADK continues as without it, except for a model that refused the context.
    """

    adapter: GoogleADKAdapter

    async def before_run_callback(self, *, invocation_context: Any) -> None:
        with self.adapter.core.guarded("before_run_callback"):
            self.adapter.begin(invocation_context)

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        with self.adapter.core.guarded("after_run_callback"):
            self.adapter.end(invocation_context)

    async def on_run_error_callback(self, *, invocation_context: Any, error: Exception) -> None:
        with self.adapter.core.guarded("on_run_error_callback"):
            self.adapter.end(invocation_context, error)

    async def on_event_callback(self, *, invocation_context: Any, event: Any) -> None:
        with self.adapter.core.guarded("on_event_callback"):
            self.adapter.produced(invocation_context, event)

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        with self.adapter.core.guarded("before_agent_callback"):
            self.adapter.turn_starts(agent, callback_context)

    async def after_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        with self.adapter.core.guarded("after_agent_callback"):
            self.adapter.turn_ends(callback_context)

    async def on_agent_error_callback(self, *, agent: Any, callback_context: Any, error: Exception) -> None:
        with self.adapter.core.guarded("on_agent_error_callback"):
            self.adapter.turn_fails(callback_context, error)

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        with self.adapter.core.guarded("before_model_callback"):
            await self.adapter.asked(callback_context, llm_request)

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        with self.adapter.core.guarded("after_model_callback"):
            self.adapter.answered(callback_context, llm_response)

    async def on_model_error_callback(self, *, callback_context: Any, llm_request: Any, error: Exception) -> Any:
        found: Any = None
        with self.adapter.core.guarded("on_model_error_callback"):
            found = await self.adapter.again(callback_context, llm_request, error)
            if found is None:
                self.adapter.unanswered(callback_context, error)
        return found

    async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> None:
        with self.adapter.core.guarded("before_tool_callback"):
            self.adapter.tool_starts(tool, tool_args, tool_context)

    async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> None:
        with self.adapter.core.guarded("after_tool_callback"):
            self.adapter.tool_ends(tool, tool_context, result)

    async def on_tool_error_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, error: Exception) -> None:
        with self.adapter.core.guarded("on_tool_error_callback"):
            self.adapter.tool_ends(tool, tool_context, error=error)

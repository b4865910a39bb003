"""Agents of LlamaIndex (``llama_index.core.agent.workflow``): events of runs, turns and tools, and context in steps.

Rejected: its instrumentation, whose handlers are global and synchronous, so that they cannot wait for a context, and
memory blocks, which do not know the agent. The methods that a class of agents defines, ``take_step``,
``handle_tool_call_results`` and ``finalize``, see all steps of an agent: the adapter derives a class from the caller's.
The run and its errors are seen where it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast
from uuid import uuid4

from graphweft.adapters.context_place import DEFAULT_PLACE, ContextPlace, joined, placed
from graphweft.adapters.core import Adapter
from graphweft.adapters.values import IDS, error_text, variables_of, with_ids
from graphweft_runtimes.chat_runs import ChatRuns
from graphweft_runtimes.runtime_adapter import ModelCall, RuntimeAdapter
from graphweft_runtimes.versions import require

_SOURCE: Final = "/graphweft/llama-index"
_HANDOFF: Final = "handoff"
"""LlamaIndex reserves this name for its tool that hands over."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Turn:
    """An agent's open turn."""

    call: ModelCall = field(default_factory=ModelCall)
    goes_on: bool = False
    """Whether the agent continues after the ``finalize`` that follows: it wanted to hand over, but could not."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Run:
    """A run started here."""

    owner: LlamaIndexAdapter
    key: tuple[str, str]
    run: str
    """Separates its turns from others of the chat."""
    given: dict[str, Any]
    """The caller's variables, with the ids."""
    variables: dict[str, Any]
    """The same, and the state of the context, as it was at the latest step."""
    around: _Run | None
    """The run whose tool it runs in, if both are of the same chat."""
    turns: dict[str, _Turn] = field(default_factory=dict[str, _Turn])
    failure: BaseException | None = None
    """The latest error of a turn."""
    seen: bool = False
    """Whether an agent of the adapter's class has worked."""
    over: bool = False


_Work: TypeAlias = Callable[[Sequence[Any]], Awaitable[Any]]
"""Takes a step of an agent with these messages."""

_RUN: ContextVar[_Run | None] = ContextVar("graphweft_llama_index_run", default=None)


class LlamaIndexAdapter(RuntimeAdapter):
    """Emits events of agents and gives them context. ``settings`` are those of ``Adapter``.

    ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` default to the ``variables`` of a run. Without a chat id
    there, it is the ``session_id`` of its memory. A run inside a tool has the ids of the run around it. The other
    variables of an event are those of the run and the state of its context. Raises ``InvalidSettings`` without a
    supported version of ``llama_index.core``.
    """

    def __init__(
        self, adapter: Adapter | None = None, *, context_place: ContextPlace = DEFAULT_PLACE, **settings: Any
    ) -> None:
        require(
            "llama_index.core", extra="llama-index", lowest="0.14.25", below="0.15", part="agent.workflow"
        )  # fmt: skip
        llms: Any = importlib.import_module("llama_index.core.llms")
        agents: Any = importlib.import_module("llama_index.core.agent.workflow")
        self._message, self._text = llms.ChatMessage, llms.TextBlock
        self._writes_its_own = (agents.ReActAgent, agents.CodeActAgent)
        """Agents that replace the first system message by one of their own."""
        super().__init__(adapter, _SOURCE, settings, context_place=context_place)
        self._lock = threading.Lock()
        self._classes: dict[Any, Any] = {}
        self._runs = ChatRuns(self.core)
        self._watched: dict[asyncio.Future[Any], tuple[_Run, Any]] = {}

    def agent_class(self, base: Any) -> Any:
        """Return a class of agents like ``base``, such as ``FunctionAgent``, that reports to this adapter.

        Use it in place of ``base``. Agents of it work in an ``AgentWorkflow`` or alone, and report within ``run`` and
        ``start``.
        """
        with self._lock:
            if base not in self._classes:
                self._classes[base] = _agent_class(base, self)
            return self._classes[base]

    async def run(self, workflow: Any, *args: Any, variables: Any = None, **options: Any) -> Any:
        """Call ``workflow.run`` of an agent or an ``AgentWorkflow``, and return its result or raise its error.

        ``variables`` are the context variables: a mapping, a dataclass or a model.
        """
        with self._started(variables, options) as run:
            result = await workflow.run(*args, **options)
        self._ended(run, result)
        return result

    def start(self, workflow: Any, *args: Any, variables: Any = None, **options: Any) -> Any:
        """Do the same as ``run``, but return the handler at once, for example to stream its events."""
        with self._started(variables, options) as run:
            handler = workflow.run(*args, **options)
        if run is None:
            return handler
        with self.core.guarded("start"):
            ending = asyncio.ensure_future(handler.stop_event_result())
            self._watched[ending] = (run, handler)
            ending.add_done_callback(self._watched_ends)
        return handler

    def publish(self, type: str, data: Mapping[str, Any], *, agent: str | None = None) -> None:
        """Emit your own event within a run, for example in a tool; ``type`` is a lower-case dotted name."""
        with self.core.guarded("publish"):
            run = self._current()
            if run is None:
                self.core.unplaced("an event was published outside of a run: publish it while run() or start() works")
                return
            self.core.emit(run.variables, type, data, agent=agent, run=run.run if agent in run.turns else "")

    # Runs. These methods read values of the runtime, and never raise into it.

    @contextlib.contextmanager
    def _started(self, variables: Any, options: Mapping[str, Any]) -> Generator[_Run | None]:
        """Start a run, make it the current one, and report an error."""
        run = self._begin(variables, options)
        token = _RUN.set(run)
        try:
            yield run
        except BaseException as error:
            self._failed(run, error)
            raise
        finally:
            with contextlib.suppress(ValueError):  # left in another context
                _RUN.reset(token)

    def _begin(self, given: Any, options: Mapping[str, Any]) -> _Run | None:
        run: _Run | None = None
        with self.core.guarded("run"):
            around = self._current()
            session = getattr(options.get("memory"), "session_id", None)
            own = {"chat_id": str(session)} if session else {}
            ids: Mapping[str, Any] = {} if around is None else {n: around.variables.get(n) for n in IDS}
            variables = with_ids(variables_of(given), {**own, **{n: v for n, v in ids.items() if v}})
            key = self.chat_key(variables)
            inner = around is not None and around.key == key
            run = _Run(
                owner=self, key=key, run=uuid4().hex, given=variables, variables=variables,
                around=around if inner else None,
            )  # fmt: skip
            for other, handler in list(self._watched.values()):  # its callback is still to come
                if other.key == key and handler.is_done() and handler.get_stop_event() is not None:
                    self._ended(other, handler.get_stop_event().result)
            if run.around is None:
                self._runs.enter(key, variables)
        return run

    def _ended(self, run: _Run | None, result: Any) -> None:
        with self.core.guarded("run"):
            if run is None or run.over:
                return
            run.over = True
            if not run.seen:
                self.core.unplaced(
                    "a run had no agent of a class made by agent_class(): it has no turns and no context"
                )
            for agent in list(run.turns):  # a last answer at the limit of iterations
                self._end_turn(run, agent, _answer(result))
            if run.around is None:
                self._runs.leave(run.key, run.variables, outputs=_answer(result))

    def _failed(self, run: _Run | None, error: BaseException) -> None:
        with self.core.guarded("run"):
            if run is None or run.over:
                return
            run.over = True
            for agent in list(run.turns):
                self._fail_turn(run, agent, error)
            if run.around is None:
                self._runs.leave(run.key, run.variables, failure=run.failure or error)

    def _watched_ends(self, ending: asyncio.Future[Any]) -> None:
        run, _ = self._watched.pop(ending)
        if ending.cancelled():
            self._failed(run, asyncio.CancelledError())
        elif (error := ending.exception()) is not None:
            self._failed(run, error)
        else:
            self._ended(run, ending.result().result)

    def _current(self) -> _Run | None:
        run = _RUN.get()
        return run if run is not None and run.owner is self and not run.over else None

    # Turns

    async def step(self, agent: Any, context: Any, messages: Sequence[Any], work: _Work) -> Any:
        """Call the model of an agent, with the turn's context, and return what ``work`` returns."""
        run = self._current()
        if run is None:
            if _RUN.get() is None:
                self.core.unplaced("an agent works outside of a run: start it with run() or start() of the adapter")
            return await work(messages)
        run.seen = True
        attempt = self.attempt(messages, messages, run.variables, agent.name, run=run.run)
        with self.core.guarded("step"):
            state = await context.store.get("state", default=None)
            if isinstance(state, Mapping):
                run.variables = {**_without_ids(cast("Mapping[str, Any]", state)), **run.given}
            turn = run.turns.get(agent.name)
            if turn is None:
                turn = run.turns[agent.name] = _Turn()
                self.core.start_turn(run.variables, agent.name, run=run.run)
            block = (await self.core.acontext(run.variables, agent.name, run=run.run, messages=messages)).text
            given = self._with_block(agent, messages, block) if block else messages
            attempt = self.attempt(messages, given, run.variables, agent.name, run=run.run)
            turn.call.start(agent.llm.metadata.model_name)
        try:
            output = await attempt.aask(work)
        except BaseException as error:
            with self.core.guarded("step"):
                if agent.name in run.turns:
                    self._fail_turn(run, agent.name, error)
            raise
        with self.core.guarded("step"):
            self._answered(run, agent.name, output)
        return output

    def _with_block(self, agent: Any, messages: Sequence[Any], block: str) -> list[Any]:
        """Return the messages with the block."""
        found = placed(
            messages, block, self.place, put=self._below, own=lambda text: self._message(role="user", content=text)
        )
        return self._below_instructions(agent, messages, block) if found is None else found

    def _below(self, message: Any, block: str) -> Any:
        """Return a message with the block below its last text, or in a part of its own."""
        blocks = list(message.blocks)
        if blocks and isinstance(blocks[-1], self._text):
            blocks[-1] = self._text(text=joined(blocks[-1].text, block))
        else:
            blocks.append(self._text(text=block))
        return message.model_copy(update={"blocks": blocks})

    def _below_instructions(self, agent: Any, messages: Sequence[Any], block: str) -> list[Any]:
        """Return the messages with the block at the end of the system message, or after it if the agent replaces it."""
        has_own = bool(messages) and str(getattr(messages[0].role, "value", messages[0].role)) == "system"
        separate = self._message(role="system", content=block)
        if isinstance(agent, self._writes_its_own):
            own = messages[0] if has_own else self._message(role="system", content="")
            return [own, separate, *messages[has_own:]]
        if not has_own:
            return [separate, *messages]
        return [self._below(messages[0], block), *messages[1:]]

    def _answered(self, run: _Run, agent: str, output: Any) -> None:
        turn = run.turns.get(agent)
        if turn is None:  # the run is over
            return
        self.end_model_call(turn.call, run.variables, agent, run=run.run, **_tokens(output.raw))
        for call in output.tool_calls or ():
            self.core.start_tool(
                run.variables, call.tool_name, call.tool_id,
                arguments=call.tool_kwargs, agent=agent, run=run.run,
            )  # fmt: skip

    async def tools_end(self, agent: Any, context: Any, results: Sequence[Any]) -> None:
        """The tools of a step have ended; one of them may have handed over."""
        run = self._current()
        if run is None or agent.name not in run.turns:
            return
        with self.core.guarded("tools"):
            for each in results:
                output = each.tool_output
                error = None
                if output.is_error:
                    error = str(output.content) if output.exception is None else error_text(output.exception)
                self.core.end_tool(
                    run.variables, each.tool_name, each.tool_id, result=output.raw_output,
                    success=error is None, error=error, agent=agent.name, run=run.run,
                )  # fmt: skip
            last = next((each for each in results if each.return_direct and not each.tool_output.is_error), None)
            if last is None or last.tool_name != _HANDOFF:
                return
            to = await context.store.get("next_agent", default=None)
            if to and to != agent.name:
                del run.turns[agent.name]
                self.core.hand_over(run.variables, agent.name, str(to), run=run.run)
            else:
                run.turns[agent.name].goes_on = True

    def answered_finally(self, agent: Any, output: Any) -> None:
        """The agent has answered."""
        run = self._current()
        turn = None if run is None else run.turns.get(agent.name)
        if run is None or turn is None:
            return
        if turn.goes_on:
            turn.goes_on = False
            return
        with self.core.guarded("finalize"):
            self._end_turn(run, agent.name, output.response.content)

    def _end_turn(self, run: _Run, agent: str, response: Any) -> None:
        del run.turns[agent]
        self.core.end_turn(run.variables, agent, run=run.run, response=response)

    def _fail_turn(self, run: _Run, agent: str, error: BaseException) -> None:
        turn = run.turns.pop(agent)
        run.failure = error
        self.fail_turn(turn.call, run.variables, agent, error, run=run.run)


def _agent_class(base: Any, adapter: LlamaIndexAdapter) -> Any:
    """Return a class derived from a class of agents; it has the name of that class, which workflows use."""

    async def take_step(self: Any, ctx: Any, llm_input: Any, tools: Any, memory: Any) -> Any:
        async def work(messages: Sequence[Any]) -> Any:
            return await base.take_step(self, ctx, messages, tools, memory)

        return await adapter.step(self, ctx, llm_input, work)

    async def handle_tool_call_results(self: Any, ctx: Any, results: Any, memory: Any) -> None:
        await adapter.tools_end(self, ctx, results)
        await base.handle_tool_call_results(self, ctx, results, memory)

    async def finalize(self: Any, ctx: Any, output: Any, memory: Any) -> Any:
        found = await base.finalize(self, ctx, output, memory)
        adapter.answered_finally(self, found)
        return found

    methods = (take_step, handle_tool_call_results, finalize)
    inside: dict[str, Any] = {method.__name__: method for method in methods}
    inside |= {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    return type(base)(base.__name__, (base,), inside)


def _without_ids(state: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in state.items() if name not in IDS}


def _answer(result: Any) -> Any:
    """Return the answer of a run: its structured response, or its text."""
    structured = getattr(result, "structured_response", None)
    if structured is not None:
        return structured
    message = getattr(result, "response", None)
    return getattr(message, "content", None) if message is not None else result


def _tokens(raw: Any) -> dict[str, Any]:
    """Return the token counts in a model's raw answer, in the form of OpenAI or of Anthropic."""
    usage: Any = cast("Mapping[str, Any]", raw).get("usage") if isinstance(raw, Mapping) else None
    counts: Mapping[str, Any] = cast("Mapping[str, Any]", usage) if isinstance(usage, Mapping) else {}
    return {
        "input_tokens": counts.get("prompt_tokens", counts.get("input_tokens")),
        "output_tokens": counts.get("completion_tokens", counts.get("output_tokens")),
    }

"""LangChain 1.x agents and LangGraph graphs: their events, and context in the prompts of each turn.

Rejected: middleware alone. It misses agents that fail, are cancelled or whose stream is not read to the end, and does
not know the graph around the agent. Also rejected: callbacks alone. They see all of that, but cannot change a prompt,
and cannot tell a tool that succeeded from one whose failure became a message. So the adapter uses both, and they share
one record of the open runs.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from graphweft.adapters.context_place import DEFAULT_PLACE, Attempt, ContextPlace, placed
from graphweft.adapters.core import Adapter
from graphweft.adapters.sender import no_context
from graphweft.adapters.values import about_model, error_text
from graphweft_contracts import ContextReply
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_runtimes.langchain import values
from graphweft_runtimes.langchain.callbacks import handler_of, quietly
from graphweft_runtimes.langchain.runs import OpenRun, OpenTurn, Runs
from graphweft_runtimes.runtime_adapter import RuntimeAdapter
from graphweft_runtimes.versions import require

_SOURCE: Final = "/graphweft/langchain"


class LangChainAdapter(RuntimeAdapter):
    """Emits events of agents and graphs, and gives agents context. ``settings`` are those of ``Adapter``.

    ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` default to the run's ``context``, ``configurable`` or
    ``metadata``, in this order; the default chat id is ``thread_id``. Raises ``InvalidSettings`` without a supported
    version of ``langchain``.
    """

    def __init__(
        self, adapter: Adapter | None = None, *, context_place: ContextPlace = DEFAULT_PLACE, **settings: Any
    ) -> None:
        self.langchain = _langchain()
        super().__init__(adapter, _SOURCE, settings, context_place=context_place)
        self.runs = Runs(self.core, bubble=self.langchain.bubble, parent_command=self.langchain.parent_command)
        self._handler = handler_of(self.langchain.callback_handler, self.core, self.runs)

    @property
    def callbacks(self) -> list[Any]:
        """The callback handler, for the ``callbacks`` of a run's config. ``attach`` adds it to a graph."""
        return [self._handler]

    def attach(self, graph: Any) -> Any:
        """Return the graph, or another runnable, with the callback handler in all of its runs.

        Attach the outermost runnable. Attaching inner ones too, or attaching twice, has no effect.
        """
        return graph.with_config(callbacks=self.callbacks)

    def middleware(self, agent: str | None = None) -> Any:
        """Return middleware for ``create_agent``. Put it last in the list; agents may share it.

        ``agent`` overrides the agent's name in events.
        """
        kind: Any = type("GraphweftMiddleware", (_Hooks, self.langchain.middleware), {"name": "graphweft"})
        made = kind()
        made.hooks = _AgentHooks(self, agent)
        return made

    async def context_for(self, config: Mapping[str, Any], *, agent: str, messages: Iterable[Any] = ()) -> ContextReply:
        """Return the context of the agent's turn, within a node of an attached graph; ``config`` is the node's.

        The turn starts with the first call. It ends with the node, unless the model called tools: then it continues
        with the agent's next call. ``messages`` are those of the model call; rules find the user's last one, as in
        ``Adapter.context``. Never raises, and waits at most ``budget_ms``.
        """
        turn = self._turn_for(config, agent)
        if turn is None:
            return no_context("internal_error", "the adapter failed; see its log")
        return await self.core.acontext(turn.variables, agent, run=turn.run, messages=messages)

    def context_for_sync(self, config: Mapping[str, Any], *, agent: str, messages: Iterable[Any] = ()) -> ContextReply:
        """Do the same as ``context_for``, for synchronous nodes."""
        turn = self._turn_for(config, agent)
        if turn is None:
            return no_context("internal_error", "the adapter failed; see its log")
        return self.core.context(turn.variables, agent, run=turn.run, messages=messages)

    def publish(
        self, config: Mapping[str, Any], type: str, data: Mapping[str, Any], *, agent: str | None = None
    ) -> None:
        """Emit your own event within a node or tool; ``type`` is a lower-case dotted name."""
        self._emit(config, type, data, agent)

    @quietly
    def _emit(self, config: Mapping[str, Any], type: str, data: Mapping[str, Any], agent: str | None) -> None:
        run = self.runs.get(_around(config))
        with self.runs.lock:
            turn = None if run is None else self.runs.turn_of(run)
            variables = self.langchain.variables(config)
            variables = variables if run is None else self.runs.begun(run, variables)
        mine = turn is not None and agent in {None, turn.agent}
        self.core.emit(
            variables, type, data,
            agent=turn.agent if turn is not None and mine else agent, run=turn.run if turn is not None and mine else "",
        )  # fmt: skip

    @quietly
    def _turn_for(self, config: Mapping[str, Any], agent: str) -> OpenTurn:
        with self.runs.lock:
            variables = self.langchain.variables(config)
            turn = self.runs.turn(_around(config), agent, variables, _namespace(config), asks=True)
            self.core.start_turn(turn.variables, agent, run=turn.run)
            return turn


@dataclass(frozen=True, slots=True, kw_only=True)
class _LangChain:
    """The parts of LangChain and LangGraph that the adapter uses."""

    middleware: Any
    system_message: Any
    user_message: Any
    callback_handler: Any
    bubble: Any
    parent_command: Any
    get_config: Callable[[], Mapping[str, Any]]
    get_runtime: Callable[[], Any]

    def variables(self, config: Mapping[str, Any], runtime: Any = None) -> dict[str, Any]:
        """Return the context variables of a run, by default of the node around this call."""
        if runtime is None:
            with contextlib.suppress(Exception):  # not inside a node
                runtime = self.get_runtime()
        return values.context_variables(config, getattr(runtime, "context", None))


def _langchain() -> _LangChain:
    require("langchain", extra="langchain", lowest="1.4", below="2", part="agents.middleware")
    errors: Any = importlib.import_module("langgraph.errors")
    messages: Any = importlib.import_module("langchain_core.messages")
    found: Mapping[str, Any] = {
        "middleware": importlib.import_module("langchain.agents.middleware").AgentMiddleware,
        "system_message": messages.SystemMessage,
        "user_message": messages.HumanMessage,
        "callback_handler": importlib.import_module("langgraph.callbacks").GraphCallbackHandler,
        "bubble": errors.GraphBubbleUp,
        "parent_command": errors.ParentCommand,
        "get_config": importlib.import_module("langgraph.config").get_config,
        "get_runtime": importlib.import_module("langgraph.runtime").get_runtime,
    }
    return _LangChain(**found)


@dataclass(slots=True, eq=False)
class _OpenCall:
    """An open call of a model or tool. ``node`` is its node, if the graph is attached."""

    turn: OpenTurn
    node: OpenRun | None
    name: str = ""
    call_id: str = ""
    started_s: float = 0.0
    result: Any = None


class _AgentHooks:
    """The callbacks of the middleware for one agent."""

    def __init__(self, adapter: LangChainAdapter, agent: str | None) -> None:
        self.core = adapter.core
        self._adapter = adapter
        self._langchain = adapter.langchain
        self._runs = adapter.runs
        self._agent = agent

    def _turn(self, runtime: Any) -> OpenTurn:
        config = self._langchain.get_config()
        metadata: Mapping[str, Any] = config.get("metadata") or {}
        agent = self._agent or str(metadata.get("lc_agent_name") or "Agent")
        namespace = _namespace(config).rpartition("|")[0]
        variables = self._langchain.variables(config, runtime)
        return self._runs.turn(_around(config), agent, variables, namespace, asks=False)

    def _node(self) -> OpenRun | None:
        return self._runs.get(_around(self._langchain.get_config()))

    @quietly
    def begin(self, runtime: Any) -> None:
        """The agent starts a turn."""
        with self._runs.lock:
            turn = self._turn(runtime)
            self.core.start_turn(turn.variables, turn.agent, run=turn.run, fresh=True)

    @quietly
    def end(self, runtime: Any, state: Any) -> None:
        """The agent is done. If its graph is attached, the end of the graph ends the turn instead."""
        with self._runs.lock:
            turn = self._turn(runtime)
            if turn.graph is None:
                self._runs.end_turn(turn, values.response(state))

    # Models

    @quietly
    def ask(self, request: Any) -> _OpenCall:
        """A model call starts; return it."""
        with self._runs.lock:
            return _OpenCall(self._turn(request.runtime), self._node())

    def asking(self, asked: _OpenCall, request: Any, block: str) -> Attempt[Any]:
        """Return the model call with the turn's context."""
        asked.started_s = SYSTEM_CLOCK.monotonic()
        self._count(asked, 1)
        found = request
        if block:
            with self.core.guarded("adding the context"):
                found = self._with_block(request, block)
        turn = asked.turn
        return self._adapter.attempt(request, found, turn.variables, turn.agent, run=turn.run)

    def _with_block(self, request: Any, block: str) -> Any:
        messages = placed(
            request.messages, block, self._adapter.place,
            put=values.with_block, own=lambda text: self._langchain.user_message(content=text),
        )  # fmt: skip
        if messages is not None:
            return request.override(messages=messages)
        system = request.system_message
        if system is None:
            return request.override(system_message=self._langchain.system_message(content=block))
        return request.override(system_message=values.with_block(system, block) or system)

    @quietly
    def answered(self, asked: _OpenCall, request: Any) -> None:
        """The model call succeeded."""
        self._count(asked, -1)
        response = getattr(asked.result, "model_response", asked.result)
        answer = values.answer(getattr(response, "result", None) or [response], request.model)
        with self._runs.lock:
            asked.turn.waiting = answer.calls
        self._model_call(asked, True, answer.about)

    @quietly
    def failed(self, asked: _OpenCall, request: Any, error: BaseException) -> None:
        """The model call failed. Without an attached graph this ends the turn."""
        self._count(asked, -1)
        if self._runs.bubbles(error):
            return
        about = {**values.answer([], request.model).about, **about_model(None, error=error)}
        self._model_call(asked, False, about)
        with self._runs.lock:
            if asked.turn.graph is None:
                self._runs.fail_turn(asked.turn, error)

    @contextlib.contextmanager
    def model_call(self, asked: _OpenCall, request: Any) -> Generator[None]:
        """Record the end of the model call in the block."""
        try:
            yield
        except BaseException as error:
            self.failed(asked, request, error)
            raise
        self.answered(asked, request)

    def _model_call(self, asked: _OpenCall, success: bool, about: Mapping[str, Any]) -> None:
        more = {**about_model(asked.started_s), **about}
        turn = asked.turn
        self.core.model_call(turn.variables, turn.agent, run=turn.run, success=success, about=more)

    # Tools

    @quietly
    def call(self, request: Any) -> _OpenCall:
        """A tool call starts; return it."""
        with self._runs.lock:
            call = request.tool_call
            asked = _OpenCall(self._turn(request.runtime), self._node(), str(call["name"]))
            asked.call_id = str(call.get("id") or uuid4().hex)
            turn = asked.turn
            self.core.start_turn(turn.variables, turn.agent, run=turn.run)
            self.core.start_tool(
                turn.variables, asked.name, asked.call_id,
                arguments=call.get("args"), agent=turn.agent, run=turn.run,
            )  # fmt: skip
        self._count(asked, 1)
        return asked

    @quietly
    def returned(self, asked: _OpenCall) -> None:
        """The tool returned, or its failure became a message."""
        self._count(asked, -1)
        result = values.tool_result(asked.result, asked.call_id)
        with self._runs.lock:
            self.core.end_tool(
                asked.turn.variables, asked.name, asked.call_id,
                result=result.value, success=result.success, error=result.error,
                agent=asked.turn.agent, run=asked.turn.run,
            )  # fmt: skip
            self._runs.returned(asked.turn, asked.call_id, values.goes_to(asked.result, "__parent__"))

    @quietly
    def broken(self, asked: _OpenCall, error: BaseException) -> None:
        """The tool raised. A tool that waits for a person is called again later."""
        self._count(asked, -1)
        if self._runs.bubbles(error):
            return
        with self._runs.lock:
            self.core.end_tool(
                asked.turn.variables, asked.name, asked.call_id, success=False, error=error_text(error),
                agent=asked.turn.agent, run=asked.turn.run,
            )  # fmt: skip
            self._runs.returned(asked.turn, asked.call_id, None)

    @contextlib.contextmanager
    def tool_call(self, asked: _OpenCall) -> Generator[None]:
        """Record the end of the tool call in the block."""
        try:
            yield
        except BaseException as error:
            self.broken(asked, error)
            raise
        self.returned(asked)

    def _count(self, asked: _OpenCall, more: int) -> None:
        if asked.node is not None:
            with self._runs.lock:
                asked.node.asking += more


class _Hooks:
    """The methods of LangChain's ``AgentMiddleware``."""

    hooks: _AgentHooks

    def before_agent(self, state: Any, runtime: Any) -> None:
        self.hooks.begin(runtime)

    async def abefore_agent(self, state: Any, runtime: Any) -> None:
        self.hooks.begin(runtime)

    def after_agent(self, state: Any, runtime: Any) -> None:
        self.hooks.end(runtime, state)

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        self.hooks.end(runtime, state)

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        call = self.hooks.ask(request)
        if call is None:
            return handler(request)
        turn = call.turn
        block = self.hooks.core.context(turn.variables, turn.agent, run=turn.run, messages=request.messages).text
        attempt = self.hooks.asking(call, request, block)
        with self.hooks.model_call(call, request):
            call.result = attempt.ask(handler)
            return call.result

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        call = self.hooks.ask(request)
        if call is None:
            return await handler(request)
        turn = call.turn
        reply = await self.hooks.core.acontext(turn.variables, turn.agent, run=turn.run, messages=request.messages)
        block = reply.text
        attempt = self.hooks.asking(call, request, block)
        with self.hooks.model_call(call, request):
            call.result = await attempt.aask(handler)
            return call.result

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        call = self.hooks.call(request)
        if call is None:
            return handler(request)
        with self.hooks.tool_call(call):
            call.result = handler(request)
            return call.result

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        call = self.hooks.call(request)
        if call is None:
            return await handler(request)
        with self.hooks.tool_call(call):
            call.result = await handler(request)
            return call.result


def _around(config: Mapping[str, Any]) -> Any:
    """Return the id of the run around a callback or a node."""
    return getattr(config.get("callbacks"), "parent_run_id", None)


def _namespace(config: Mapping[str, Any]) -> str:
    """Return LangGraph's checkpoint namespace of a node."""
    configurable: Mapping[str, Any] = config.get("configurable") or {}
    return str(configurable.get("checkpoint_ns") or "")

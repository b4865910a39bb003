"""LangChain 1.x agents and LangGraph graphs: their events, and context in the system message of each turn.

Rejected: middleware alone. It is not told of an agent's end that is a failure, a cancellation or a stream nobody reads
on, and knows nothing of the graph that its agent is a node of. Also rejected: callbacks alone. They see all of that,
but change no prompt, and cannot tell a tool that failed from one whose failure was told to the model in words. So there
are both, and they share one book of the runs under way.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from graphweft.adapters import langchain_values as values
from graphweft.adapters.core import Adapter
from graphweft.adapters.langchain_callbacks import handler_of, quietly
from graphweft.adapters.langchain_runs import OpenTurn, Run, Runs
from graphweft.adapters.runtime import RuntimeAdapter
from graphweft.adapters.sending import no_context
from graphweft.adapters.values import error_text, ms_since
from graphweft.adapters.versions import require
from graphweft_contracts import ContextReply

__all__ = ("LangChainAdapter",)

_SOURCE: Final = "/graphweft/langchain"


class LangChainAdapter(RuntimeAdapter):
    """Publishes what agents and graphs do and gives them context. ``settings`` are those of ``Adapter``.

    ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` come from the run's ``context``, ``configurable`` or
    ``metadata`` where the settings do not say them; ``thread_id`` is the chat's id where none is named. Raises
    ``InvalidSettings`` where there is no ``langchain`` that it knows.
    """

    def __init__(self, adapter: Adapter | None = None, **settings: Any) -> None:
        self.langchain = _langchain()
        super().__init__(adapter, _SOURCE, settings)
        self.runs = Runs(self.core, bubble=self.langchain.bubble, parent_command=self.langchain.parent_command)
        self._handler = handler_of(self.langchain.callback_handler, self.core, self.runs)

    @property
    def callbacks(self) -> list[Any]:
        """The callback handler, for the ``callbacks`` of a run's config; a graph that is attached has it."""
        return [self._handler]

    def attach(self, graph: Any) -> Any:
        """Return the graph, or any other runnable, with the callback handler in all of its runs.

        Attach the outermost one. What is attached as well, within it or a second time, is told once.
        """
        return graph.with_config(callbacks=self.callbacks)

    def middleware(self, agent: str | None = None) -> Any:
        """Return middleware for ``create_agent``, to be the last of its list; agents may share it.

        ``agent`` is the agent's name where that of ``create_agent`` is not to be told.
        """
        kind: Any = type("GraphweftMiddleware", (_Hooks, self.langchain.middleware), {"name": "graphweft"})
        made = kind()
        made.hooks = _AgentHooks(self, agent)
        return made

    async def context_for(self, config: Mapping[str, Any], *, agent: str) -> ContextReply:
        """Return the context of the agent's turn, within a node of a graph that is attached; ``config`` is the node's.

        The turn begins with the first call. It ends with the node, unless the model called tools: then it goes on
        where the agent asks next. Never raises; waits for ``budget_ms`` at most.
        """
        turn = self._asking(config, agent)
        if turn is None:
            return no_context("internal_error", "the adapter failed; its log says how")
        return await self.core.acontext(turn.variables, agent, run=turn.run)

    def context_for_sync(self, config: Mapping[str, Any], *, agent: str) -> ContextReply:
        """Return what ``context_for`` does, for nodes that are not asynchronous."""
        turn = self._asking(config, agent)
        if turn is None:
            return no_context("internal_error", "the adapter failed; its log says how")
        return self.core.context(turn.variables, agent, run=turn.run)

    def publish(
        self, config: Mapping[str, Any], type: str, data: Mapping[str, Any], *, agent: str | None = None
    ) -> None:
        """Publish an event of the runtime's own within a node or tool; ``type`` is a lower-case dotted name."""
        self._tell(config, type, data, agent)

    @quietly
    def _tell(self, config: Mapping[str, Any], type: str, data: Mapping[str, Any], agent: str | None) -> None:
        run = self.runs.get(_around(config))
        with self.runs.lock:
            turn = None if run is None else self.runs.turn_of(run)
            variables = self.langchain.variables(config)
            variables = variables if run is None else self.runs.begun(run, variables)
        mine = turn is not None and agent in {None, turn.agent}
        self.core.tell(
            variables, type, data,
            agent=turn.agent if turn is not None and mine else agent, run=turn.run if turn is not None and mine else "",
        )  # fmt: skip

    @quietly
    def _asking(self, config: Mapping[str, Any], agent: str) -> OpenTurn:
        with self.runs.lock:
            variables = self.langchain.variables(config)
            turn = self.runs.turn(_around(config), agent, variables, _namespace(config), asks=True)
            self.core.start_turn(turn.variables, agent, run=turn.run)
            return turn


@dataclass(frozen=True, slots=True, kw_only=True)
class _LangChain:
    """What is used of LangChain and LangGraph."""

    middleware: Any
    system_message: Any
    callback_handler: Any
    bubble: Any
    parent_command: Any
    get_config: Callable[[], Mapping[str, Any]]
    get_runtime: Callable[[], Any]

    def variables(self, config: Mapping[str, Any], runtime: Any = None) -> dict[str, Any]:
        """Return the context variables of a run; without ``runtime`` it is that of the node around."""
        if runtime is None:
            with contextlib.suppress(Exception):  # outside of all nodes
                runtime = self.get_runtime()
        return values.context_variables(config, getattr(runtime, "context", None))


def _langchain() -> _LangChain:
    require("langchain", extra="langchain", lowest="1.4", below="2", part="agents.middleware")
    errors: Any = importlib.import_module("langgraph.errors")
    found: Mapping[str, Any] = {
        "middleware": importlib.import_module("langchain.agents.middleware").AgentMiddleware,
        "system_message": importlib.import_module("langchain_core.messages").SystemMessage,
        "callback_handler": importlib.import_module("langgraph.callbacks").GraphCallbackHandler,
        "bubble": errors.GraphBubbleUp,
        "parent_command": errors.ParentCommand,
        "get_config": importlib.import_module("langgraph.config").get_config,
        "get_runtime": importlib.import_module("langgraph.runtime").get_runtime,
    }
    return _LangChain(**found)


@dataclass(slots=True, eq=False)
class _Asked:
    """A model call or a tool call under way; ``node`` is where, if the graph is watched."""

    turn: OpenTurn
    node: Run | None
    name: str = ""
    call_id: str = ""
    started_s: float = 0.0


class _AgentHooks:
    """What middleware tells of one agent."""

    def __init__(self, adapter: LangChainAdapter, agent: str | None) -> None:
        self.core = adapter.core
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

    def _node(self) -> Run | None:
        return self._runs.get(_around(self._langchain.get_config()))

    @quietly
    def begin(self, runtime: Any) -> None:
        """The agent begins a turn."""
        with self._runs.lock:
            turn = self._turn(runtime)
            self.core.start_turn(turn.variables, turn.agent, run=turn.run, fresh=True)

    @quietly
    def end(self, runtime: Any, state: Any) -> None:
        """The agent is done, as far as middleware can know: where its graph is watched, its end says so."""
        with self._runs.lock:
            turn = self._turn(runtime)
            if turn.graph is None:
                self._runs.end_turn(turn, values.response(state))

    # Models

    @quietly
    def ask(self, request: Any) -> _Asked:
        """A model is to be asked; returns whose turn that is."""
        with self._runs.lock:
            return _Asked(self._turn(request.runtime), self._node())

    @quietly
    def asking(self, asked: _Asked, request: Any, block: str) -> Any:
        """Return the request with the turn's context."""
        asked.started_s = time.monotonic()
        self._under_way(asked, 1)
        if not block:
            return request
        if request.system_message is None:
            return request.override(system_message=self._langchain.system_message(content=block))
        return request.override(system_message=values.with_block(request.system_message, block))

    @quietly
    def answered(self, asked: _Asked, request: Any, returned: Any) -> None:
        """The model has answered."""
        self._under_way(asked, -1)
        response = getattr(returned, "model_response", returned)
        answer = values.answer(getattr(response, "result", None) or [response], request.model)
        with self._runs.lock:
            asked.turn.waiting = answer.calls
        self._model_call(asked, True, answer.about)

    @quietly
    def failed(self, asked: _Asked, request: Any, error: BaseException) -> None:
        """The model has failed, which is the end of the turn where nobody tells of its graph's."""
        self._under_way(asked, -1)
        if self._runs.bubbles(error):
            return
        about = {**values.answer([], request.model).about, "error_type": type(error).__name__}
        self._model_call(asked, False, about)
        with self._runs.lock:
            if asked.turn.graph is None:
                self._runs.fail_turn(asked.turn, error)

    def _model_call(self, asked: _Asked, success: bool, about: Mapping[str, Any]) -> None:
        more = {"duration_ms": ms_since(asked.started_s), **about}
        turn = asked.turn
        self.core.model_call(turn.variables, turn.agent, run=turn.run, success=success, about=more)

    # Tools

    @quietly
    def call(self, request: Any) -> _Asked:
        """A tool is about to be called."""
        with self._runs.lock:
            call = request.tool_call
            asked = _Asked(self._turn(request.runtime), self._node(), str(call["name"]))
            asked.call_id = str(call.get("id") or uuid4().hex)
            turn = asked.turn
            self.core.start_turn(turn.variables, turn.agent, run=turn.run)
            self.core.start_tool(
                turn.variables, asked.name, asked.call_id,
                arguments=call.get("args"), agent=turn.agent, run=turn.run,
            )  # fmt: skip
        self._under_way(asked, 1)
        return asked

    @quietly
    def returned(self, asked: _Asked, returned: Any) -> None:
        """The tool has returned, or its failure has become a message."""
        self._under_way(asked, -1)
        result = values.tool_result(returned, asked.call_id)
        with self._runs.lock:
            self.core.end_tool(
                asked.turn.variables, asked.name, asked.call_id,
                result=result.value, success=result.success, error=result.error,
                agent=asked.turn.agent, run=asked.turn.run,
            )  # fmt: skip
            self._runs.returned(asked.turn, asked.call_id, values.goes_to(returned, "__parent__"))

    @quietly
    def broken(self, asked: _Asked, error: BaseException) -> None:
        """The tool has raised; one that waits for a person is called once more later."""
        self._under_way(asked, -1)
        if self._runs.bubbles(error):
            return
        with self._runs.lock:
            self.core.end_tool(
                asked.turn.variables, asked.name, asked.call_id, success=False, error=error_text(error),
                agent=asked.turn.agent, run=asked.turn.run,
            )  # fmt: skip
            self._runs.returned(asked.turn, asked.call_id, None)

    def _under_way(self, asked: _Asked, more: int) -> None:
        if asked.node is not None:
            with self._runs.lock:
                asked.node.asking += more


class _Hooks:
    """The methods of LangChain's ``AgentMiddleware``."""

    hooks: _AgentHooks

    def before_agent(self, state: Any, runtime: Any) -> None:
        """See LangChain."""
        self.hooks.begin(runtime)

    async def abefore_agent(self, state: Any, runtime: Any) -> None:
        """See LangChain."""
        self.hooks.begin(runtime)

    def after_agent(self, state: Any, runtime: Any) -> None:
        """See LangChain."""
        self.hooks.end(runtime, state)

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        """See LangChain."""
        self.hooks.end(runtime, state)

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """See LangChain."""
        hooks, asked = self.hooks, self.hooks.ask(request)
        if asked is None:
            return handler(request)
        block = hooks.core.context(asked.turn.variables, asked.turn.agent, run=asked.turn.run).text
        with_context = hooks.asking(asked, request, block) or request
        try:
            returned = handler(with_context)
        except BaseException as error:
            hooks.failed(asked, request, error)
            raise
        hooks.answered(asked, request, returned)
        return returned

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """See LangChain."""
        hooks, asked = self.hooks, self.hooks.ask(request)
        if asked is None:
            return await handler(request)
        block = (await hooks.core.acontext(asked.turn.variables, asked.turn.agent, run=asked.turn.run)).text
        with_context = hooks.asking(asked, request, block) or request
        try:
            returned = await handler(with_context)
        except BaseException as error:
            hooks.failed(asked, request, error)
            raise
        hooks.answered(asked, request, returned)
        return returned

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """See LangChain."""
        hooks, asked = self.hooks, self.hooks.call(request)
        if asked is None:
            return handler(request)
        try:
            returned = handler(request)
        except BaseException as error:
            hooks.broken(asked, error)
            raise
        hooks.returned(asked, returned)
        return returned

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """See LangChain."""
        hooks, asked = self.hooks, self.hooks.call(request)
        if asked is None:
            return await handler(request)
        try:
            returned = await handler(request)
        except BaseException as error:
            hooks.broken(asked, error)
            raise
        hooks.returned(asked, returned)
        return returned


def _around(config: Mapping[str, Any]) -> Any:
    """Return the id of the run that a callback or a node is within."""
    return getattr(config.get("callbacks"), "parent_run_id", None)


def _namespace(config: Mapping[str, Any]) -> str:
    """Return what LangGraph calls the place of a node."""
    configurable: Mapping[str, Any] = config.get("configurable") or {}
    return str(configurable.get("checkpoint_ns") or "")

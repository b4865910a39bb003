"""Microsoft Agent Framework: events of agents and workflows, and context in the instructions of each run.

Rejected: a context provider alone. It is called before and after each run, but not after a run that failed, and a run
that an ``AgentLoopMiddleware`` repeats has several; so ``attach`` also puts a bundle of middleware around all others.
Rejected too: middleware alone. Only what comes from a provider is kept out of histories by the framework itself.

What the middleware of an agent knows of its run reaches the provider, tools and models by a context variable. Streams
are read in their reader's context, so there it is set for each step of the stream and taken back behind it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Self, cast
from uuid import uuid4
from weakref import WeakSet

from graphweft.adapters.core import Adapter
from graphweft.adapters.runtime import RuntimeAdapter
from graphweft.adapters.values import error_text, ms_since
from graphweft.adapters.versions import require

__all__ = (
    "SOURCE",
    "SOURCE_ID",
    "AgentFrameworkAdapter",
    "FrameworkProvider",
    "Next",
    "RulesProvider",
    "framework",
)

type Next = Callable[[], Awaitable[None]]

SOURCE: Final = "/graphweft/agent-framework"
SOURCE_ID: Final = "graphweft"
"""Of the provider: what it adds is marked so, and ``session.state`` holds a session's context variables there."""
_IDS: Final = frozenset({"app_id", "chat_id", "workflow_name", "user_id"})
_ORIGINS: Final = frozenset({"session_id", "chat_id", "thread_id"})
_NO_NAME: Final = "WorkflowBuilder-"
"""How the names begin that workflows without one are given."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Run:
    """A run of an agent, until it is over, or of a workflow."""

    agent: Any
    flow: bool = False
    """Whether it is a workflow's."""
    owned: bool = False
    """Whether middleware tells its end."""
    around: _Run | None
    """The run of which this one is a part."""
    given: Mapping[str, Any]
    """Of the arguments for tools those that the adapter may see."""
    id: str = field(default_factory=lambda: uuid4().hex)
    name: str = ""
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    started: bool = False
    over: bool = False
    response: Any = None
    handed_to: str | None = None
    at_work: int = 0
    """Of a workflow: its agents whose turns are open."""


_RUN: ContextVar[_Run | None] = ContextVar("graphweft_run", default=None)


def _under_way() -> _Run | None:
    """Return the innermost run that is not over."""
    run = _RUN.get()
    while run is not None and run.over:
        run = run.around
    return run


class AgentFrameworkAdapter(RuntimeAdapter):
    """Publishes what agents do and gives them context. ``settings`` are those of ``Adapter``.

    What the settings do not say of ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` comes, the first that
    has it, from ``function_invocation_kwargs`` of the run, from ``session.state["graphweft"]``, and from the run of
    which this one is a part; ``chat_id`` then is the id of the workflow (of its run, where it has none) or of the
    session, and ``workflow_name`` that of the workflow. Raises ``InvalidSettings`` where there is no
    ``agent_framework`` that it knows.
    """

    def __init__(self, adapter: Adapter | None = None, **settings: Any) -> None:
        self._framework = framework()
        super().__init__(adapter, SOURCE, settings)
        self._given = _IDS | frozenset(settings.get("carried") or ())
        self._attached: WeakSet[Any] = WeakSet()
        bundle: Any = self._framework.MiddlewareBundle
        self._bundle = bundle([self._agent_middleware(), *self._inner_middleware()])

    def attach(self, *parts: Any) -> None:
        """Attach to agents, and to workflows with the agents in them, before they run.

        A second time does nothing. Raises ``TypeError`` for anything else, and for agents that take no context.
        """
        for part in parts:
            if isinstance(part, self._framework.RawAgent):
                self._attach_agent(part)
            elif isinstance(part, self._framework.Workflow | self._framework.FunctionalWorkflow):
                self._attach_workflow(part)
            elif isinstance(part, self._framework.WorkflowAgent):
                self._attach_workflow(part.workflow)
            else:
                raise TypeError(f"attach takes agents with context providers, and workflows, not {type(part).__name__}")

    def provider(self, source_id: str = SOURCE_ID, *, as_messages: bool = False) -> Any:
        """Return a context provider for ``context_providers`` of an agent, where it should be the first.

        It works alone, but it is not called after a run that failed: what fails before or behind the model, and
        streams that are not read to their end, are closed as abandoned. With ``middleware`` of the same agent nothing
        is missed. With ``as_messages`` the context is a message before the others, and not part of the instructions.
        """
        return RulesProvider(self, source_id, as_messages=as_messages)

    def middleware(self) -> Any:
        """Return the bundle for ``middleware`` of an agent that has the provider, where it should be the first."""
        return self._bundle

    def publish(self, agent: Any, session: Any, type: str, data: Mapping[str, Any]) -> None:
        """Publish an event of the runtime's own about an agent; ``type`` is a lower-case dotted name.

        Within a run of the agent it is an event of that turn, whatever the session.
        """
        run = _under_way()
        own = run is not None and run.started and run.agent is agent
        with self.core.guarded("publish"):
            self.core.tell(
                self.variables(session), type, data, agent=_name(agent), run=run.id if run is not None and own else ""
            )

    def variables(self, session: Any) -> dict[str, Any]:
        """Return the context variables of the run under way, or of one of the session where none is."""
        run = _under_way()
        if run is not None and run.started:
            return run.variables
        return self._variables(_Run(agent=None, around=run, given={}), session)

    def message(self, text: str) -> Any:
        """Return a message of the framework's own kind, as context has it."""
        return self._framework.Message("user", [text])

    # Agents

    def _attach_agent(self, agent: Any) -> None:
        mine = (each for each in agent.context_providers if isinstance(each, RulesProvider))
        if not any(provider.adapter is self for provider in mine):
            agent.context_providers.insert(0, self.provider())
        if self._bundle not in (agent.middleware or ()):
            agent.middleware = [self._bundle, *(agent.middleware or ())]

    def _agent_middleware(self) -> Any:
        async def graphweft_run(context: Any, call_next: Next) -> None:
            given = self._given_of(context.function_invocation_kwargs)
            run = _Run(agent=context.agent, owned=True, around=_under_way(), given=given)
            try:
                with _within(run):
                    await call_next()
            except self._framework.MiddlewareTermination:
                self._end_turn(run)
                raise
            except BaseException as error:
                self._fail_turn(run, error)
                raise
            if isinstance(context.result, self._framework.ResponseStream):
                stream = _Stream(run, failed=self._fail_turn)
                context.result.with_pull_context_manager(lambda: stream)
                context.result.with_cleanup_hook(lambda: None if stream.ended else self._leave_turn(run))

                def ended(result: Any) -> None:  # one that was closed before its end has a result, too
                    (self._end_turn if stream.ended else self._leave_turn)(run, result)

                context.stream_result_hooks.insert(0, ended)
            else:
                self._end_turn(run, context.result)

        return self._framework.agent_middleware(graphweft_run)

    async def before(self, provider: RulesProvider, agent: Any, session: Any, context: Any) -> None:
        """Begin a turn, unless the run goes on with one, and add its context."""
        run = _under_way()
        if run is None or run.agent is not agent:
            run = _Run(agent=agent, around=run, given={})
            context.extend_middleware(provider.source_id, self._inner_middleware(run))
        context.metadata[provider.source_id] = run
        if not run.started:
            self._start_turn(run, session)
        reply = await self.core.acontext(run.variables, run.name, run=run.id)
        if reply.text and provider.as_messages:
            others = _origins(reply.injected.values(), context.session_id)
            context.extend_messages(provider, [self.message(reply.text)], origin_session_ids=others or None)
        elif reply.text:
            context.extend_instructions(provider.source_id, f"\n{reply.text}")  # an empty line before it

    def after(self, provider: RulesProvider, context: Any) -> None:
        """Note the answer, and end the turn where no middleware will."""
        run = context.metadata.get(provider.source_id)
        if run is not None:
            run.response = _said(context.response)
            if not run.owned:
                self._end_turn(run)

    def _start_turn(self, run: _Run, session: Any) -> None:
        run.started, run.name = True, _name(run.agent)
        run.variables = self._variables(run, session)
        flow = run.around if run.around is not None and run.around.flow else None
        alone = flow is not None and flow.at_work == 0
        if flow is not None:
            flow.at_work += 1
        self.core.start_turn(run.variables, run.name, run=run.id, sequential=alone)

    def _end_turn(self, run: _Run, result: Any = None) -> None:
        if not self._over(run):
            return
        if run.handed_to is not None:
            self.core.hand_over(run.variables, run.name, run.handed_to, run=run.id)
        else:
            said = _said(result)
            self.core.end_turn(run.variables, run.name, run=run.id, response=run.response if said is None else said)

    def _fail_turn(self, run: _Run, error: BaseException) -> None:
        if self._over(run):
            self.core.fail_turn(run.variables, run.name, error, run=run.id)

    def _leave_turn(self, run: _Run, _: Any = None) -> None:
        if self._over(run):
            self.core.abandon_turn(run.variables, run.name, run=run.id)

    def _over(self, run: _Run) -> bool:
        """Mark the run as over; return whether it was open."""
        if not run.started or run.over:
            return False
        run.over, run.agent = True, None
        if run.around is not None:
            run.around.at_work -= 1
        return True

    # Tools and models

    def _inner_middleware(self, own: _Run | None = None) -> list[Any]:
        """Return what stands around tools and models: of the run that is given, or of the one that is under way."""

        async def graphweft_tool(context: Any, call_next: Next) -> None:
            run = own or _RUN.get()
            if run is None or not run.started or run.over:
                await call_next()
                return
            tool, call_id = str(context.function.name), str(context.metadata.get("call_id") or uuid4().hex)
            arguments = _arguments(context.arguments)
            whose = {"agent": run.name, "run": run.id}
            self.core.start_tool(run.variables, tool, call_id, arguments=arguments, **whose)
            try:
                await call_next()
            except self._framework.MiddlewareTermination:
                result = _result(context.result)
                run.handed_to = _handed_to(tool, result)
                self.core.end_tool(run.variables, tool, call_id, result=result, success=True, **whose)
                raise
            except BaseException as error:
                self.core.end_tool(run.variables, tool, call_id, success=False, error=error_text(error), **whose)
                raise
            self.core.end_tool(run.variables, tool, call_id, result=_result(context.result), success=True, **whose)

        async def graphweft_model(context: Any, call_next: Next) -> None:
            run = own or _RUN.get()
            if run is None or not run.started or run.over:
                await call_next()
                return
            started_s = time.monotonic()

            def answered(response: Any) -> None:
                self._model_call(run, started_s, context.options, response)

            def failed(run: _Run, error: BaseException) -> None:
                self._model_call(run, started_s, context.options, error=error)
                if own is not None:
                    self._fail_turn(run, error)

            try:
                await call_next()
            except self._framework.MiddlewareTermination:
                raise
            except BaseException as error:
                failed(run, error)
                raise
            if isinstance(context.result, self._framework.ResponseStream):
                stream = _Stream(_RUN.get() if own is None else None, failed=lambda _, error: failed(run, error))
                context.result.with_pull_context_manager(lambda: stream)

                def ended(response: Any) -> None:
                    if stream.ended:
                        answered(response)

                context.stream_result_hooks.insert(0, ended)
            else:
                answered(context.result)

        return [
            self._framework.function_middleware(graphweft_tool),
            self._framework.chat_middleware(graphweft_model),
        ]

    def _model_call(
        self, run: _Run, started_s: float, options: Any, response: Any = None, error: BaseException | None = None
    ) -> None:
        about: dict[str, Any] = {"duration_ms": ms_since(started_s)}
        with contextlib.suppress(Exception):
            asked_for: Any = options or {}
            model: Any = getattr(response, "model", None) or asked_for.get("model")
            about |= {"model": str(model)} if model else {}
            usage: Any = getattr(response, "usage_details", None) or {}
            for ours, theirs in (("input_tokens", "input_token_count"), ("output_tokens", "output_token_count")):
                about |= {} if usage.get(theirs) is None else {ours: int(usage[theirs])}
        about |= {} if error is None else {"error_type": type(error).__name__}
        self.core.model_call(run.variables, run.name, run=run.id, success=error is None, about=about)

    # Workflows

    def _attach_workflow(self, workflow: Any) -> None:
        if workflow in self._attached:
            return
        self._attached.add(workflow)
        self._attach_agents(workflow)
        run_workflow = workflow.run

        @functools.wraps(run_workflow)
        def run(*args: Any, **named: Any) -> Any:
            if _under_way() is not None:  # a part of another run, whose chat and end are those of the whole
                return run_workflow(*args, **named)
            result = run_workflow(*args, **named)
            flow = _Run(
                agent=None, flow=True, around=None, given=self._given_of(named.get("function_invocation_kwargs"))
            )
            flow.variables = {
                "chat_id": getattr(workflow, "id", None) or flow.id,
                **_workflow_name(workflow),
                **flow.given,
            }
            if not isinstance(result, self._framework.ResponseStream):
                return self._awaited(flow, result)
            stream = _Stream(flow, started=self._start_flow, failed=self._fail_flow)
            result.with_pull_context_manager(lambda: stream)

            def ended(found: Any) -> None:
                if stream.ended:
                    self._end_flow(flow, found)

            return result.with_result_hook(ended)

        workflow.run = run

    def _attach_agents(self, workflow: Any) -> None:
        for executor in getattr(workflow, "executors", {}).values():
            agent: Any = getattr(executor, "agent", None)
            within: Any = getattr(executor, "workflow", None)
            if isinstance(agent, self._framework.RawAgent):
                self._attach_agent(agent)
            within = agent.workflow if isinstance(agent, self._framework.WorkflowAgent) else within
            if isinstance(within, self._framework.Workflow):
                self._attach_agents(within)

    async def _awaited(self, flow: _Run, result: Awaitable[Any]) -> Any:
        self._start_flow(flow)
        try:
            with _within(flow):
                found = await result
        except BaseException as error:
            self._fail_flow(flow, error)
            raise
        self._end_flow(flow, found)
        return found

    def _start_flow(self, flow: _Run) -> None:
        self.core.start_run(flow.variables)

    def _end_flow(self, flow: _Run, found: Any) -> None:
        with contextlib.suppress(Exception):
            if found.get_final_state() == self._framework.WorkflowRunState.IDLE_WITH_PENDING_REQUESTS:
                return  # it waits for somebody's answer, and goes on with that
        flow.over = True
        self.core.end_run(flow.variables, outputs=_outputs(found))

    def _fail_flow(self, flow: _Run, error: BaseException) -> None:
        flow.over = True
        self.core.fail_run(flow.variables, error)

    # Variables

    def _given_of(self, arguments: Any) -> dict[str, Any]:
        """Return of the arguments for tools, which may hold secrets, the ids and what is to be carried by name."""
        arguments = getattr(arguments, "global_kwargs", arguments)
        if not isinstance(arguments, Mapping):
            return {}
        found = cast("Mapping[str, Any]", arguments)
        return {name: found[name] for name in self._given if name in found}

    def _variables(self, run: _Run, session: Any) -> dict[str, Any]:
        own: Any = session.state.get(SOURCE_ID)
        around = {} if run.around is None else run.around.variables
        return {"chat_id": session.session_id, **around, **(own if isinstance(own, Mapping) else {}), **run.given}  # pyright: ignore[reportUnknownVariableType]


class FrameworkProvider:
    """A class of ours whose instances also are the framework's ``ContextProvider``, which is imported only then."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Return an instance of both."""
        return cast("Self", object.__new__(_as_provider(cast("Any", cls))))

    def __init__(self, source_id: str) -> None:
        cast("Any", super()).__init__(source_id)
        self.source_id = source_id


@functools.cache
def _as_provider(kind: type[Any]) -> type[Any]:
    """Return the class that is both ``kind`` and a context provider of the framework."""
    provider = framework().ContextProvider
    return (
        kind if issubclass(kind, provider) else type(kind.__name__, (kind, provider), {"__module__": kind.__module__})
    )


class RulesProvider(FrameworkProvider):
    """Adds what the rules know of a turn. Made by ``AgentFrameworkAdapter.provider``; never raises."""

    def __init__(self, adapter: AgentFrameworkAdapter, source_id: str, *, as_messages: bool) -> None:
        super().__init__(source_id)
        self.adapter = adapter
        self.as_messages = as_messages

    async def before_run(self, *, agent: Any, session: Any, context: Any, state: dict[str, Any]) -> None:
        """Begin the turn."""
        with self.adapter.core.guarded("before_run"):
            await self.adapter.before(self, agent, session, context)

    async def after_run(self, *, agent: Any, session: Any, context: Any, state: dict[str, Any]) -> None:
        """End the turn."""
        with self.adapter.core.guarded("after_run"):
            self.adapter.after(self, context)


class _Stream:
    """Stands around each step of a stream, as the framework's ``with_pull_context_manager`` has it.

    Tells of the first step, and of one that raises; ``ended`` says whether there are no more.
    """

    def __init__(
        self,
        run: _Run | None,
        *,
        failed: Callable[[Any, BaseException], None],
        started: Callable[[_Run], None] | None = None,
    ) -> None:
        self._run, self._started, self._failed = run, started, failed
        self._before: _Run | None = None
        self.ended = False

    def __enter__(self) -> None:
        self._before = _RUN.get()
        if self._run is None:
            return
        _RUN.set(self._run)
        if self._started is not None:
            self._started(self._run)
            self._started = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._run is not None:
            _RUN.set(self._before)
        self._before = None
        if error is not None and not isinstance(error, GeneratorExit):
            self.ended = True
            if not isinstance(error, StopAsyncIteration):
                self._failed(self._run, error)


@contextlib.contextmanager
def _within(run: _Run) -> Generator[None]:
    before = _RUN.get()
    _RUN.set(run)
    try:
        yield
    finally:
        _RUN.set(before)


def framework() -> Any:
    """Return the package. Raises ``InvalidSettings`` where there is none that this adapter knows."""
    return require("agent_framework", extra="agent-framework", lowest="1.23", below="2")


def _origins(values: Iterable[Any], session_id: str | None) -> list[str]:
    """Return the ids of other sessions that rows among the values name (``session_id``, ``chat_id``, ``thread_id``)."""
    lists: list[list[Any]] = [value for value in values if isinstance(value, list)]
    rows: list[Mapping[Any, Any]] = [row for rows in lists for row in rows if isinstance(row, Mapping)]
    found = {
        str(value): None
        for row in rows
        for name, value in row.items()
        if str(name).rpartition(".")[2] in _ORIGINS and value and value != session_id
    }
    return list(found)


def _name(agent: Any) -> str:
    return str(getattr(agent, "name", None) or getattr(agent, "id", None) or "agent")


def _workflow_name(workflow: Any) -> dict[str, str]:
    name = str(getattr(workflow, "name", None) or "")
    return {"workflow_name": name} if name and not name.startswith(_NO_NAME) else {}


def _arguments(arguments: Any) -> Any:
    with contextlib.suppress(Exception):  # the runtime's own values
        return arguments.model_dump() if hasattr(arguments, "model_dump") else arguments
    return None


def _said(result: Any) -> str | None:
    """Return the text of a response; None without any."""
    try:
        return result.text or None
    except Exception:  # noqa: BLE001 - the runtime's own values
        return None


def _result(result: Any) -> Any:
    """Return what a tool has returned: its text where it was made contents of."""
    try:
        return result if isinstance(result, str) else "\n".join([content.text + "" for content in result])
    except Exception:  # noqa: BLE001 - no contents, or some that are no text
        return result


def _handed_to(tool: str, result: Any) -> str | None:
    """Return whom a tool of a hand-off workflow hands over to."""
    with contextlib.suppress(Exception):
        if tool.startswith("handoff_to_"):
            return str(json.loads(result)["handoff_to"])
    return None


def _outputs(found: Any) -> list[Any]:
    """Return the outputs of a workflow as texts where they have any; the pieces of a streamed answer are one."""
    outputs: list[Any] = []
    last: Any = None
    with contextlib.suppress(Exception):
        for output in found.get_outputs():
            text = output if isinstance(output, str) else getattr(output, "text", None)
            piece = (type(output).__name__ == "AgentResponseUpdate", getattr(output, "author_name", None))
            if piece[0] and piece == last:
                outputs[-1] += text or ""
            else:
                outputs.append(output if text is None else text)
            last = piece
    return [output for output in outputs if output != ""]

"""Microsoft Agent Framework: events of agents and workflows, and context in the prompts of each run.

Rejected: a context provider alone. It is not called after a run that failed, and is called several times for a run that
an ``AgentLoopMiddleware`` repeats; so ``attach`` also adds a bundle of middleware around all others. Also rejected:
middleware alone. The framework keeps only the content of providers out of histories.

A context variable passes the run from the agent's middleware to the provider, tools and models. A stream runs in the
context of its reader, so there the variable is set for each step of the stream and reset after it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast
from uuid import uuid4
from weakref import WeakSet

from typing_extensions import Self

from graphweft.adapters.context_place import DEFAULT_PLACE, Attempt, ContextPlace, joined, placed
from graphweft.adapters.core import Adapter
from graphweft.adapters.values import IDS, about_model, error_text
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_runtimes.runtime_adapter import RuntimeAdapter
from graphweft_runtimes.versions import require

Next: TypeAlias = Callable[[], Awaitable[None]]

SOURCE: Final = "/graphweft/agent-framework"
SOURCE_ID: Final = "graphweft"
"""The id of the provider. It marks the added content, and is the key of context variables in ``session.state``."""
_ORIGINS: Final = frozenset({"session_id", "chat_id", "thread_id"})
_SAID: Final = frozenset({"text", "data", "uri", "hosted_file"})
"""Types of contents that a user says or shows; others approve a call of a tool, or hold its result."""
_KEEPS: Final = "require_per_service_call_history_persistence"
"""The attribute of an agent whose history is written around each model call, with what its messages hold."""
_GENERATED_NAME: Final = "WorkflowBuilder-"
"""The prefix of the names that the framework generates for workflows."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Run:
    """A run of an agent or a workflow."""

    agent: Any
    flow: bool = False
    """Whether it is a run of a workflow."""
    owned: bool = False
    """Whether middleware reports its end."""
    around: _Run | None
    """The run that contains this one."""
    given: Mapping[str, Any]
    """The arguments for tools that the adapter may see."""
    id: str = field(default_factory=lambda: uuid4().hex)
    name: str = ""
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    started: bool = False
    asks: bool = False
    """Whether the middleware of its model adds the context."""
    over: bool = False
    response: Any = None
    handed_to: str | None = None
    open_turns: int = 0
    """For a workflow: the number of its open turns."""


_RUN: ContextVar[_Run | None] = ContextVar("graphweft_run", default=None)


def _open_run() -> _Run | None:
    """Return the innermost open run."""
    run = _RUN.get()
    while run is not None and run.over:
        run = run.around
    return run


class AgentFrameworkAdapter(RuntimeAdapter):
    """Emits events of agents and workflows, and gives agents context. ``settings`` are those of ``Adapter``.

    ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` default to the first of ``function_invocation_kwargs`` of
    the run, ``session.state["graphweft"]`` and the run around it that has them. The default chat id is that of the
    workflow, of its run or of the session; the default workflow name is that of the workflow. Raises
    ``InvalidSettings`` without a supported version of ``agent_framework``.
    """

    def __init__(
        self, adapter: Adapter | None = None, *, context_place: ContextPlace = DEFAULT_PLACE, **settings: Any
    ) -> None:
        self._framework = framework()
        super().__init__(adapter, SOURCE, settings, context_place=context_place)
        self._given = frozenset(IDS) | frozenset(settings.get("carried") or ())
        self._attached: WeakSet[Any] = WeakSet()
        bundle: Any = self._framework.MiddlewareBundle
        self._bundle = bundle([self._agent_middleware(), *self._inner_middleware()])

    def attach(self, *parts: Any) -> None:
        """Attach to agents, and to workflows with their agents, before they run.

        Attaching twice has no effect. Raises ``TypeError`` for other objects, and for agents without context providers.
        """
        for part in parts:
            if isinstance(part, self._framework.RawAgent):
                self._attach_agent(part)
            elif isinstance(part, self._framework.Workflow | self._framework.FunctionalWorkflow):
                self._attach_workflow(part)
            elif isinstance(part, self._framework.WorkflowAgent):
                self._attach_workflow(part.workflow)
            else:
                raise TypeError(
                    f"cannot attach to {type(part).__name__}: expected agents or workflows of Agent Framework"
                )

    def provider(self, source_id: str = SOURCE_ID, *, as_messages: bool = False) -> Any:
        """Return a context provider. Put it first into ``context_providers`` of an agent.

        Without ``middleware`` the framework does not call it after a failed run: failures outside of the model call,
        and streams that are not read to the end, then end the turn as abandoned. With ``as_messages`` the context is a
        message before the others instead of a part of the instructions.
        """
        return RulesProvider(self, source_id, as_messages=as_messages)

    def middleware(self) -> Any:
        """Return a bundle. Put it first into ``middleware`` of an agent that has the provider."""
        return self._bundle

    def publish(self, agent: Any, session: Any, type: str, data: Mapping[str, Any]) -> None:
        """Emit your own event about an agent; ``type`` is a lower-case dotted name.

        Within a run of the agent the event belongs to that turn, whatever the session.
        """
        run = _open_run()
        own = run is not None and run.started and run.agent is agent
        with self.core.guarded("publish"):
            self.core.emit(
                self.variables(session), type, data, agent=_name(agent), run=run.id if run is not None and own else ""
            )

    def variables(self, session: Any) -> dict[str, Any]:
        """Return the context variables of the open run, or else of a new run of the session."""
        run = _open_run()
        if run is not None and run.started:
            return run.variables
        return self._variables(_Run(agent=None, around=run, given={}), session)

    def message(self, text: str) -> Any:
        """Return a user message of the framework."""
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
            run = _Run(agent=context.agent, owned=True, around=_open_run(), given=given)
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

                def ended(result: Any) -> None:  # a stream closed before its end has a result too
                    (self._end_turn if stream.ended else self._leave_turn)(run, result)

                context.stream_result_hooks.insert(0, ended)
            else:
                self._end_turn(run, context.result)

        return self._framework.agent_middleware(graphweft_run)

    async def before(self, provider: RulesProvider, agent: Any, session: Any, context: Any) -> None:
        """Start a turn, unless the run has one, and add its context."""
        run = _open_run()
        if run is None or run.agent is not agent:
            run = _Run(agent=agent, around=run, given={})
            context.extend_middleware(provider.source_id, self._inner_middleware(run))
        context.metadata[provider.source_id] = run
        if not run.started:
            self._start_turn(run, session)
        said = map(_read, asked_messages(agent, context))
        reply = await self.core.acontext(run.variables, run.name, run=run.id, messages=said)
        run.asks = not provider.as_messages and isinstance(agent.client, self._framework.ChatMiddlewareLayer)
        if run.asks:
            return
        if reply.text and provider.as_messages:
            others = _origins(reply.injected.values(), context.session_id)
            context.extend_messages(provider, [self.message(reply.text)], origin_session_ids=others or None)
        elif reply.text:
            context.extend_instructions(provider.source_id, f"\n{reply.text}")  # an empty line before it

    def after(self, provider: RulesProvider, context: Any) -> None:
        """Keep the answer, and end the turn if no middleware does."""
        run = context.metadata.get(provider.source_id)
        if run is not None:
            run.response = _text(context.response)
            if not run.owned:
                self._end_turn(run)

    def _start_turn(self, run: _Run, session: Any) -> None:
        run.started, run.name = True, _name(run.agent)
        run.variables = self._variables(run, session)
        flow = run.around if run.around is not None and run.around.flow else None
        alone = flow is not None and flow.open_turns == 0
        if flow is not None:
            flow.open_turns += 1
        self.core.start_turn(run.variables, run.name, run=run.id, sequential=alone)

    def _end_turn(self, run: _Run, result: Any = None) -> None:
        if not self._over(run):
            return
        if run.handed_to is not None:
            self.core.hand_over(run.variables, run.name, run.handed_to, run=run.id)
        else:
            text = _text(result)
            self.core.end_turn(run.variables, run.name, run=run.id, response=run.response if text is None else text)

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
            run.around.open_turns -= 1
        return True

    # Tools and models

    def _inner_middleware(self, own: _Run | None = None) -> list[Any]:
        """Return the middleware of tools and models, for the run ``own`` or else the current one."""
        return [
            self._framework.function_middleware(self._tool_middleware(own)),
            self._framework.chat_middleware(self._model_middleware(own)),
        ]

    def _tool_middleware(self, own: _Run | None) -> Callable[[Any, Next], Awaitable[None]]:
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

        return graphweft_tool

    def _model_middleware(self, own: _Run | None) -> Callable[[Any, Next], Awaitable[None]]:
        async def graphweft_model(context: Any, call_next: Next) -> None:
            run = own or _RUN.get()
            if run is None or not run.started or run.over:
                await call_next()
                return
            attempt = await self._asking(run, context)
            started_s = SYSTEM_CLOCK.monotonic()

            def answered(response: Any) -> None:
                self._model_call(run, started_s, context.options, response)

            def failed(run: _Run, error: BaseException) -> None:
                self._model_call(run, started_s, context.options, error=error)
                if own is not None:
                    self._fail_turn(run, error)

            async def ask(prompt: _Prompt) -> None:
                prompt.into(context)
                try:
                    await call_next()
                finally:
                    attempt.plain.into(context)

            try:
                await attempt.aask(ask)
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

        return graphweft_model

    async def _asking(self, run: _Run, context: Any) -> Attempt[_Prompt]:
        """Return a model call with the context of its turn."""
        found = plain = _Prompt(context.messages, context.options)
        with self.core.guarded("adding the context"):
            block = (await self.core.acontext(run.variables, run.name, run=run.id)).text if run.asks else ""
            found = self._with_block(run, plain, block) if block else plain
        return self.attempt(plain, found, run.variables, run.name, run=run.id)

    def _with_block(self, run: _Run, prompt: _Prompt, block: str) -> _Prompt:
        def put(message: Any, block: str) -> Any:
            found, contents = copy.copy(message), list(message.contents)
            last = contents.pop().text if contents[-1].type == "text" else None
            found.contents = [*contents, *self.message(joined(last, block)).contents]
            return found

        options: Mapping[str, Any] = prompt.options or {}
        is_kept = options.get("conversation_id") or getattr(run.agent, _KEEPS, False)
        place: ContextPlace = "instructions" if is_kept else self.place
        messages = placed(prompt.messages, block, place, put=put, own=self.message, read=_read)
        if messages is not None:
            return _Prompt(messages, prompt.options)
        return _Prompt(prompt.messages, {**options, "instructions": joined(options.get("instructions"), block)})

    def _model_call(
        self, run: _Run, started_s: float, options: Any, response: Any = None, error: BaseException | None = None
    ) -> None:
        found: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            requested: Any = options or {}
            found["model"] = getattr(response, "model", None) or requested.get("model")
            usage: Any = getattr(response, "usage_details", None) or {}
            for ours, theirs in (("input_tokens", "input_token_count"), ("output_tokens", "output_token_count")):
                found[ours] = None if usage.get(theirs) is None else int(usage[theirs])
        about = about_model(started_s, error=error, **found)
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
            if _open_run() is not None:  # part of another run, which has the chat and the end
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
                return  # it waits for an answer, and continues with it
        flow.over = True
        self.core.end_run(flow.variables, outputs=_outputs(found))

    def _fail_flow(self, flow: _Run, error: BaseException) -> None:
        flow.over = True
        self.core.fail_run(flow.variables, error)

    # Variables

    def _given_of(self, arguments: Any) -> dict[str, Any]:
        """Return the ids and the ``carried`` variables in the arguments for tools; the others may be secret."""
        arguments = getattr(arguments, "global_kwargs", arguments)
        if not isinstance(arguments, Mapping):
            return {}
        found = cast("Mapping[str, Any]", arguments)
        return {name: found[name] for name in self._given if name in found}

    def _variables(self, run: _Run, session: Any) -> dict[str, Any]:
        own: Any = session.state.get(SOURCE_ID)
        around = {} if run.around is None else run.around.variables
        return {"chat_id": session.session_id, **around, **(own if isinstance(own, Mapping) else {}), **run.given}  # pyright: ignore[reportUnknownVariableType]


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What a model gets: messages, and options with the instructions."""

    messages: Sequence[Any]
    options: Mapping[str, Any] | None

    def into(self, context: Any) -> None:
        context.messages, context.options = self.messages, self.options


def _read(message: Any) -> dict[str, Any]:
    """Return a message as the form of chats. One of the user that says nothing is an answer to a tool."""
    role, is_said = str(message.role), any(each.type in _SAID for each in message.contents)
    return {"role": "tool" if role == "user" and not is_said else role, "content": str(message.text)}


def asked_messages(agent: Any, context: Any) -> list[Any]:
    """Return the messages of a run, with those of its history before them."""
    histories = {each.source_id for each in agent.context_providers if hasattr(each, "get_messages")}
    return [*context.get_messages(sources=histories), *context.input_messages]


class FrameworkProvider:
    """A base class whose instances are also the framework's ``ContextProvider``, imported when one is made."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Return an instance of both classes."""
        return cast("Self", object.__new__(_as_provider(cast("Any", cls))))

    def __init__(self, source_id: str) -> None:
        cast("Any", super()).__init__(source_id)
        self.source_id = source_id


@functools.cache
def _as_provider(kind: type[Any]) -> type[Any]:
    """Return a class that is both ``kind`` and a context provider of the framework."""
    provider = framework().ContextProvider
    return (
        kind if issubclass(kind, provider) else type(kind.__name__, (kind, provider), {"__module__": kind.__module__})
    )


class RulesProvider(FrameworkProvider):
    """Adds the context of a turn. Made by ``AgentFrameworkAdapter.provider``; never raises."""

    def __init__(self, adapter: AgentFrameworkAdapter, source_id: str, *, as_messages: bool) -> None:
        super().__init__(source_id)
        self.adapter = adapter
        self.as_messages = as_messages

    async def before_run(self, *, agent: Any, session: Any, context: Any, state: dict[str, Any]) -> None:
        """Start the turn."""
        with self.adapter.core.guarded("before_run"):
            await self.adapter.before(self, agent, session, context)

    async def after_run(self, *, agent: Any, session: Any, context: Any, state: dict[str, Any]) -> None:
        """End the turn."""
        with self.adapter.core.guarded("after_run"):
            self.adapter.after(self, context)


class _Stream:
    """Wraps each step of a stream, for the framework's ``with_pull_context_manager``.

    Calls ``started`` at the first step and ``failed`` for a step that raises. ``ended`` is true after the last step.
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
    """Return the package. Raises ``InvalidSettings`` without a supported version."""
    return require("agent_framework", extra="agent-framework", lowest="1.23", below="2")


def _origins(values: Iterable[Any], session_id: str | None) -> list[str]:
    """Return the ids of other sessions in the rows (``session_id``, ``chat_id``, ``thread_id``)."""
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
    return {"workflow_name": name} if name and not name.startswith(_GENERATED_NAME) else {}


def _arguments(arguments: Any) -> Any:
    with contextlib.suppress(Exception):  # values of the runtime
        return arguments.model_dump() if hasattr(arguments, "model_dump") else arguments
    return None


def _text(result: Any) -> str | None:
    """Return the text of a response, or None without text."""
    try:
        return result.text or None
    except Exception:  # noqa: BLE001 - values of the runtime
        return None


def _result(result: Any) -> Any:
    """Return a tool's result; contents with text are joined."""
    try:
        return result if isinstance(result, str) else "\n".join([content.text + "" for content in result])
    except Exception:  # noqa: BLE001 - not contents, or contents without text
        return result


def _handed_to(tool: str, result: Any) -> str | None:
    """Return the agent that a tool of a hand-off workflow hands over to."""
    with contextlib.suppress(Exception):
        if tool.startswith("handoff_to_"):
            return str(json.loads(result)["handoff_to"])
    return None


def _outputs(found: Any) -> list[Any]:
    """Return the outputs of a workflow, as text if they have any. Parts of a streamed answer are joined."""
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

"""OpenAI Agents SDK (``agents``): events of runs, turns and tools, and context in the instructions of each turn.

Rejected: a tracing processor. It sees more, but without the caller's context object, not at all where tracing is off,
and it cannot put anything into a prompt. Hooks and the input filter of a run see nearly all; what they do not (errors,
a run's end, whether a tool failed, an agent inside a tool), the entrances here and a note around tools do.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import inspect
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, cast
from uuid import uuid4

from graphweft.adapters.core import Adapter
from graphweft.adapters.runtime import RuntimeAdapter
from graphweft.adapters.values import error_text, ms_since, parsed
from graphweft.adapters.versions import require

__all__ = ("OpenAIAgentsAdapter",)

logger = logging.getLogger("graphweft.adapters")

_SOURCE: Final = "/graphweft/openai-agents"
_UNNAMED: Final = "Agent workflow"
"""The SDK's name of a workflow that has none."""
_IDS: Final = ("app_id", "chat_id", "workflow_name", "user_id")
_CALL: Final = "_graphweft_call"
"""The attribute of a tool call's context that holds our ``_Call``; it lives as long as the call."""
_CHATS: Final = 10_000
"""Chats without a run of ours whose state is kept."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Run:
    """A run of ours, or what takes place inside one of its tools, or all runs of a chat that have our hooks alone."""

    owner: OpenAIAgentsAdapter
    key: str
    """Tells this run's turns from those of others in the chat."""
    ids: Mapping[str, str] = field(default_factory=dict[str, str])
    """For those that the context object does not say."""
    model: Any = None
    """The run's own model, for all of its agents."""
    alone: bool = False
    """Only hooks and filter know of it."""
    resumed: bool = False
    """It goes on from a state, and so may its turn: the SDK tells of the agent's start once more."""
    chat: tuple[str, str] = ("", "")
    agent: str | None = None
    """Whose turn is open."""
    asked_s: float | None = None
    """Since when a model is at work."""
    calls: dict[str, _Call] = field(default_factory=dict[str, "_Call"])


@dataclass(slots=True, eq=False, kw_only=True)
class _Call:
    """A tool call that has begun."""

    id: str
    tool: str
    agent: str
    inner: _Run
    variables: Mapping[str, Any]
    failure: str | None = None

    def failed(self, error: Exception) -> None:
        """The tool raised, whatever the SDK makes of it; an agent that works inside it fails with it."""
        with contextlib.suppress(Exception):
            self.failure = error_text(error)
            self.inner.owner.inner_failed(self, error)


_RUN: ContextVar[_Run | None] = ContextVar("graphweft_openai_agents_run", default=None)


class OpenAIAgentsAdapter(RuntimeAdapter):
    """Publishes what agents do and gives them context. ``settings`` are those of ``Adapter``.

    ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` come from the run's context object where the settings do
    not say them: a mapping's keys or an object's attributes. Without a chat id there, it is the session's, the
    conversation's or the group's. Raises ``InvalidSettings`` where there is no ``agents`` that it knows.
    """

    def __init__(self, adapter: Adapter | None = None, **settings: Any) -> None:
        self._agents: Any = require("agents", extra="openai-agents", lowest="0.24", below="0.25", part="run")
        super().__init__(adapter, _SOURCE, settings)
        self._fixed = {name: str(settings.get(name) or "") for name in ("app_id", "chat_id")}
        self._lock = threading.Lock()
        self._active: dict[tuple[str, str], set[str]] = {}
        self._alone: OrderedDict[tuple[str, str], _Run] = OrderedDict()
        self._hooks_base: Any = self._agents.lifecycle.RunHooksBase
        self._hooks: Any = _hooks_type(self._hooks_base)(self, None)

    # Entrances

    async def run(self, starting_agent: Any, input: Any, **options: Any) -> Any:
        """Return what ``Runner.run`` does, and raise what it does; it takes the same arguments."""
        run, named = self._begin(starting_agent, options, input)
        token = _RUN.set(run)
        try:
            result = await self._agents.Runner.run(starting_agent, input, **named)
        except BaseException as error:
            self._failed(run, options, input, starting_agent, error)
            raise
        finally:
            _RUN.reset(token)
        self._ended(run, options, input, result)
        return result

    def run_sync(self, starting_agent: Any, input: Any, **options: Any) -> Any:
        """Return what ``Runner.run_sync`` does, and raise what it does; it takes the same arguments."""
        run, named = self._begin(starting_agent, options, input)
        token = _RUN.set(run)
        try:
            result = self._agents.Runner.run_sync(starting_agent, input, **named)
        except BaseException as error:
            self._failed(run, options, input, starting_agent, error)
            raise
        finally:
            _RUN.reset(token)
        self._ended(run, options, input, result)
        return result

    def run_streamed(self, starting_agent: Any, input: Any, **options: Any) -> Any:
        """Return what ``Runner.run_streamed`` does, and raise what it does; it takes the same arguments.

        The run ends when its task does, whether or not somebody reads the stream.
        """
        run, named = self._begin(starting_agent, options, input)
        token = _RUN.set(run)
        try:
            result = self._agents.Runner.run_streamed(starting_agent, input, **named)
        except BaseException as error:
            self._failed(run, options, input, starting_agent, error)
            raise
        finally:
            _RUN.reset(token)

        def done(task: Any) -> None:
            error = self._stream_error(task, result)
            if error is None:
                self._ended(run, options, input, result)
            else:
                self._failed(run, options, input, starting_agent, error)

        with contextlib.suppress(Exception):
            result.run_loop_task.add_done_callback(done)
        return result

    @property
    def hooks(self) -> Any:
        """``RunHooks`` for runs that are started without ``run`` of this adapter, and for agents that are tools."""
        return self._hooks

    async def call_model_input_filter(self, data: Any) -> Any:
        """Put the turn's context below the instructions; for the ``RunConfig`` of runs that are started elsewhere."""
        try:
            run = self._run(data.context)
            variables = _with_ids(run.ids, _variables(data.context))
            agent = data.agent.name
            if run.agent is not None and run.agent != agent and not run.alone:  # a hand-over that no hook has told of
                self.core.hand_over(variables, run.agent, agent, run=run.key)
            run.agent = agent
            block = (await self.core.acontext(variables, agent, run=run.key)).text
            said = data.model_data.instructions
            if not block or (said is not None and block in said):
                return data.model_data
            return dataclasses.replace(data.model_data, instructions=f"{said}\n\n{block}" if said else block)
        except Exception:  # the model is asked, without us
            logger.exception("the context cannot be put into the instructions")
            return data.model_data

    # Runs

    def _begin(self, agent: Any, options: Mapping[str, Any], input: Any) -> tuple[_Run, dict[str, Any]]:
        """Return the run, told of by now, and the arguments for the runner: with our hooks and our filter."""
        named = dict(options)
        run = _Run(owner=self, key=uuid4().hex, resumed=isinstance(input, self._agents.RunState))
        try:
            run.ids, run.model = _runtime_ids(options), _configured(options, "model")
            variables = self._of(run, self._given(options, input))
            run.chat = self._chat(variables)
            with self._lock:
                others = self._active.setdefault(run.chat, set())
                run.key = "" if "" not in others else run.key
                others.add(run.key)
            self.core.start_run(variables)
            named["hooks"] = self._with_hooks(options.get("hooks"))
            named["run_config"] = self._with_filter(options.get("run_config"))
        except Exception:  # the run goes on, without us
            logger.exception("the run cannot be attached to")
        return run, named

    def _ended(self, run: _Run, options: Mapping[str, Any], input: Any, result: Any) -> None:
        with contextlib.suppress(Exception):
            variables = self._of(run, self._given(options, input))
            last = self._leave(run)
            if getattr(result, "interruptions", None):
                return  # the turn goes on when its tools are approved
            output = result.final_output
            if run.agent is not None and output is not None:
                self.core.end_turn(variables, run.agent, run=run.key, response=output)
            if last:
                self.core.end_run(variables, outputs=output)

    def _failed(
        self, run: _Run, options: Mapping[str, Any], input: Any, starting_agent: Any, error: BaseException
    ) -> None:
        with contextlib.suppress(Exception):
            variables = self._of(run, self._given(options, input))
            last = self._leave(run)
            for call in run.calls.values():
                if call.failure is not None:
                    self.core.end_tool(
                        variables, call.tool, call.id, success=False, error=call.failure, agent=call.agent, run=run.key
                    )
            if run.agent is not None:
                self._close_failed(run, variables, error)
            elif not last:  # the turns of the chat's other runs go on
                self.core.fail_turn(variables, str(starting_agent.name), error, run=run.key)
            if last:
                self.core.fail_run(variables, error)

    def _close_failed(self, run: _Run, variables: Mapping[str, Any], error: BaseException) -> None:
        agent, run.agent = cast("str", run.agent), None
        if run.asked_s is not None:
            about = {"duration_ms": ms_since(run.asked_s), "error_type": type(error).__name__}
            self.core.model_call(variables, agent, run=run.key, success=False, about=about)
        self.core.fail_turn(variables, agent, error, run=run.key)

    def _leave(self, run: _Run) -> bool:
        """Return whether this was the last run of ours in its chat."""
        with self._lock:
            others = self._active.get(run.chat, set())
            others.discard(run.key)
            if not others:
                self._active.pop(run.chat, None)
            return not others

    def _stream_error(self, task: Any, result: Any) -> BaseException | None:
        """Return what the reader of the stream is told, or would be."""
        try:
            tripped = [one for one in result.input_guardrail_results if one.output.tripwire_triggered]
            if tripped:
                return cast("BaseException", self._agents.InputGuardrailTripwireTriggered(tripped[0]))
            if task.cancelled():
                return asyncio.CancelledError()
            if task.exception() is not None:
                return cast("BaseException", task.exception())
            most = result.max_turns
            if result.final_output is None and most is not None and result.current_turn > most:
                return cast("BaseException", self._agents.MaxTurnsExceeded(f"Max turns ({most}) exceeded"))
        except Exception:
            logger.exception("the end of a stream is not understood")
        return None

    def _with_hooks(self, theirs: Any) -> Any:
        if theirs is None or theirs is self._hooks:
            return self._hooks
        if not isinstance(theirs, self._hooks_base):
            return theirs  # which the runner refuses
        return type(self._hooks)(self, theirs)

    def _with_filter(self, config: Any) -> Any:
        """Return a copy of the run's configuration; without one of the caller's the runner still makes it itself, and
        then closes what it makes with it.
        """
        if config is None or isinstance(config, Mapping):
            known = dict(cast("Mapping[str, Any]", config or {}))
            return {**known, "call_model_input_filter": self._after(known.get("call_model_input_filter"))}
        found = copy.copy(config)
        found.call_model_input_filter = self._after(config.call_model_input_filter)
        return found

    def _after(self, theirs: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        """Return a filter that does what theirs does, and then ours."""
        if theirs is None:
            return self.call_model_input_filter

        async def call_model_input_filter(data: Any) -> Any:
            found = theirs(data)
            found = await found if inspect.isawaitable(found) else found
            if not isinstance(found, self._agents.run.ModelInputData):
                return found  # which the runner refuses
            return await self.call_model_input_filter(dataclasses.replace(data, model_data=found))

        return call_model_input_filter

    # What the hooks tell

    def agent_started(self, context: Any, agent: Any) -> None:
        """A turn begins."""
        run, variables = self._here(context)
        run.agent, run.resumed, resumed = agent.name, False, run.resumed
        self.core.start_turn(variables, agent.name, run=run.key, fresh=not resumed)

    def agent_ended(self, context: Any, agent: Any, output: Any) -> None:
        """The agent has answered."""
        run, variables = self._here(context)
        run.agent = None
        self.core.end_turn(variables, agent.name, run=run.key, response=output)

    def handed_over(self, context: Any, agent: Any, to: Any) -> None:
        """Another agent is next; nothing else tells that this one's turn has ended."""
        run, variables = self._here(context)
        run.agent = None
        self.core.hand_over(variables, agent.name, to.name, run=run.key)

    def model_asked(self, context: Any, agent: Any) -> None:
        """A model is at work."""
        run, _ = self._here(context)
        run.agent, run.asked_s = agent.name, time.monotonic()

    def model_answered(self, context: Any, agent: Any, response: Any) -> None:
        """The model has answered."""
        run, variables = self._here(context)
        about = {**_model(run.model or agent.model), **_tokens(response)}
        if run.asked_s is not None:
            about["duration_ms"] = ms_since(run.asked_s)
        run.asked_s = None
        self.core.model_call(variables, agent.name, run=run.key, success=True, about=about)

    def tool_started(self, context: Any, agent: Any, tool: Any) -> None:
        """A tool is about to be called."""
        run, variables = self._here(context)
        run.agent = run.agent or agent.name
        call_id = str(getattr(context, "tool_call_id", None) or uuid4().hex)
        arguments = parsed(getattr(context, "tool_arguments", None))
        inner = _Run(owner=self, key=f"{run.key}/{call_id}", ids=run.ids, model=run.model)
        call = run.calls[call_id] = _Call(
            id=call_id, tool=tool.name, agent=agent.name, inner=inner, variables=variables
        )  # fmt: skip
        with contextlib.suppress(Exception):
            if hasattr(context, "tool_call_id"):
                setattr(context, _CALL, call)
                _note(tool)
        self.core.start_tool(
            variables, tool.name, call_id, arguments=arguments, agent=agent.name, run=run.key
        )  # fmt: skip

    def tool_ended(self, context: Any, tool: Any, result: Any) -> None:
        """The tool has returned, or what the SDK makes of its failure has."""
        run, variables = self._here(context)
        call_id = getattr(context, "tool_call_id", None)
        if call_id is None:  # shells and computers: their calls of one name follow one another
            call_id = next((one.id for one in run.calls.values() if one.tool == tool.name), uuid4().hex)
        call = run.calls.pop(str(call_id), None)
        failure = (None if call is None else call.failure) or self._other_failure(tool, result)
        if call is not None and call.inner.agent is not None:  # an agent that worked here, and has no hooks
            agent, call.inner.agent = call.inner.agent, None
            self.core.end_turn(variables, agent, run=call.inner.key, response=result)
        self.core.end_tool(
            variables, tool.name, str(call_id), result=result, success=failure is None, error=failure,
            agent=None if call is None else call.agent, run=run.key,
        )  # fmt: skip

    def inner_failed(self, call: _Call, error: Exception) -> None:
        """The tool in which an agent works has raised."""
        if call.inner.agent is not None:
            self._close_failed(call.inner, call.variables, error)

    def _other_failure(self, tool: Any, result: Any) -> str | None:
        """Return what the call's span says to have failed, or that it took too long; spans are there with tracing."""
        with contextlib.suppress(Exception):
            span = self._agents.get_current_span()
            if span is not None and span.span_data.type == "function" and span.error:
                return str(span.error["message"])
        with contextlib.suppress(Exception):
            late = self._agents.tool.default_tool_timeout_error_message
            if tool.timeout_seconds and result == late(tool_name=tool.name, timeout_seconds=tool.timeout_seconds):
                return str(result)
        return None

    # Where it happens

    def _here(self, context: Any) -> tuple[_Run, Mapping[str, Any]]:
        run = self._run(context.context)
        return run, self._of(run, context.context)

    def _of(self, run: _Run, context: Any) -> Mapping[str, Any]:
        return _with_ids(run.ids, _variables(context))

    def _run(self, context: Any) -> _Run:
        """Return the run that this is called in; where it was started without us, one that all of its chat share."""
        run = _RUN.get()
        if run is not None and run.owner is self:
            return run
        chat = self._chat(_variables(context))
        with self._lock:
            found = self._alone.get(chat) or _Run(owner=self, key="", alone=True, ids={"workflow_name": _UNNAMED})
            self._alone[chat] = found
            self._alone.move_to_end(chat)
            if len(self._alone) > _CHATS:
                self._alone.popitem(last=False)
            return found

    def _given(self, options: Mapping[str, Any], input: Any) -> Any:
        """Return the context object of a run, of the state that it goes on from where it has none of its own."""
        context: Any = options.get("context")
        if context is None:
            context = getattr(input, "_context", None)
        return context.context if isinstance(context, self._agents.RunContextWrapper) else context

    def _chat(self, variables: Mapping[str, Any]) -> tuple[str, str]:
        app_id, chat_id = (self._fixed[name] or str(variables.get(name) or "") for name in ("app_id", "chat_id"))
        return app_id, chat_id


def _hooks_type(base: Any) -> Any:
    """Return the type of our hooks, which call theirs too where there are some."""

    class Hooks(base):  # type: ignore[misc]
        def __init__(self, adapter: OpenAIAgentsAdapter, theirs: Any) -> None:
            self._adapter = adapter
            self._theirs: Any = base() if theirs is None else theirs

        async def on_agent_start(self, context: Any, agent: Any) -> None:
            with _quietly():
                self._adapter.agent_started(context, agent)
            await self._theirs.on_agent_start(context, agent)

        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
            with _quietly():
                self._adapter.agent_ended(context, agent, output)
            await self._theirs.on_agent_end(context, agent, output)

        async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
            with _quietly():
                self._adapter.handed_over(context, from_agent, to_agent)
            await self._theirs.on_handoff(context=context, from_agent=from_agent, to_agent=to_agent)

        async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
            with _quietly():
                self._adapter.model_asked(context, agent)
            await self._theirs.on_llm_start(context, agent, system_prompt, input_items)

        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            with _quietly():
                self._adapter.model_answered(context, agent, response)
            await self._theirs.on_llm_end(context, agent, response)

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            with _quietly():
                self._adapter.tool_started(context, agent, tool)
            await self._theirs.on_tool_start(context, agent, tool)

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            with _quietly():
                self._adapter.tool_ended(context, tool, result)
            await self._theirs.on_tool_end(context, agent, tool, result)

    return Hooks


@contextlib.contextmanager
def _quietly() -> Generator[None]:
    """The runtime goes on whatever happens here; the core has counted its own."""
    try:
        yield
    except Exception:
        logger.exception("a callback of the runtime is not understood")


def _note(tool: Any) -> None:
    """Let the tool tell our ``_Call`` what it raises: the SDK makes a text of it, and asks for no hook.

    Around the tool's own function, once for all and whoever has it; nothing is kept, and in calls that are not ours
    nothing is done. What the SDK makes of the error, and of the tool's settings, stays as it is.
    """
    invoker = tool.on_invoke_tool
    work = invoker._invoke_tool_impl  # other tools have none: they answer with what they like
    if getattr(work, _CALL, False):
        return

    @functools.wraps(work)
    async def invoke(context: Any, arguments: str) -> Any:
        call: _Call | None = getattr(context, _CALL, None)
        if call is None:
            return await work(context, arguments)
        token = _RUN.set(call.inner)
        try:
            return await work(context, arguments)
        except Exception as error:
            call.failed(error)
            raise
        finally:
            _RUN.reset(token)

    setattr(invoke, _CALL, True)
    invoker._invoke_tool_impl = invoke


def _runtime_ids(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the ids that the runner's arguments say."""
    session = getattr(options.get("session"), "session_id", None)
    chat_id = session or options.get("conversation_id") or _configured(options, "group_id")
    found = {"chat_id": chat_id, "workflow_name": _configured(options, "workflow_name") or _UNNAMED}
    return {name: str(value) for name, value in found.items() if value}


def _configured(options: Mapping[str, Any], name: str) -> Any:
    """Return a setting of the run's configuration, which is a mapping or an object."""
    config = options.get("run_config")
    return cast("Mapping[str, Any]", config).get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _with_ids(ids: Mapping[str, str], variables: dict[str, Any]) -> dict[str, Any]:
    return {**variables, **{name: value for name, value in ids.items() if not variables.get(name)}}


def _variables(context: Any) -> dict[str, Any]:
    """Return what a run's context object holds: a mapping's items, a dataclass's or model's plain fields, else the ids.

    Fields that are no data (connections, secrets of pydantic) are left out, and so are private ones.
    """
    try:
        if context is None:
            return {}
        if issubclass(context.__class__, Mapping):
            return {str(name): value for name, value in context.items()}
        kind: Any = context.__class__
        fields = [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
        names = [*_IDS, *fields, *getattr(kind, "model_fields", ())]
        values = {name: getattr(context, name, None) for name in dict.fromkeys(names) if not name.startswith("_")}
        return {name: value for name, value in values.items() if _is_data(value)}
    except Exception:  # noqa: BLE001 - the user's own object
        return {}


def _is_data(value: Any) -> bool:
    return isinstance(value, str | int | float | dict | list | tuple | set | frozenset)


def _model(model: Any) -> dict[str, Any]:
    """Return the field that names the model."""
    name = model if isinstance(model, str) else getattr(model, "model", None)
    return {"model": str(name)} if name else {}


def _tokens(response: Any) -> dict[str, Any]:
    """Return the fields of what the model used, where it says."""
    usage = getattr(response, "usage", None)
    found = {name: getattr(usage, name, None) for name in ("input_tokens", "output_tokens")}
    return found if any(found.values()) else {}

"""OpenAI Agents SDK (``agents``): events of runs, turns and tools, and context in each model call.

Rejected: a tracing processor. It sees more, but not the caller's context object, sees nothing if tracing is off, and
cannot change a prompt. The hooks and the input filter of a run see most things. The ``run`` methods and a wrapper of
tools see the rest: errors, the end of a run, failed tools, and agents inside a tool.
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
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, cast
from uuid import uuid4

from graphweft.adapters.context_place import (
    DEFAULT_PLACE,
    Attempt,
    ContextPlace,
    below_message,
    change,
    joined,
    placed,
    undone,
    user_message,
)
from graphweft.adapters.core import Adapter
from graphweft.adapters.values import about_model, error_text, parsed, variables_of, with_ids
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_runtimes.runtime_adapter import RuntimeAdapter
from graphweft_runtimes.versions import require

logger = logging.getLogger("graphweft.adapters")

_SOURCE: Final = "/graphweft/openai-agents"
_UNNAMED: Final = "Agent workflow"
"""The SDK's default name of a workflow."""
_KEPT: Final = ("conversation_id", "previous_response_id", "auto_previous_response_id")
"""Arguments of a run with a conversation that the provider keeps."""
_CALL: Final = "_graphweft_call"
"""The attribute of a tool call's context that holds our ``_Call`` during the call."""
_MAX_TRIES: Final = 1_000
"""More tries than the settings of an agent allow, which our policy reads."""
_MAX_CHATS: Final = 10_000
"""Chats whose state is kept while no run of ours is active."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Run:
    """A run started here, or the inside of one of its tools, or all runs of a chat that use only our hooks."""

    owner: OpenAIAgentsAdapter
    key: str
    """Separates the turns of this run from others in the chat."""
    ids: Mapping[str, str] = field(default_factory=dict[str, str])
    """Ids to use if the context object lacks them."""
    model: Any = None
    """The run's own model, for all of its agents."""
    hooks_only: bool = False
    """Whether the run was started elsewhere, so that only hooks and filter see it."""
    kept: bool = False
    """Whether the provider keeps the conversation, with all that its messages hold."""
    attempt: Attempt[Any] | None = None
    """The open model call, with and without context."""
    sent: Any = None
    """What the runner sends in this call, and in its further tries."""
    retry: Any = None
    """The settings of the agent for further tries."""
    resumed: bool = False
    """Whether the run continues from a state: the SDK then reports the start of an open turn again."""
    chat: tuple[str, str] = ("", "")
    agent: str | None = None
    """The agent whose turn is open."""
    model_started_s: float | None = None
    """When the current model call started."""
    calls: dict[str, _Call] = field(default_factory=dict[str, "_Call"])


@dataclass(slots=True, eq=False, kw_only=True)
class _Call:
    """An open tool call."""

    id: str
    tool: str
    agent: str
    inner: _Run
    variables: Mapping[str, Any]
    failure: str | None = None

    def failed(self, error: Exception) -> None:
        """Record that the tool raised. The turn of an agent inside the tool fails too."""
        with contextlib.suppress(Exception):
            self.failure = error_text(error)
            self.inner.owner.inner_failed(self, error)


_RUN: ContextVar[_Run | None] = ContextVar("graphweft_openai_agents_run", default=None)


class OpenAIAgentsAdapter(RuntimeAdapter):
    """Emits events of runs and gives agents context. ``settings`` are those of ``Adapter``.

    ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` default to keys or attributes of the context object.
    Without a chat id there, it is the id of the session, the conversation or the group. Raises
    ``InvalidSettings`` without a supported version of ``agents``.
    """

    def __init__(
        self, adapter: Adapter | None = None, *, context_place: ContextPlace = DEFAULT_PLACE, **settings: Any
    ) -> None:
        self._agents: Any = require("agents", extra="openai-agents", lowest="0.24", below="0.25", part="run")
        super().__init__(adapter, _SOURCE, settings, context_place=context_place)
        self._lock = threading.Lock()
        self._active: dict[tuple[str, str], set[str]] = {}
        self._elsewhere: BoundedDict[tuple[str, str], _Run] = BoundedDict(_MAX_CHATS)
        self._hooks_base: Any = self._agents.lifecycle.RunHooksBase
        self._hooks: Any = _hooks_type(self._hooks_base)(self, None)

    # Starting runs

    async def run(self, starting_agent: Any, input: Any, **options: Any) -> Any:
        """Call ``Runner.run`` with these arguments, and return its result or raise its error."""
        with self._started(starting_agent, input, options) as (run, named):
            result = await self._agents.Runner.run(starting_agent, input, **named)
        self._ended(run, options, input, result)
        return result

    def run_sync(self, starting_agent: Any, input: Any, **options: Any) -> Any:
        """Call ``Runner.run_sync`` with these arguments, and return its result or raise its error."""
        with self._started(starting_agent, input, options) as (run, named):
            result = self._agents.Runner.run_sync(starting_agent, input, **named)
        self._ended(run, options, input, result)
        return result

    def run_streamed(self, starting_agent: Any, input: Any, **options: Any) -> Any:
        """Call ``Runner.run_streamed`` with these arguments, and return its result or raise its error.

        The run ends with its task, whether or not the stream is read.
        """
        with self._started(starting_agent, input, options) as (run, named):
            result = self._agents.Runner.run_streamed(starting_agent, input, **named)

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
        """``RunHooks`` for runs that you start without this adapter, and for agents that are tools."""
        return self._hooks

    async def call_model_input_filter(self, data: Any) -> Any:
        """Put the turn's context into the prompt; for the ``RunConfig`` of runs without this adapter."""
        try:
            run = self._run(data.context)
            variables = with_ids(variables_of(data.context), run.ids)
            agent = data.agent.name
            if run.agent is not None and run.agent != agent and not run.hooks_only:  # a hand-over without a hook
                self.core.hand_over(variables, run.agent, agent, run=run.key)
            run.agent = agent
            plain = data.model_data
            block = (await self.core.acontext(variables, agent, run=run.key, messages=plain.input)).text
            request = self._with_block(plain, block, "instructions" if run.kept else self.place) if block else plain
            run.attempt = self.attempt(plain, request, variables, agent, run=run.key)
            run.sent, run.retry = request, data.agent.model_settings.retry
            return request
        except Exception:  # the model is called without context
            logger.exception("cannot put the context into the prompt")
            return data.model_data

    def _with_block(self, data: Any, block: str, place: ContextPlace) -> Any:
        put = functools.partial(below_message, kind="input_text")
        found = placed(data.input, block, place, put=put, own=user_message)
        if found is not None:
            return dataclasses.replace(data, input=found)
        return dataclasses.replace(data, instructions=joined(data.instructions, block))

    # Runs

    @contextlib.contextmanager
    def _started(
        self, starting_agent: Any, input: Any, options: Mapping[str, Any]
    ) -> Generator[tuple[_Run, dict[str, Any]]]:
        """Start a run, make it the current one, and report an error."""
        run, named = self._begin(options, input)
        token = _RUN.set(run)
        try:
            yield run, named
        except BaseException as error:
            self._failed(run, options, input, starting_agent, error)
            raise
        finally:
            _RUN.reset(token)

    def _begin(self, options: Mapping[str, Any], input: Any) -> tuple[_Run, dict[str, Any]]:
        """Return a started run, and the arguments for the runner, with our hooks and our filter."""
        named = dict(options)
        run = _Run(owner=self, key=uuid4().hex, resumed=isinstance(input, self._agents.RunState))
        try:
            run.ids, run.model = _runtime_ids(options), _configured(options, "model")
            run.kept = any(options.get(name) for name in _KEPT)
            variables = self._run_variables(run, self._given(options, input))
            run.chat = self.chat_key(variables)
            with self._lock:
                others = self._active.setdefault(run.chat, set())
                run.key = "" if "" not in others else run.key
                others.add(run.key)
            self.core.start_run(variables)
            named["hooks"] = self._with_hooks(options.get("hooks"))
            named["run_config"] = self._with_filter(options.get("run_config"), repeats=not run.kept)
        except Exception:  # the run continues without events
            logger.exception("cannot attach to the run")
        return run, named

    def _ended(self, run: _Run, options: Mapping[str, Any], input: Any, result: Any) -> None:
        with contextlib.suppress(Exception):
            variables = self._run_variables(run, self._given(options, input))
            last = self._leave(run)
            if getattr(result, "interruptions", None):
                return  # the turn continues when its tools are approved
            output = result.final_output
            if run.agent is not None and output is not None:
                self.core.end_turn(variables, run.agent, run=run.key, response=output)
            if last:
                self.core.end_run(variables, outputs=output)

    def _failed(
        self, run: _Run, options: Mapping[str, Any], input: Any, starting_agent: Any, error: BaseException
    ) -> None:
        with contextlib.suppress(Exception):
            variables = self._run_variables(run, self._given(options, input))
            last = self._leave(run)
            for call in run.calls.values():
                if call.failure is not None:
                    self.core.end_tool(
                        variables, call.tool, call.id, success=False, error=call.failure, agent=call.agent, run=run.key
                    )
            if run.agent is not None:
                self._close_failed(run, variables, error)
            elif not last:  # other runs of the chat continue their turns
                self.core.fail_turn(variables, str(starting_agent.name), error, run=run.key)
            if last:
                self.core.fail_run(variables, error)

    def _close_failed(self, run: _Run, variables: Mapping[str, Any], error: BaseException) -> None:
        agent, run.agent = cast("str", run.agent), None
        if run.model_started_s is not None:
            about = about_model(run.model_started_s, error=error)
            self.core.model_call(variables, agent, run=run.key, success=False, about=about)
        self.core.fail_turn(variables, agent, error, run=run.key)

    def _leave(self, run: _Run) -> bool:
        """Remove the run; return whether it was the last one in its chat."""
        with self._lock:
            others = self._active.get(run.chat, set())
            others.discard(run.key)
            if not others:
                self._active.pop(run.chat, None)
            return not others

    def _stream_error(self, task: Any, result: Any) -> BaseException | None:
        """Return the error that a reader of the stream gets."""
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
            logger.exception("cannot read the end of a stream")
        return None

    def _with_hooks(self, theirs: Any) -> Any:
        if theirs is None or theirs is self._hooks:
            return self._hooks
        if not isinstance(theirs, self._hooks_base):
            return theirs  # the runner refuses it
        return type(self._hooks)(self, theirs)

    def _with_filter(self, config: Any, *, repeats: bool) -> Any:
        """Return a copy of the run's configuration with our filter, and our policy for further tries if it has none.

        Without one of the caller's this is a mapping, so that the runner makes the configuration itself and closes the
        resources that it makes with it.
        """
        if config is None or isinstance(config, Mapping):
            known = dict(cast("Mapping[str, Any]", config or {}))
            known["call_model_input_filter"] = self._after(known.get("call_model_input_filter"))
            return known | ({"model_settings": self._with_policy(known.get("model_settings"))} if repeats else {})
        found = copy.copy(config)
        found.call_model_input_filter = self._after(config.call_model_input_filter)
        if repeats:
            found.model_settings = self._with_policy(config.model_settings)
        return found

    def _with_policy(self, settings: Any) -> Any:
        if isinstance(settings, Mapping):
            settings = self._agents.ModelSettings(**cast("Mapping[str, Any]", settings))
        if settings is not None and settings.retry is not None:
            return settings
        retry = self._agents.ModelRetrySettings(max_retries=_MAX_TRIES, policy=self._tries_again)
        return dataclasses.replace(settings or self._agents.ModelSettings(), retry=retry)

    async def _tries_again(self, context: Any) -> Any:
        """Decide about a failed model call: once without the context, then as the agent's own settings say."""
        run = _RUN.get()
        if run is None or run.owner is not self or run.attempt is None:
            return False
        plain, request = run.attempt.plain, run.attempt.request
        if run.attempt.goes_on(context.error):
            run.sent.instructions = plain.instructions
            if request.input is not plain.input:
                run.sent.input = undone(run.sent.input, *change(plain.input, request.input))
            return self._agents.RetryDecision(retry=True, delay=0.0)
        ours, theirs = int(request is plain and run.sent is not plain), run.retry
        tries = 0 if theirs is None else theirs.max_retries or 0
        if theirs is None or theirs.policy is None or context.attempt - ours > tries:
            return False
        found = theirs.policy(dataclasses.replace(context, attempt=context.attempt - ours, max_retries=tries))
        return await found if inspect.isawaitable(found) else found

    def _after(self, theirs: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        """Return a filter that applies theirs, and then ours, once."""
        if theirs is None or theirs == self.call_model_input_filter:
            return self.call_model_input_filter

        async def call_model_input_filter(data: Any) -> Any:
            found = theirs(data)
            found = await found if inspect.isawaitable(found) else found
            if not isinstance(found, self._agents.run.ModelInputData):
                return found  # the runner refuses it
            return await self.call_model_input_filter(dataclasses.replace(data, model_data=found))

        return call_model_input_filter

    # Callbacks of the hooks

    def agent_started(self, context: Any, agent: Any) -> None:
        """A turn starts."""
        run, variables = self._here(context)
        run.agent, run.resumed, resumed = agent.name, False, run.resumed
        self.core.start_turn(variables, agent.name, run=run.key, fresh=not resumed)

    def agent_ended(self, context: Any, agent: Any, output: Any) -> None:
        """The agent has answered."""
        run, variables = self._here(context)
        run.agent = None
        self.core.end_turn(variables, agent.name, run=run.key, response=output)

    def handed_over(self, context: Any, agent: Any, to: Any) -> None:
        """Another agent is next. There is no other callback for the end of this turn."""
        run, variables = self._here(context)
        run.agent = None
        self.core.hand_over(variables, agent.name, to.name, run=run.key)

    def model_asked(self, context: Any, agent: Any) -> None:
        """A model call starts."""
        run, _ = self._here(context)
        run.agent, run.model_started_s = agent.name, SYSTEM_CLOCK.monotonic()

    def model_answered(self, context: Any, agent: Any, response: Any) -> None:
        """A model call has ended."""
        run, variables = self._here(context)
        about = about_model(run.model_started_s, model=_model(run.model or agent.model), **_tokens(response))
        run.model_started_s = None
        if run.attempt is not None:
            run.attempt.taken()
        self.core.model_call(variables, agent.name, run=run.key, success=True, about=about)

    def tool_started(self, context: Any, agent: Any, tool: Any) -> None:
        """A tool call starts."""
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
                _watch(tool)
        self.core.start_tool(
            variables, tool.name, call_id, arguments=arguments, agent=agent.name, run=run.key
        )  # fmt: skip

    def tool_ended(self, context: Any, tool: Any, result: Any) -> None:
        """A tool call has ended. After a failure ``result`` is the text that the SDK makes of it."""
        run, variables = self._here(context)
        call_id = getattr(context, "tool_call_id", None)
        if call_id is None:  # shells and computers: calls of one name are sequential
            call_id = next((one.id for one in run.calls.values() if one.tool == tool.name), uuid4().hex)
        call = run.calls.pop(str(call_id), None)
        failure = (None if call is None else call.failure) or self._other_failure(tool, result)
        if call is not None and call.inner.agent is not None:  # an agent without hooks worked inside the tool
            agent, call.inner.agent = call.inner.agent, None
            self.core.end_turn(variables, agent, run=call.inner.key, response=result)
        self.core.end_tool(
            variables, tool.name, str(call_id), result=result, success=failure is None, error=failure,
            agent=None if call is None else call.agent, run=run.key,
        )  # fmt: skip

    def inner_failed(self, call: _Call, error: Exception) -> None:
        """A tool has raised while an agent worked inside it."""
        if call.inner.agent is not None:
            self._close_failed(call.inner, call.variables, error)

    def _other_failure(self, tool: Any, result: Any) -> str | None:
        """Return the error of the call's span, which exists with tracing, or that of a timeout."""
        with contextlib.suppress(Exception):
            span = self._agents.get_current_span()
            if span is not None and span.span_data.type == "function" and span.error:
                return str(span.error["message"])
        with contextlib.suppress(Exception):
            late = self._agents.tool.default_tool_timeout_error_message
            if tool.timeout_seconds and result == late(tool_name=tool.name, timeout_seconds=tool.timeout_seconds):
                return str(result)
        return None

    # Runs and their variables

    def _here(self, context: Any) -> tuple[_Run, Mapping[str, Any]]:
        run = self._run(context.context)
        return run, self._run_variables(run, context.context)

    def _run_variables(self, run: _Run, context: Any) -> Mapping[str, Any]:
        return with_ids(variables_of(context), run.ids)

    def _run(self, context: Any) -> _Run:
        """Return the current run, or for runs started elsewhere the one that their chat shares."""
        run = _RUN.get()
        if run is not None and run.owner is self:
            return run
        chat = self.chat_key(variables_of(context))
        with self._lock:
            run = self._elsewhere.get(chat)
            if run is None:
                run = _Run(owner=self, key="", hooks_only=True, ids={"workflow_name": _UNNAMED})
            self._elsewhere[chat] = run
            return run

    def _given(self, options: Mapping[str, Any], input: Any) -> Any:
        """Return the context object of a run, by default that of the state from which it continues."""
        context: Any = options.get("context")
        if context is None:
            context = getattr(input, "_context", None)
        return context.context if isinstance(context, self._agents.RunContextWrapper) else context


def _hooks_type(base: Any) -> Any:
    """Return the type of our hooks, which call the user's hooks too."""

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
    """Log errors and suppress them; the core counts its own."""
    try:
        yield
    except Exception:
        logger.exception("a callback of the runtime failed")


def _watch(tool: Any) -> None:
    """Report errors of the tool to our ``_Call``: the SDK turns them into a text and calls no hook.

    This wraps the tool's own function once. The wrapper does nothing in calls of other runs, and leaves the SDK's
    handling of errors and settings unchanged.
    """
    invoker = tool.on_invoke_tool
    work = invoker._invoke_tool_impl  # other tools have no such function
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
    """Return the ids in the runner's arguments."""
    session = getattr(options.get("session"), "session_id", None)
    chat_id = session or options.get("conversation_id") or _configured(options, "group_id")
    found = {"chat_id": chat_id, "workflow_name": _configured(options, "workflow_name") or _UNNAMED}
    return {name: str(value) for name, value in found.items() if value}


def _configured(options: Mapping[str, Any], name: str) -> Any:
    """Return a setting of the run's configuration, a mapping or an object."""
    config = options.get("run_config")
    return cast("Mapping[str, Any]", config).get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _model(model: Any) -> Any:
    return model if isinstance(model, str) else getattr(model, "model", None)


def _tokens(response: Any) -> dict[str, Any]:
    """Return the token counts, if the response has any."""
    usage = getattr(response, "usage", None)
    found = {name: getattr(usage, name, None) for name in ("input_tokens", "output_tokens")}
    return found if any(found.values()) else {}

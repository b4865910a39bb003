"""Pydantic AI 2.x: events of runs, model calls and tools, and context in each model call.

Rejected: a history processor, whose changes stay in the messages of the run, and the event stream, which would make
every run a streamed one. A capability wraps runs, model requests, tools and output functions in order, and what it
prepares for one request is in no history.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from pydantic import ValidationError

from graphweft.adapters.context_place import DEFAULT_PLACE, Attempt, ContextPlace, joined, placed
from graphweft.adapters.core import Adapter
from graphweft.adapters.values import IDS, error_text, parsed, variables_of, with_ids
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_runtimes.chat_runs import ChatRuns
from graphweft_runtimes.runtime_adapter import ModelCall, RuntimeAdapter
from graphweft_runtimes.versions import require

_SOURCE: Final = "/graphweft/pydantic-ai"
_UNNAMED: Final = "Agent"
_MAX_WAITING: Final = 10_000
"""Turns that wait for a person and are remembered; the oldest are forgotten first."""
_NUMBERS: Final = itertools.count(1)


@dataclass(slots=True, eq=False, kw_only=True)
class _Scope:
    """What is around a run: a block of ``PydanticAIAdapter.workflow``, or another run."""

    owner: PydanticAIAdapter
    key: tuple[str, str]
    """The chat."""
    ids: Mapping[str, Any]
    over: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class _Block(_Scope):
    """A block of ``PydanticAIAdapter.workflow``."""

    working: int = 0
    """Its agents at work now."""
    outputs: Any = None


@dataclass(slots=True, eq=False, kw_only=True)
class _Run(_Scope):
    """A run of an agent, which is its turn."""

    agent: str
    run: str
    """Separates its turn from others of the chat."""
    variables: Mapping[str, Any]
    around: _Scope | None
    """What the run is part of: a block, or a run of the same chat."""
    call: ModelCall = field(default_factory=ModelCall)
    attempt: Attempt[bool] | None = None
    """The open model call, with and without context. A further attempt of Pydantic AI is the same call."""
    handed_over: bool = False
    reported: int = 0
    """The identity of the error of a run inside, which that run has reported."""

    @property
    def block(self) -> _Block | None:
        return self.around if isinstance(self.around, _Block) else None

    @property
    def outermost(self) -> bool:
        return not isinstance(self.around, _Run)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where code runs: inside a scope, perhaps in the output function of its run."""

    scope: _Scope
    in_output: bool = False


_PLACE: ContextVar[_Place | None] = ContextVar("graphweft_pydantic_ai_place", default=None)


class PydanticAIAdapter(RuntimeAdapter):
    """Emits events of agents and gives them context. ``settings`` are those of ``Adapter``.

    ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` default to keys or attributes of the run's ``deps``, then
    to its ``metadata``; the default chat id is the run's ``conversation_id``. An agent inside another agent's tool or
    output function has the ids of that agent. Raises ``InvalidSettings`` without a supported version of
    ``pydantic_ai``.
    """

    def __init__(
        self, adapter: Adapter | None = None, *, context_place: ContextPlace = DEFAULT_PLACE, **settings: Any
    ) -> None:
        self._pydantic_ai: Any = require(
            "pydantic_ai", extra="pydantic-ai", lowest="2.68", below="3", part="capabilities"
        )
        self._exceptions: Any = importlib.import_module("pydantic_ai.exceptions")
        self._messages: Any = importlib.import_module("pydantic_ai.messages")
        super().__init__(adapter, _SOURCE, settings, context_place=context_place)
        base: Any = self._pydantic_ai.capabilities.AbstractCapability
        # Of several capabilities with one id, an agent uses one: here, those of one adapter.
        kind: Any = type("Graphweft", (_Hooks, base), {"id": f"graphweft-{next(_NUMBERS)}"})
        self._capability: Any = kind()
        self._capability.adapter = self
        self._runs = ChatRuns(self.core)
        self._waiting: BoundedDict[tuple[tuple[str, str], str], str] = BoundedDict(_MAX_WAITING)

    def capability(self) -> Any:
        """Return the capability for ``Agent(…, capabilities=[…])`` or for one run. Agents may share it."""
        return self._capability

    @contextlib.contextmanager
    def workflow(self, **variables: Any) -> Generator[None]:
        """Make the runs in the block one run of a workflow, with these context variables where ``deps`` lack them.

        An agent that runs after another one in the block is the workflow's next phase. ``app_id`` and ``chat_id`` are
        required here or in the adapter's settings: runs of other chats are not part of the workflow.
        """
        block = _Block(owner=self, key=self.chat_key(variables), ids=dict(variables))
        with self.core.guarded("workflow"):
            self._runs.enter(block.key, variables)
        token = _PLACE.set(_Place(block))
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            with contextlib.suppress(ValueError):  # left in another context, for example by the garbage collector
                _PLACE.reset(token)
            block.over = True
            with self.core.guarded("workflow"):
                self._runs.leave(block.key, variables, outputs=block.outputs, failure=failure)

    def publish(self, context: Any, type: str, data: Mapping[str, Any]) -> None:
        """Emit your own event within a tool; ``context`` is its ``RunContext``, ``type`` a lower-case dotted name."""
        with self.core.guarded("publish"):
            place = self._place()
            scope = None if place is None else place.scope
            if isinstance(scope, _Run) and scope.agent == _name(context):
                self.core.emit(scope.variables, type, data, agent=scope.agent, run=scope.run)
            else:
                self.core.emit(self._variables(context, scope), type, data, agent=_name(context))

    # Runs. These methods read values of the runtime, and never raise into it.

    def begin(self, context: Any) -> _Run | None:
        """Start a run and its turn."""
        run: _Run | None = None
        with self.core.guarded("run"):
            place = self._place()
            scope = None if place is None else place.scope
            variables, agent = self._variables(context, scope), _name(context)
            key = self.chat_key(variables)
            around = scope if scope is not None and not scope.over and scope.key == key else None
            run = _Run(
                owner=self, key=key, ids={name: variables[name] for name in IDS if name in variables},
                agent=agent, run=str(context.run_id or uuid4().hex), variables=variables, around=around,
            )  # fmt: skip
            if run.outermost:
                self._runs.enter(key, variables)
            if isinstance(around, _Run) and place is not None and place.in_output and not around.handed_over:
                around.handed_over = True
                self.core.hand_over(around.variables, around.agent, agent, run=around.run)
            waiting = self._waiting.pop((key, agent), None)
            if waiting is not None and _answers_calls(context):
                run.run = waiting  # the turn goes on
            elif waiting is not None:
                self.core.abandon_turn(variables, agent, run=waiting)
            alone = run.block is not None and not run.block.working
            if run.block is not None:
                run.block.working += 1
            self.core.start_turn(variables, agent, run=run.run, sequential=alone)
        return run

    def ended(self, run: _Run, output: Any) -> None:
        """End the turn and the run, unless they wait for tools that a person approves or runs."""
        self._over(run)
        with self.core.guarded("run"):
            waits = isinstance(output, self._pydantic_ai.DeferredToolRequests)
            if waits:
                self._waiting[run.key, run.agent] = run.run
            elif not run.handed_over:
                self.core.end_turn(run.variables, run.agent, run=run.run, response=output)
            if run.block is not None and not waits:
                run.block.outputs = output
            if run.outermost:
                self._runs.leave(run.key, run.variables, outputs=output, paused=waits)

    def failed(self, run: _Run, error: BaseException) -> None:
        """Fail the turn and the run."""
        self._over(run)
        self.unanswered(run, error)  # a cancelled run ends before its model call
        with self.core.guarded("run"):
            if not run.handed_over:
                reported = run.reported == id(error)
                self.core.fail_turn(run.variables, run.agent, error, run=run.run, reported=reported)
            if isinstance(run.around, _Run):
                run.around.reported = id(error)
            else:
                self._runs.leave(run.key, run.variables, failure=error)

    def _over(self, run: _Run) -> None:
        run.over = True
        if run.block is not None:
            run.block.working -= 1

    # Model calls

    async def prepared(self, run: _Run, request: Any) -> Any:
        """Return the request of a model call with the turn's context."""
        if run.handed_over:  # the output function asked the model to try again
            run.handed_over = False
            self.core.start_turn(run.variables, run.agent, run=run.run)
        said = map(self._read, request.messages)
        block = (await self.core.acontext(run.variables, run.agent, run=run.run, messages=said)).text
        with self.core.guarded("model call"):
            if not run.call.is_open:
                run.attempt = self.attempt(False, bool(block), run.variables, run.agent, run=run.run)
            run.call.start(request.model.model_name)
            if run.attempt is not None and run.attempt.request:
                return self._with_block(request, block)
        return request

    def _with_block(self, request: Any, block: str) -> Any:
        kinds = self._messages

        def put(message: Any, block: str) -> Any:
            *parts, last = message.parts
            content = joined(last.content, block) if isinstance(last.content, str) else [*last.content, block]
            return dataclasses.replace(message, parts=[*parts, dataclasses.replace(last, content=content)])

        def own(block: str) -> Any:
            return kinds.ModelRequest(parts=[kinds.UserPromptPart(block)])

        messages = placed(request.messages, block, self.place, put=put, own=own, read=self._read)
        if messages is not None:
            return dataclasses.replace(request, messages=messages)
        parameters = request.model_request_parameters
        added: list[Any] = [*(parameters.instruction_parts or []), kinds.InstructionPart(block, dynamic=True)]
        parameters = dataclasses.replace(parameters, instruction_parts=added)
        return dataclasses.replace(request, model_request_parameters=parameters)

    def _read(self, message: Any) -> dict[str, Any]:
        """Return a message in a form that ``chat_formats`` reads: what the user says is its last part."""
        kinds = self._messages
        if isinstance(message, kinds.ModelResponse):
            return {"role": "assistant"}
        if any(isinstance(part, kinds.ToolReturnPart | kinds.RetryPromptPart) for part in message.parts):
            return {"role": "tool"}
        if message.parts and isinstance(message.parts[-1], kinds.UserPromptPart):
            return {"role": "user", "content": message.parts[-1].content}
        return {"role": "system"}

    def goes_on(self, run: _Run, error: Exception) -> Exception | None:
        """Return the error that makes Pydantic AI ask again, without context, if the model refused that."""
        refused = run.call.is_open and run.attempt is not None and run.attempt.goes_on(error)
        return self._exceptions.RetryModelRequest() if refused else None

    def answered(self, run: _Run, response: Any) -> None:
        """A model call has succeeded."""
        with self.core.guarded("model call"):
            if not run.call.is_open:  # it has failed, and another capability made an answer
                return
            if run.attempt is not None:
                run.attempt.taken()
            found = {name: getattr(response.usage, name, None) for name in ("input_tokens", "output_tokens")}
            counts = found if any(found.values()) else {}
            self.end_model_call(run.call, run.variables, run.agent, run=run.run, **counts)

    def unanswered(self, run: _Run, error: BaseException) -> None:
        """A model call has failed, if one is open."""
        with self.core.guarded("model call"):
            self.end_model_call(run.call, run.variables, run.agent, run=run.run, error=error)

    # Tools

    def refuses(self, error: Exception) -> bool:
        """Return whether an error means that the arguments of a tool call are invalid: then the tool does not run."""
        return isinstance(error, ValidationError | self._exceptions.ModelRetry)

    def tool_started(self, run: _Run, call: Any, arguments: Any) -> None:
        """A tool call starts. One that was put off and is approved now has started before."""
        with self.core.guarded("tool"):
            self.core.start_tool(
                run.variables, call.tool_name, call.tool_call_id,
                arguments=arguments, agent=run.agent, run=run.run,
            )  # fmt: skip

    def tool_ended(self, run: _Run, call: Any, result: Any = None, error: Any = None) -> None:
        """A tool call has ended, unless it is put off until a person approves it or has its result."""
        with self.core.guarded("tool"):
            if isinstance(error, self._exceptions.CallDeferred | self._exceptions.ApprovalRequired):
                return
            value, rich = result, self._pydantic_ai.ToolReturn
            if isinstance(error, self._exceptions.SkipToolExecution):  # another capability has the result
                value, error = error.result, None
            if isinstance(value, rich):
                value = value.return_value
            self.core.end_tool(
                run.variables, call.tool_name, call.tool_call_id, result=value, success=error is None,
                error=None if error is None else error_text(error), agent=run.agent, run=run.run,
            )  # fmt: skip

    # Ids

    def _place(self) -> _Place | None:
        place = _PLACE.get()
        return place if place is not None and place.scope.owner is self else None

    def _variables(self, context: Any, scope: _Scope | None) -> dict[str, Any]:
        metadata: Mapping[str, Any] = context.metadata or {}
        found = with_ids(variables_of(context.deps), {name: metadata[name] for name in IDS if metadata.get(name)})
        around: Mapping[str, Any] = {} if scope is None else scope.ids
        own = {"chat_id": str(context.conversation_id)} if context.conversation_id else {}
        return with_ids({**around, **found}, {**own, **around})


def _name(context: Any) -> str:
    return str(getattr(context.agent, "name", None) or _UNNAMED)


def _answers_calls(context: Any) -> bool:
    """Return whether a run continues after the tool calls that end its history, with their results."""
    last = context.messages[-1] if context.messages else None
    return context.prompt is None and bool(getattr(last, "tool_calls", None))


class _Hooks:
    """The capability; a subclass adds the base class of Pydantic AI. A copy of it serves one run."""

    adapter: PydanticAIAdapter
    run: _Run | None = None

    @classmethod
    def get_serialization_name(cls) -> str | None:
        return None  # a specification of an agent cannot name it, since it holds the adapter

    @classmethod
    def combine(cls, capabilities: Sequence[Any]) -> Any:
        return capabilities[-1]  # all of one id are the adapter's one capability

    async def for_run(self, ctx: Any) -> Any:
        mine: Any = type(self)()
        mine.adapter = self.adapter
        return mine

    async def wrap_run(self, ctx: Any, *, handler: Callable[[], Awaitable[Any]]) -> Any:
        run = self.run = self.adapter.begin(ctx)
        if run is None:
            return await handler()
        _PLACE.set(_Place(run))  # a task of Pydantic AI's own, which hands it to the body of the run
        try:
            result = await handler()
        except BaseException as error:
            self.adapter.failed(run, error)
            raise
        self.adapter.ended(run, result.output)
        return result

    async def prepare_model_request(self, ctx: Any, request_context: Any) -> Any:
        return request_context if self.run is None else await self.adapter.prepared(self.run, request_context)

    async def after_model_request(self, ctx: Any, *, request_context: Any, response: Any) -> Any:
        if self.run is not None:
            self.adapter.answered(self.run, response)
        return response

    async def on_model_request_error(self, ctx: Any, *, request_context: Any, error: Exception) -> Any:
        if self.run is not None:
            again = self.adapter.goes_on(self.run, error)
            if again is not None:
                raise again
            self.adapter.unanswered(self.run, error)
        raise error

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
        try:
            return await handler(request_context)
        except BaseException as error:  # cancelled, or another capability raised
            if self.run is not None:
                self.adapter.unanswered(self.run, error)
            raise

    async def wrap_tool_validate(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        try:
            return await handler(args)
        except Exception as error:
            if self.run is not None and self.adapter.refuses(error):
                self.adapter.tool_started(self.run, call, parsed(args))
                self.adapter.tool_ended(self.run, call, error=error)
            raise

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        if self.run is None:
            return await handler(args)
        self.adapter.tool_started(self.run, call, args)
        try:
            result = await handler(args)
        except BaseException as error:
            self.adapter.tool_ended(self.run, call, error=error)
            raise
        self.adapter.tool_ended(self.run, call, result)
        return result

    async def wrap_output_process(self, ctx: Any, *, output_context: Any, output: Any, handler: Any) -> Any:
        if self.run is None or not output_context.has_function:
            return await handler(output)
        token = _PLACE.set(_Place(self.run, in_output=True))
        try:
            return await handler(output)
        finally:
            _PLACE.reset(token)

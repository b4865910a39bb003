"""Turns of one chat with a model client: an ``Exchange`` for each model call, which reports to the adapter.

A turn begins with a message of the user and ends with an answer without tool calls. A request with results of tools
that the model's last answer called continues the turn of that answer, whatever else happens in the chat.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import uuid4

from graphweft.adapters.context_place import Attempt, ContextPlace
from graphweft.adapters.core import Adapter
from graphweft.adapters.model_clients.exchange import ModelAnswer, ModelQuestion, ModelToolResult, Shape, arguments_of
from graphweft.adapters.turn_memory import MEMORY_ADD, memory_of
from graphweft.adapters.values import about_model
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK

_MAX_CALLS: Final = 1_000
"""Tool calls of a chat whose results are awaited."""


class ModelError(Exception):
    """A failure that a provider reports as data instead of an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    run: str
    """Separates this turn from others in the chat."""
    message: str | None
    """The user's message that began it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A tool call whose result has not come back yet. ``given`` is the id that the model's answer had."""

    turn: _Turn
    id: str
    given: str | None
    tool: str
    arguments: Any

    def is_call_of(self, result: ModelToolResult) -> bool:
        """Return whether the request names the tool and the arguments of this call."""
        call = result.call
        return call is not None and call.name == self.tool and arguments_of(call) == self.arguments


class Recorder:
    """Reports the model calls of one chat. Thread-safe. No method raises; only the context of an exchange waits."""

    def __init__(
        self,
        core: Adapter,
        variables: Mapping[str, Any],
        *,
        agent: str,
        scope: Mapping[str, str],
        remember: bool,
        place: ContextPlace,
    ) -> None:
        self.core = core
        self.variables = variables
        self.agent = agent
        self.place: ContextPlace = place
        self._scope = scope
        self._remember = remember
        self._lock = threading.Lock()
        self._waiting: BoundedDict[str, _Waiting] = BoundedDict(_MAX_CALLS)
        """By the id of our own, in order."""

    def begin(self, shape: Shape, options: Mapping[str, Any]) -> Exchange:
        """Report the results of tools in a request, and start a turn if it does not continue one."""
        asked, turn = ModelQuestion(), _Turn(run=uuid4().hex, message=None)
        with self.core.guarded("reading a request"):
            asked = shape.asked(options)
            turn = _Turn(run=turn.run, message=asked.message)
        self.core.left_out(asked.unread)
        with self._lock:
            ended = [(result, self._answered(result)) for result in asked.results]
        for result, call in ended:
            if call is not None:
                turn = call.turn
                self.core.end_tool(
                    self.variables, call.tool, call.id, result=result.content, success=result.error is None,
                    error=result.error, agent=self.agent, run=turn.run,
                )  # fmt: skip
        if all(call is None for _, call in ended):
            self.core.start_turn(self.variables, self.agent, run=turn.run)
        return Exchange(self, shape, turn)

    def remember(self, turn: _Turn, text: str | None) -> None:
        """Keep the user's message and the answer as memories."""
        answer = None if text is None else self.core.spoken(text)
        data = memory_of(self._scope, turn.message, answer) if self._remember else None
        if data is not None:
            self.core.emit(self.variables, MEMORY_ADD, data)

    def wait_for(self, turn: _Turn, answer: ModelAnswer) -> None:
        """Report the tool calls of an answer, and expect their results. A call without an id gets one of ours."""
        taken: set[str] = set()
        for call in answer.calls:
            given = call.id if call.id not in taken else None
            with self._lock:
                unusable = given is None or given in self._waiting
                id = uuid4().hex if given is None or unusable else given
                arguments = arguments_of(call)
                self._waiting[id] = _Waiting(turn=turn, id=id, given=call.id, tool=call.name, arguments=arguments)
            taken.add(id)
            self.core.start_tool(self.variables, call.name, id, arguments=arguments, agent=self.agent, run=turn.run)

    def _answered(self, result: ModelToolResult) -> _Waiting | None:
        """Return the call that a result answers, which is not awaited any more. Call this with the lock held.

        Ids may be missing, or used for several calls, and an agent may have replaced them: then a call with the same
        tool and arguments is meant, or else the first one without an id.
        """
        calls = list(self._waiting.values())
        possible = [call for call in calls if result.call_id is not None and call.given == result.call_id]
        if not possible and result.latest:
            possible = [call for call in calls if call.is_call_of(result)] or [
                call for call in calls if call.given is None and _may_be(call, result)
            ]
        found = next((call for call in possible if call.is_call_of(result)), next(iter(possible), None))
        return None if found is None else self._waiting.pop(found.id)


def _may_be(call: _Waiting, result: ModelToolResult) -> bool:
    tool = result.tool if result.call is None else result.call.name
    return tool is None or tool == call.tool


class Exchange:
    """One model call. Report its end once; further reports have no effect."""

    def __init__(self, recorder: Recorder, shape: Shape, turn: _Turn) -> None:
        self.shape = shape
        self._recorder = recorder
        self._core = recorder.core
        self._turn = turn
        self._started_s = SYSTEM_CLOCK.monotonic()
        self._ended = False

    def guarded(self, where: str) -> AbstractContextManager[None]:
        """See ``Adapter.guarded``."""
        return self._core.guarded(where)

    def context(self) -> str:
        """Return the context of the turn; waits for at most the adapter's budget."""
        reply = self._core.context(
            self._recorder.variables, self._recorder.agent, run=self._turn.run, messages=self._question()
        )
        self._started_s = SYSTEM_CLOCK.monotonic()
        return reply.text

    async def acontext(self) -> str:
        """Do the same as ``context`` without blocking the event loop."""
        reply = await self._core.acontext(
            self._recorder.variables, self._recorder.agent, run=self._turn.run, messages=self._question()
        )
        self._started_s = SYSTEM_CLOCK.monotonic()
        return reply.text

    def attempt(self, options: Mapping[str, Any], text: str) -> Attempt[dict[str, Any]]:
        """Return the call with the context, or without it if the form of its arguments is unknown."""
        plain = dict(options)
        request = plain
        if text:
            with self._core.guarded("adding the context"):
                request = self.shape.with_context(plain, text, self._recorder.place)
        recorder = self._recorder
        refused = partial(self._core.refuse_context, recorder.variables, recorder.agent, run=self._turn.run)
        return Attempt(plain, request, refused=refused)

    def responded(self, response: Any) -> None:
        """Report a response that is not streamed."""
        with self._core.guarded("reading a response"):
            self.answered(self.shape.answer(response))
        self.abandoned()

    def answered(self, answer: ModelAnswer) -> None:
        """Report the answer. Its turn ends, unless the model calls tools."""
        if answer.error is not None:
            self.failed(ModelError(answer.error))
            return
        if self._end():
            return
        recorder, turn = self._recorder, self._turn
        self._core.left_out(answer.unread)
        about = about_model(
            self._started_s, model=answer.model, input_tokens=answer.input_tokens, output_tokens=answer.output_tokens
        )
        self._core.model_call(recorder.variables, recorder.agent, run=turn.run, success=True, about=about)
        if answer.calls:
            recorder.wait_for(turn, answer)
            return
        self._core.end_turn(recorder.variables, recorder.agent, run=turn.run, response=answer.text)
        recorder.remember(turn, answer.text)

    @contextlib.contextmanager
    def failing(self) -> Generator[None]:
        """Report an error of the call in the block."""
        try:
            yield
        except BaseException as error:
            self.failed(error)
            raise

    def failed(self, error: BaseException) -> None:
        """Report that the call raised; its turn fails."""
        if self._end():
            return
        recorder, run = self._recorder, self._turn.run
        about = about_model(self._started_s, error=error)
        self._core.model_call(recorder.variables, recorder.agent, run=run, success=False, about=about)
        self._core.fail_turn(recorder.variables, recorder.agent, error, run=run)

    def abandoned(self) -> None:
        """Report that the caller reads no more of the answer, which abandons the turn."""
        if not self._end():
            self._core.abandon_turn(self._recorder.variables, self._recorder.agent, run=self._turn.run)

    def _end(self) -> bool:
        """Return whether the call has ended already, and end it."""
        ended, self._ended = self._ended, True
        return ended

    def _question(self) -> Sequence[Any]:
        message = self._turn.message
        return [] if message is None else [{"role": "user", "content": message}]

"""Turns of one chat with a model client: an ``Exchange`` for each model call, which reports to the adapter.

A turn begins with a message of the user and ends with an answer without tool calls. A request with results of tools
that the model's last answer called continues the turn of that answer, whatever else happens in the chat.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from graphweft.adapters.core import Adapter
from graphweft.adapters.model_clients.exchange import Asked, ModelAnswer, Shape
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
    """A tool call whose result has not come back yet."""

    turn: _Turn
    tool: str


class Recorder:
    """Reports the model calls of one chat. Thread-safe. No method raises; only the context of an exchange waits."""

    def __init__(
        self, core: Adapter, variables: Mapping[str, Any], *, agent: str, scope: Mapping[str, str], remember: bool
    ) -> None:
        self.core = core
        self.variables = variables
        self.agent = agent
        self._scope = scope
        self._remember = remember
        self._lock = threading.Lock()
        self._waiting: BoundedDict[str, _Waiting] = BoundedDict(_MAX_CALLS)

    def begin(self, shape: Shape, options: Mapping[str, Any]) -> Exchange:
        """Report the results of tools in a request, and start a turn if it does not continue one."""
        asked, turn = Asked(), _Turn(run=uuid4().hex, message=None)
        with self.core.guarded("reading a request"):
            asked = shape.asked(options)
            turn = _Turn(run=turn.run, message=asked.message)
        with self._lock:
            ended = [(result, self._waiting.pop(result.call_id, None)) for result in asked.results]
        for result, call in ended:
            if call is not None:
                turn = call.turn
                self.core.end_tool(
                    self.variables, call.tool, result.call_id, result=result.content, success=result.error is None,
                    error=result.error, agent=self.agent, run=turn.run,
                )  # fmt: skip
        if all(call is None for _, call in ended):
            self.core.start_turn(self.variables, self.agent, run=turn.run)
        return Exchange(self, shape, turn)

    def remember(self, turn: _Turn, text: str | None) -> None:
        """Keep the user's message and the answer as memories."""
        data = memory_of(self._scope, turn.message, text) if self._remember else None
        if data is not None:
            self.core.emit(self.variables, MEMORY_ADD, data)

    def wait_for(self, turn: _Turn, answer: ModelAnswer) -> None:
        """Report the tool calls of an answer, and expect their results."""
        for call in answer.calls:
            with self._lock:
                self._waiting[call.id] = _Waiting(turn=turn, tool=call.name)
            self.core.start_tool(
                self.variables, call.name, call.id, arguments=call.arguments, agent=self.agent, run=turn.run
            )


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
            self._recorder.variables, self._recorder.agent, run=self._turn.run, more=self._question()
        )
        self._started_s = SYSTEM_CLOCK.monotonic()
        return reply.text

    async def acontext(self) -> str:
        """Do the same as ``context`` without blocking the event loop."""
        reply = await self._core.acontext(
            self._recorder.variables, self._recorder.agent, run=self._turn.run, more=self._question()
        )
        self._started_s = SYSTEM_CLOCK.monotonic()
        return reply.text

    def with_context(self, options: Mapping[str, Any], text: str) -> dict[str, Any]:
        """Return the arguments of the call with the context, or without it if their form is unknown."""
        if text:
            with self._core.guarded("adding the context"):
                return self.shape.with_context(options, text)
        return dict(options)

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
        about = about_model(
            self._started_s, model=answer.model, input_tokens=answer.input_tokens, output_tokens=answer.output_tokens
        )
        self._core.model_call(recorder.variables, recorder.agent, run=turn.run, success=True, about=about)
        if answer.calls:
            recorder.wait_for(turn, answer)
            return
        self._core.end_turn(recorder.variables, recorder.agent, run=turn.run, response=answer.text)
        recorder.remember(turn, answer.text)

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

    def _question(self) -> Mapping[str, Any]:
        message = self._turn.message
        return {} if message is None else {"messages": [{"role": "user", "text": message}]}

"""Turns of a loop that you write yourself: the context at the start of each, and events of what happens in it.

``Client.turn`` and ``SyncClient.turn`` make them. ``Turns`` runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import uuid4

from graphweft.adapters.last_positions import LastPositions
from graphweft.adapters.sender import AdapterStats, EventClient, Sender, no_context
from graphweft.adapters.turn_book import CallbackMoment, Chat, EmittedEvent, ErrorFields, TurnBook
from graphweft.adapters.turn_memory import MEMORY_ADD, memory_of
from graphweft.adapters.user_message import message_variables
from graphweft.adapters.values import bounded_copy
from graphweft.chat_formats import without_reasoning
from graphweft.client_messages import BUDGET_FORM, milliseconds
from graphweft.timing import CLIENT_TIMING, AdapterTiming
from graphweft.transport import CLOSED
from graphweft_contracts import ContextReply, Event
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.events import DEFAULT_WORKFLOW

_SOURCE: Final = "/graphweft/turns"

Accept: TypeAlias = Callable[[Sequence[Event]], Sequence[asyncio.Future[str | None] | None]]
"""Puts events into the client's buffer, and returns their positions."""
Post: TypeAlias = Callable[[Callable[[], None]], None]
"""Runs a function on the client's event loop, in the order of the calls. Never raises."""
_Step: TypeAlias = Callable[[TurnBook, CallbackMoment], list[EmittedEvent]]


class Turn:
    """One turn of an agent. Its methods never raise and never wait. After its end they have no effect.

    ``context`` is the context of the turn: ``text`` for the prompt, or an empty text and a ``reason``.
    """

    def __init__(self, turns: Turns, at: CallbackMoment, agent: str, message: str | None) -> None:
        self.context: ContextReply = no_context("bus_unavailable", CLOSED)
        self._turns = turns
        self._at = at
        self._agent = agent
        self._message = message
        self._answer: Any = None
        self._run = uuid4().hex
        self._post: Post | None = None
        self._ended = False

    def tool(
        self,
        name: str,
        *,
        arguments: Any = None,
        result: Any = None,
        error: str | None = None,
        success: bool | None = None,
        duration_ms: float | None = None,
    ) -> None:
        """Record a tool call that has ended. It succeeded unless there is an ``error``, or ``success`` is false."""

        def step(values: dict[str, Any], book: TurnBook, at: CallbackMoment) -> list[EmittedEvent]:
            of_turn: dict[str, Any] = {"agent": self._agent, "run": self._run}
            call_id = uuid4().hex
            started = book.start_tool(at, values["tool"], call_id, arguments=values["arguments"], **of_turn)
            worked = error is None if success is None else success
            ended = book.end_tool(
                at, values["tool"], call_id, result=values["result"], success=worked, error=values["error"], **of_turn
            )
            took = {} if duration_ms is None else {"duration_ms": duration_ms}
            for each in ended:
                each.data.pop("duration_ms", None)  # of this call, not of the tool
                each.data.update(took)
            return [*started, *ended]

        self._do(step, tool=name, arguments=arguments, result=result, error=error)

    def emit(self, type: str, data: Mapping[str, Any]) -> None:
        """Emit an event of your own as part of the turn; ``type`` is a lower-case dotted name."""

        def step(values: dict[str, Any], book: TurnBook, at: CallbackMoment) -> list[EmittedEvent]:
            return book.emit(at, type, values["data"], agent=self._agent, run=self._run)

        self._do(step, data=data)

    def answer(self, text: str, *, keep_reasoning: bool = False) -> None:
        """Set the agent's answer, which the end of the turn reports. A second answer replaces the first.

        What the model thinks aloud in it, as in ``<think>…</think>``, is left out, unless ``keep_reasoning``.
        """
        is_text = isinstance(text, str)  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        self._answer = without_reasoning(text) if is_text and not keep_reasoning else text

    # For the client

    async def start(self, post: Post, *, budget_ms: float, max_tokens: int | None = None) -> None:
        """Start the turn, and get its context within the budget. ``post`` runs the further steps."""
        asked = {**message_variables(self._message), **self._at.context}

        def step(book: TurnBook, at: CallbackMoment) -> list[EmittedEvent]:
            return book.start_turn(at, self._agent, run=self._run)

        self.context = await self._turns.start(
            self._at, step, self._agent, asked, budget_ms=budget_ms, max_tokens=max_tokens
        )
        self._post = post

    def end(self) -> None:
        """End the turn successfully, and remember the user's message with the answer."""
        message = self._message

        def step(values: dict[str, Any], book: TurnBook, at: CallbackMoment) -> list[EmittedEvent]:
            turn = book.turn(at.chat, self._agent, self._run)
            if turn is not None:
                turn.context_id = self.context.context_id or None
            events = book.end_turn(at, self._agent, run=self._run, response=values["answer"])
            scope = {"thread_id": at.chat.chat_id} | ({"user_id": at.chat.user_id} if at.chat.user_id else {})
            answer = values["answer"] if isinstance(values["answer"], str) else None
            memory = None if message is None else memory_of(scope, message, answer)
            return events if memory is None else [*events, *book.emit(at, MEMORY_ADD, memory)]

        self._do(step, answer=self._answer)
        self._ended = True

    def fail(self, error: BaseException) -> None:
        """End the turn as failed."""
        failure = ErrorFields.of(error)

        def step(values: dict[str, Any], book: TurnBook, at: CallbackMoment) -> list[EmittedEvent]:
            return book.end_turn(at, self._agent, run=self._run, failure=failure)

        self._do(step)
        self._ended = True

    def _do(
        self, step: Callable[[dict[str, Any], TurnBook, CallbackMoment], list[EmittedEvent]], **values: Any
    ) -> None:
        if self._post is None or self._ended:
            return
        copied = self._turns.copied(values)
        if copied is not None:
            self._post(partial(self._turns.record, self._at, partial(step, copied)))


class Turns:
    """Runs the turns of one client, and keeps the last position of each chat and user for their next context."""

    def __init__(
        self, client: EventClient, accept: Accept, *, capture: bool, clock: Clock = SYSTEM_CLOCK,
        timing: AdapterTiming = CLIENT_TIMING.adapters,
    ) -> None:  # fmt: skip
        self._accept = accept
        self._clock = clock
        self._capture = capture
        self._sender = Sender(
            client, source=_SOURCE, redact=None, max_tokens=None, read_own_writes=True, clock=clock, timing=timing
        )
        self._book = TurnBook()
        self._positions: LastPositions[asyncio.Future[str | None]] = LastPositions()

    @property
    def stats(self) -> AdapterStats:
        """Counts of events, requests and failures."""
        return self._sender.stats

    def turn(
        self,
        agent: str,
        chat: str,
        *,
        app: str | None,
        user: str | None,
        workflow: str | None,
        message: str | None,
        context: Mapping[str, Any] | None,
    ) -> Turn:
        """Return a turn that has not started."""
        found = Chat(app_id=app or "", chat_id=chat, workflow=workflow or DEFAULT_WORKFLOW, user_id=user or None)
        variables = self.copied(context or {}) or {}
        return Turn(self, CallbackMoment(chat=found, context=variables, now_s=self._clock.monotonic()), agent, message)

    async def start(
        self,
        at: CallbackMoment,
        step: _Step,
        agent: str,
        variables: Mapping[str, Any],
        *,
        budget_ms: float,
        max_tokens: int | None,
    ) -> ContextReply:
        """Record the start of a turn; return its context, which reflects earlier events of the chat and the user."""
        if not at.chat.app_id:
            self._sender.count("unplaced")
            self._sender.warn_once("app is required: pass it to the turn, or app_id to the client")
            return no_context("invalid_request", "app is required")
        if (budget := milliseconds(budget_ms)) is None:
            self.record(at, step)
            return no_context("invalid_request", BUDGET_FORM)
        deadline_s = self._clock.monotonic() + budget / 1000
        before = _of_this_loop(self._positions.before(at.chat))
        self.record(at, step)
        self._sender.count("asked")
        reply = await self._sender.ask(at.chat, agent, variables, before, deadline_s, max_tokens=max_tokens)
        self._sender.answered(reply, budget)
        return reply

    def copied(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a copy of limited size, or None, which is counted, if the values cannot be read."""
        try:
            return bounded_copy(values)
        except Exception as error:  # noqa: BLE001 - user code of a value
            self._sender.failed("reading values of a turn", error)
            return None

    def record(self, at: CallbackMoment, step: _Step) -> None:
        """Record a step of a turn, and emit its events."""
        if not self._capture or not at.chat.app_id:
            return
        try:
            emitted = step(self._book, replace(at, now_s=self._clock.monotonic()))
            for each in emitted:
                event = self._sender.event_of(each, self._clock.now())
                if event is None:
                    continue
                [position] = self._accept([event])
                if position is None:
                    self._sender.count("refused")
                    continue
                position.add_done_callback(self._count_refusal)
                self._positions.note(each.chat, position)
        except Exception as error:  # noqa: BLE001 - the agent continues
            self._sender.failed("a turn", error)

    def _count_refusal(self, position: asyncio.Future[str | None]) -> None:
        if not position.cancelled() and position.result() is None:
            self._sender.count("refused")


def _of_this_loop(position: asyncio.Future[str | None] | None) -> asyncio.Future[str | None] | None:
    """Return a position that the running event loop can wait for; None for one that another loop waits for."""
    loop = asyncio.get_running_loop()
    if position is None or position.get_loop() is loop:
        return position
    if not position.done() or position.cancelled():
        return None
    known: asyncio.Future[str | None] = loop.create_future()
    known.set_result(position.result())
    return known

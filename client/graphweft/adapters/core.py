"""The part that all adapters share: it turns a runtime's callbacks into events and gives each turn its context.

Rejected: a client on the runtime's own event loop. Some runtimes call back synchronously, some from several threads,
and a runtime that blocks its loop would delay events and timers. So each adapter has a thread with its own loop, and a
callback only does bookkeeping and copies values in the runtime's thread.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Collection, Coroutine, Generator, Hashable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

from typing_extensions import Self

from graphweft import tracing
from graphweft.adapters.events import TURN_COMPLETE, TURN_START
from graphweft.adapters.last_positions import LastPositions
from graphweft.adapters.sender import AdapterStats, Redact, Sender, no_context
from graphweft.adapters.turn_book import AgentTurn, CallbackMoment, Chat, EmittedEvent, ErrorFields, TurnBook
from graphweft.adapters.user_message import message_of_user, message_variables
from graphweft.adapters.values import bounded_copy, error_text
from graphweft.argument_checks import check_app, check_budget, check_max_tokens
from graphweft.background_loop import BackgroundLoop
from graphweft.chat_formats import without_reasoning
from graphweft.client import Client
from graphweft.loop_connection import ClientStats
from graphweft.settings import CONTEXT_VARIABLE, ClientSettings
from graphweft.timing import CLIENT_TIMING, DEFAULT_BUDGET_MS, AdapterTiming
from graphweft_contracts import BusUnavailable, ContextReply, InvalidEvent, PartitionRefused
from graphweft_contracts.argument_names import takes_synonyms
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock

_P = ParamSpec("_P")
_T = TypeVar("_T")

__all__ = ("Adapter", "Stamp")

Stamp: TypeAlias = Callable[[list[EmittedEvent]], list[EmittedEvent]]
"""Adds ids, times or fields that the runtime knows to events. It must not change their types or chats."""

_CLOSED: Final = "the adapter is closed: make a new one"
_MAX_AGENTS: Final = 1_000
"""Names of agents that are known, to tell what they said from what the user said."""
_MAX_REFUSAL: Final = 300
"""Characters of a provider's refusal that are logged."""


@dataclass(slots=True, kw_only=True)
class _Request:
    """The one context request of a turn."""

    after: Future[str | None] | None
    """The position of the event before the turn."""
    turn: AgentTurn | None = None
    future: Future[ContextReply] | None = None
    deadline_s: float = 0.0
    reply: ContextReply | None = None
    answered: bool = False
    """Whether a caller has received the reply, which is then final."""


def _callback(
    step: Callable[Concatenate[TurnBook, CallbackMoment, _P], list[EmittedEvent]],
) -> Callable[Concatenate[Adapter, Mapping[str, Any], _P], None]:
    """Return a method that records ``step`` and takes the runtime's context variables in place of the moment."""

    def record(self: Adapter, variables: Mapping[str, Any], /, *args: _P.args, **values: _P.kwargs) -> None:
        self._record(variables, step, *args, values=values)  # pyright: ignore[reportPrivateUsage]

    record.__name__, record.__doc__ = step.__name__, step.__doc__
    return record


class Adapter:
    """Takes a runtime's callbacks from any thread and emits the events. No method raises; only context methods wait.

    Pass a ``client`` that nobody else uses, or let the adapter make one. The ``variables`` of a callback are the
    runtime's context variables. ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` come from there unless you
    set them here. Only variables named in ``carried`` are published; by default all are.

    A turn requests its context once and waits at most ``budget_ms`` milliseconds. With ``read_own_writes`` the context
    reflects, if it arrives in time, what this adapter published for the chat or its user before the turn. ``redact``
    sees everything but the ids before it is sent; if it raises, nothing is sent. A turn without callbacks for
    ``idle_s`` seconds ends as abandoned. What a model thinks aloud in its answer, as in ``<think>…</think>``, is in no
    response and no memory, unless ``keep_reasoning``. At most ``buffer`` events wait for the adapter's thread; the
    client buffers further ones of its own.

    ``GRAPHWEFT_CONTEXT=off`` disables context requests, ``GRAPHWEFT_CAPTURE=off`` disables events. Raises
    ``InvalidSettings`` for settings that cannot work.
    """

    @takes_synonyms
    def __init__(
        self,
        client: Client | None = None,
        *,
        app_id: str | None = None,
        chat_id: str | None = None,
        workflow_name: str | None = None,
        user_id: str | None = None,
        carried: Collection[str] | None = None,
        budget_ms: int = DEFAULT_BUDGET_MS,
        max_tokens: int | None = None,
        read_own_writes: bool = True,
        redact: Redact | None = None,
        keep_reasoning: bool = False,
        idle_s: float = 300.0,
        buffer: int = 10_000,
        source: str = "/graphweft/adapters",
        clock: Clock = SYSTEM_CLOCK,
        timing: AdapterTiming = CLIENT_TIMING.adapters,
    ) -> None:
        settings = ClientSettings.from_environment()
        check_app(app_id)
        check_budget(budget_ms)
        check_max_tokens(max_tokens)
        self._client = client or Client()
        self._sender = Sender(
            self._client,
            source=source,
            redact=redact,
            max_tokens=max_tokens,
            read_own_writes=read_own_writes,
            clock=clock,
            timing=timing,
        )
        self._context_on, self._capture_on = settings.context, settings.capture
        self._fixed = {"app_id": app_id, "chat_id": chat_id, "workflow_name": workflow_name, "user_id": user_id}
        self._carried = None if carried is None else frozenset(carried)
        self._budget_ms = budget_ms
        self._keep_reasoning = keep_reasoning
        self._tick_s = min(timing.tick_s, max(0.01, idle_s / 4))
        self._buffer = buffer
        self._clock = clock
        self._lock = threading.Lock()
        self._book = TurnBook(idle_s=idle_s)
        self._requests: dict[tuple[tuple[str, str], int], _Request] = {}
        self._positions: LastPositions[Future[str | None]] = LastPositions()
        self._agents: BoundedDict[str | None, bool] = BoundedDict(_MAX_AGENTS)
        """The agents that have requested context."""
        self._queued = 0
        self._loop = BackgroundLoop("graphweft-adapter")
        self._ticking = False
        self._closed = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the adapter itself: a copied agent, or its copied settings, reports to the same adapter."""
        return self

    @property
    def stats(self) -> AdapterStats:
        """Counts of callbacks, requests and failures."""
        return self._sender.stats

    @property
    def client_stats(self) -> ClientStats:
        """Counts of the events passed to the client."""
        return self._client.stats

    # Callbacks: the methods of ``TurnBook``, with context variables in place of the moment

    start_run = _callback(TurnBook.start_run)
    end_run = _callback(TurnBook.end_run)
    start_turn = _callback(TurnBook.start_turn)
    abandon_turn = _callback(TurnBook.abandon_turn)
    start_tool = _callback(TurnBook.start_tool)
    end_tool = _callback(TurnBook.end_tool)
    model_call = _callback(TurnBook.model_call)

    def fail_run(self, variables: Mapping[str, Any], error: BaseException) -> None:
        """See ``TurnBook.fail_run``."""
        self._record(variables, partial(TurnBook.fail_run, failure=ErrorFields.of(error)))

    def end_turn(self, variables: Mapping[str, Any], agent: str, *, run: str = "", response: Any = None) -> None:
        """End the agent's turn successfully; see ``TurnBook.end_turn``."""
        said = self.spoken(response) or None if isinstance(response, str) else response
        self._record(variables, partial(TurnBook.end_turn, agent=agent, run=run), values={"response": said})

    def hand_over(
        self, variables: Mapping[str, Any], agent: str, to: str, *, run: str = "", response: Any = None
    ) -> None:
        """See ``TurnBook.hand_over``."""
        said = self.spoken(response) or None if isinstance(response, str) else response
        self._record(variables, partial(TurnBook.hand_over, agent=agent, to=to, run=run), values={"response": said})

    def fail_turn(
        self, variables: Mapping[str, Any], agent: str, error: BaseException, *, run: str = "", reported: bool = False
    ) -> None:
        """End the agent's turn as failed; see ``TurnBook.end_turn``."""
        failure = ErrorFields.of(error)
        self._record(
            variables, partial(TurnBook.end_turn, agent=agent, run=run, failure=failure, reported=reported)
        )  # fmt: skip

    def emit(
        self,
        variables: Mapping[str, Any],
        type: str,
        data: Mapping[str, Any],
        *,
        agent: str | None = None,
        run: str = "",
    ) -> None:
        """Emit an event of the runtime's own; ``type`` is a lower-case dotted name. See ``TurnBook.emit``."""
        self._record(variables, partial(TurnBook.emit, type=type, agent=agent, run=run), values={"data": data})

    def record(
        self, variables: Mapping[str, Any], step: Callable[..., list[EmittedEvent]], stamp: Stamp, **values: Any
    ) -> None:
        """Call a method of ``TurnBook`` with ``values``, and apply ``stamp`` to its events.

        For runtimes that know the ids and times of events, and may report them later.
        """
        self._record(variables, step, stamp=stamp, values=values)

    def tick(self) -> None:
        """Close abandoned turns. The adapter's thread calls this every few seconds."""
        if self._loop.forked:
            return
        with self.guarded("tick"), self._lock:
            self._enqueue(self._book.tick(self._clock.monotonic()))

    # Context

    def context(
        self, variables: Mapping[str, Any], agent: str, *, run: str = "", messages: Iterable[Any] = ()
    ) -> ContextReply:
        """Return the context of the agent's turn, and start the turn if none is open. Waits at most ``budget_ms``.

        ``messages`` are those of the model call, in a form that ``chat_formats`` reads. Rules find the user's last one
        as ``$context.last_message`` and in ``$context.messages``, unless ``variables`` has these names. No event holds
        it. Later calls in the same turn return the same reply, and read no messages.
        """
        try:
            request = self._request(variables, agent, run, messages)
            if isinstance(request, ContextReply):
                return request
            if request.reply is None and request.future is not None:
                with contextlib.suppress(TimeoutError, concurrent.futures.TimeoutError):  # one since Python 3.11
                    request.future.result(max(0.0, request.deadline_s - self._clock.monotonic()))
            return self._answer(request)
        except Exception as error:  # noqa: BLE001 - the agent continues whatever happens here
            return self._sender.without_context(error)

    async def acontext(
        self, variables: Mapping[str, Any], agent: str, *, run: str = "", messages: Iterable[Any] = ()
    ) -> ContextReply:
        """Do the same as ``context`` without blocking the event loop."""
        try:
            request = self._request(variables, agent, run, messages)
            if isinstance(request, ContextReply):
                return request
            if request.reply is None and request.future is not None:
                left_s = max(0.0, request.deadline_s - self._clock.monotonic())
                await asyncio.wait({asyncio.wrap_future(request.future)}, timeout=left_s)
            return self._answer(request)
        except Exception as error:  # noqa: BLE001 - the agent continues whatever happens here
            return self._sender.without_context(error)

    def refuse_context(self, variables: Mapping[str, Any], agent: str, error: BaseException, *, run: str = "") -> None:
        """Count that the model's provider refused a request with the turn's context; the turn goes on without it.

        ``error`` is that of the provider, which took the request without context.
        """
        self._sender.count("refused_context")
        self._sender.warn_once(
            "the model's provider refuses requests with context and takes them without: choose another context_place, "
            "or a smaller max_tokens",
            error_text(error)[:_MAX_REFUSAL],
        )
        with self.guarded("a refused context"):
            chat = self.chat(variables)
            with self._lock:
                turn = None if chat is None else self._book.turn(chat, agent, run)
                request = None if turn is None else self._requests.get((turn.chat.key, turn.number))
                if turn is not None and request is not None:
                    turn.context_id = None
                    request.turn = None
                    request.reply = no_context("invalid_request", "the model's provider refused the context")

    # What models say

    def spoken(self, text: str) -> str:
        """Return the text of an answer without the reasoning in it, unless the adapter keeps that."""
        return text if self._keep_reasoning else without_reasoning(text)

    @property
    def keep_reasoning(self) -> bool:
        """Whether what a model thinks aloud is part of responses and memories."""
        return self._keep_reasoning

    def left_out(self, forms: Iterable[str]) -> None:
        """Count parts of messages that no event and no memory holds, by their form, and log each form once."""
        self._sender.left_out(forms)

    # Searches and other work

    @property
    def budget_ms(self) -> int:
        """The longest that a turn waits for its context, in milliseconds."""
        return self._budget_ms

    @property
    def context_on(self) -> bool:
        """Whether context is requested at all; False with ``GRAPHWEFT_CONTEXT=off``."""
        return self._context_on

    @property
    def capture_on(self) -> bool:
        """Whether events are published at all; False with ``GRAPHWEFT_CAPTURE=off``."""
        return self._capture_on

    def submit(self, work: Callable[[Client], Coroutine[Any, Any, _T]]) -> Future[_T | None] | None:
        """Run ``work`` with the client in the adapter's thread, after all earlier callbacks, and return its future.

        If ``work`` raises, the error is counted and the result is None. Returns None if the adapter is closed. Pass
        texts through ``redacted`` first.
        """
        if self._forked():
            return None
        with self._lock:
            self._begin()
            return None if self._closed else self._loop.submit(partial(self._guard, work))

    async def asearch(
        self,
        asked: Collection[str],
        work: Callable[[dict[str, ContextReply], Client], Coroutine[Any, Any, None]],
        *,
        who: Hashable,
        budget_ms: float,
    ) -> dict[str, ContextReply]:
        """Run ``work``, which puts the reply of each search named in ``asked`` into its map, and return that map.

        A search without a reply within the budget gets an empty reply with a reason. Missing results are counted by
        reason and logged once for each ``who`` and reason, by the names in ``asked``.
        """
        replies: dict[str, ContextReply] = {}
        future = self.submit(partial(work, replies))
        if future is None:
            late = no_context("bus_unavailable", "the adapter is closed, or has no thread: make one in this process")
        else:
            try:
                waiting = asyncio.wrap_future(future)
                await asyncio.wait({waiting}, timeout=budget_ms / 1000)
                if waiting.done() and not waiting.cancelled():
                    late = no_context("internal_error", "the adapter failed")
                else:
                    late = no_context("timeout", f"no answer within {budget_ms:g} ms")
            finally:
                future.cancel()
        found = dict(replies)
        for what in asked:
            self._sender.searched(what, found.setdefault(what, late), who)
        return found

    @contextlib.contextmanager
    def guarded(self, where: str) -> Generator[None]:
        """Count and suppress errors raised in the block, so that the agent continues."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the agent continues whatever happens here
            self._sender.failed(where, error)

    def redacted(self, type: str, data: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return ``data`` after the ``redact`` hook, or None if nothing may be sent."""
        return self._sender.redacted(type, dict(data))

    def redacted_request(self, data: Mapping[str, Any]) -> dict[str, Any] | ContextReply:
        """Return the data of a request after the ``redact`` hook, or a reply if nothing may be sent."""
        return self._sender.redacted_request(dict(data))

    # Closing

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all events are on the bus; return False if that takes longer than ``timeout_s``."""
        future = self._loop.submit(partial(self._client.flush, timeout_s)) if self._loop.started else None
        if future is None:
            return self._queued == 0
        try:
            return future.result(timeout_s + 1)
        except Exception:  # noqa: BLE001 - the adapter was closed
            return False

    def close(self, drain_s: float = 2.0) -> None:
        """Close open turns as abandoned, send buffered events for at most ``drain_s`` seconds, and end the thread."""
        with self.guarded("close"):
            if self._loop.forked:
                return
            with self._lock:
                if self._closed:
                    return
                self._enqueue(self._book.close(self._clock.monotonic()))
                self._closed = True
            atexit.unregister(self.close)
            self._loop.stop(partial(self._client.aclose, drain_s))

    async def aclose(self, drain_s: float = 2.0) -> None:
        """Do the same as ``close`` without blocking the event loop."""
        await asyncio.to_thread(self.close, drain_s)

    # In the runtime's thread

    def _record(
        self,
        variables: Mapping[str, Any],
        step: Callable[..., list[EmittedEvent]],
        *args: Any,
        stamp: Stamp | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        if self._forked() or not (self._context_on or self._capture_on):
            return
        with self.guarded("callback"):
            chat = self.chat(variables)
            if chat is None:
                return
            copied, context = bounded_copy(values or {}), self._carry(variables)
            with self._lock:
                at = CallbackMoment(chat=chat, context=context, now_s=self._clock.monotonic())
                events = step(self._book, at, *args, **copied)
                self._enqueue(events if stamp is None else stamp(events))

    def chat(self, variables: Mapping[str, Any]) -> Chat | None:
        """Return the chat that the context variables name, or None, which is counted, if they name none."""

        def text(name: str) -> str | None:
            value = self._fixed[name] or variables.get(name)
            return (str(value) or None) if value is not None else None  # runtimes write "" for unknown

        app_id, chat_id = text("app_id"), text("chat_id")
        if app_id is None and variables.get("app_id") is None:  # "" is an unknown app, and not the client's
            app_id = self._client.app_id
        if not app_id or not chat_id:
            self.unplaced("app_id and chat_id are required: pass them to the adapter, or as context variables")
            return None
        workflow = text("workflow_name") or self._client.workflow
        return Chat(app_id=app_id, chat_id=chat_id, workflow=workflow, user_id=text("user_id"))

    def unplaced(self, why: str) -> None:
        """Count a callback that belongs to no chat, and log ``why`` once."""
        self._sender.count("unplaced")
        self._sender.warn_once(why)

    def _forked(self) -> bool:
        """Return whether this is a copy in a forked process, where the thread is gone and its locks may stay held."""
        if self._loop.forked:
            self._sender.warn_once(
                "no events and no context: the adapter was made before a fork; make it after the fork"
            )
        return self._loop.forked

    def _carry(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        wanted = self._carried
        chosen = variables if wanted is None else {name: variables[name] for name in variables if name in wanted}
        return bounded_copy(chosen)

    def _enqueue(self, events: list[EmittedEvent]) -> None:
        """Pass the events to the adapter's thread, in order. Call this with the lock held."""
        if events:
            self._begin()
        for event in events:
            number = event.data.get("turn_number") if event.type in {TURN_START, TURN_COMPLETE} else None
            key = None if number is None else (event.chat.key, number)
            if key is not None and event.type == TURN_START:
                self._requests[key] = _Request(after=self._positions.before(event.chat))
            elif key is not None:
                self._requests.pop(key, None)
            if not self._capture_on:
                continue
            position: Future[str | None] = Future()
            if self._queued >= self._buffer or self._closed:
                self._drop(position)
                continue
            self._queued += 1
            if not self._loop.call(partial(self._send, event, self._clock.now(), position)):
                self._queued -= 1
                self._drop(position)
                continue
            self._positions.note(event.chat, position)

    def _begin(self) -> None:
        """Start the timer for abandoned turns, and close the adapter at exit. Call this with the lock held."""
        # The timer lasts longer than the span in which it begins.
        if not self._ticking and not self._closed and tracing.apart().run(self._loop.call, self._tick_on):
            self._ticking = True
            atexit.register(self.close)

    def _drop(self, position: Future[str | None]) -> None:
        position.set_result(None)
        self._sender.count("dropped")
        self._sender.warn_once(
            "events are dropped: the adapter is closed, its thread is too slow, or the system refuses it a thread"
        )

    def _request(
        self, variables: Mapping[str, Any], agent: str, run: str, messages: Iterable[Any]
    ) -> _Request | ContextReply:
        """Send the turn's request, if that has not happened yet, and return it, or a reply if it needs no request."""
        if not self._context_on:
            return no_context("disabled", f"{CONTEXT_VARIABLE} is off in this process")
        started_s = self._clock.monotonic()
        if self._forked():
            return no_context("bus_unavailable", "the adapter belongs to another process: make one in this process")
        chat = self.chat(variables)
        if chat is None:
            return no_context("invalid_request", "app_id and chat_id are required")
        context = self._carry(variables)
        said = self._said(chat, agent, run, messages)
        with self._lock:
            if self._closed:
                return no_context("bus_unavailable", _CLOSED)
            turn = self._book.turn(chat, agent, run)
            if turn is None:
                self._enqueue(
                    self._book.start_turn(
                        CallbackMoment(chat=chat, context=context, now_s=self._clock.monotonic()), agent, run=run
                    )
                )
                turn = self._book.turn(chat, agent, run)
                assert turn is not None
            request = self._requests[chat.key, turn.number]
            if request.future is None and request.reply is None:
                self._sender.count("asked")
                request.turn = turn
                request.deadline_s = started_s + self._budget_ms / 1000
                request.future = self._loop.submit(
                    partial(self._sender.ask, chat, agent, {**said, **context}, request.after, request.deadline_s)
                )
                request.reply = None if request.future else no_context("bus_unavailable", _CLOSED)
            return request

    def _said(self, chat: Chat, agent: str, run: str, messages: Iterable[Any]) -> dict[str, Any]:
        """Return the user's message as variables of the turn's request, or none if that is sent already."""
        with self._lock:
            self._agents[agent] = True
            turn = self._book.turn(chat, agent, run)
            request = None if turn is None else self._requests.get((chat.key, turn.number))
            if request is not None and request.future is not None:
                return {}
        said: dict[str, Any] = {}
        with self.guarded("reading the messages of a model call"):  # without the lock: they are objects of the runtime
            said |= bounded_copy(message_variables(message_of_user(messages, self._agents)))
        return said

    def _answer(self, request: _Request) -> ContextReply:
        """Return the final reply of the turn: the one that has arrived, or an empty one."""
        with self._lock:
            if request.reply is None and request.future is not None:
                if request.future.done() and not request.future.cancelled():
                    request.reply = request.future.result()
                else:
                    request.future.cancel()
                    request.reply = no_context("timeout", f"no answer within {self._budget_ms} ms")
            assert request.reply is not None
            if request.turn is not None:
                request.turn.context_id = request.reply.context_id or None
            reply, first, request.answered = request.reply, not request.answered, True
        if first:  # without the lock: log handlers may be user code
            self._sender.answered(reply, self._budget_ms)
        return reply

    # In the adapter's thread

    def _send(self, event: EmittedEvent, time: datetime, position: Future[str | None]) -> None:
        with self._lock:
            self._queued -= 1
        self._sender.publish(event, time, position)

    async def _guard(self, work: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T | None:
        try:
            return await work(self._client)
        except (InvalidEvent, PartitionRefused, BusUnavailable):  # an event that is not sent, which the client logs
            self._sender.count("refused")
            return None
        except Exception as error:  # noqa: BLE001 - the loop continues
            self._sender.failed("submitted work", error)
            return None

    def _tick_on(self) -> None:
        self.tick()
        asyncio.get_running_loop().call_later(self._tick_s, self._tick_on)

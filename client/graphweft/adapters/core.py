"""What all adapters share: a runtime's callbacks become events, and a turn gets its context, once.

Rejected: a client on the runtime's own event loop. Some runtimes call back synchronously, some from several threads,
and a runtime that blocks its loop would hold up events and timers. So each adapter has a thread with a loop of its own,
and what a callback does in the runtime's thread is bookkeeping and a copy of its values.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Generator, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

from graphweft.adapters.background import BackgroundLoop
from graphweft.adapters.sending import AdapterStats, Redact, Sender, no_context
from graphweft.adapters.turns import Chat, Failure, Told, Turn, TurnBook
from graphweft.adapters.vocabulary import TURN_COMPLETE, TURN_START
from graphweft.client import Client, ClientStats
from graphweft.plain import plain
from graphweft.settings import CONTEXT_VARIABLE, ClientSettings
from graphweft_contracts import ContextReply

__all__ = ("Adapter", "Stamp")

type Stamp = Callable[[list[Told]], list[Told]]
"""Adds what a runtime knows of events: their ids, times, further fields. It must change neither types nor chats."""

_MOST_VALUES: Final = 20_000
"""Values of one callback that are copied: a few tens of milliseconds at worst."""
_MOST_CHARACTERS: Final = 200_000
"""Characters of a text that are copied; an event of a megabyte is refused by the bus altogether."""
_TICK_S: Final = 5.0
"""Most seconds between two looks for abandoned turns."""
_CHATS: Final = 10_000
"""Chats of which the last event's position is kept."""


@dataclass(slots=True, kw_only=True)
class _Ask:
    """A turn's one request for context."""

    after: Future[str | None] | None
    """The position of the event before the turn."""
    turn: Turn | None = None
    future: Future[ContextReply] | None = None
    deadline_s: float = 0.0
    reply: ContextReply | None = None
    sealed: bool = False
    """Whether somebody has got the reply, which is final then."""


class Adapter:
    """Takes a runtime's callbacks from any thread. Nothing here raises, and nothing waits but ``context``.

    ``client`` is one that nobody else uses; without it there is a new one. ``variables`` of a callback are the
    runtime's context variables; ``app_id``, ``chat_id``, ``workflow_name`` and ``user_id`` are among them unless they
    are given here once for all. Only those named by ``carried`` go to the bus; without it all do.

    A turn is asked for its context once, and waits ``budget_ms`` for it at most; with ``read_own_writes`` the answer
    holds, if it comes in time, what this adapter published of the chat before the turn. ``redact`` sees all but the
    ids before the bus does; where it raises, nothing is sent. A turn without any callback for ``idle_s`` seconds was
    abandoned. At most ``buffer`` events wait for the adapter's thread, besides those that the client keeps.

    ``GRAPHWEFT_CONTEXT=off`` and ``GRAPHWEFT_CAPTURE=off`` switch asking and publishing off.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        app_id: str | None = None,
        chat_id: str | None = None,
        workflow_name: str | None = None,
        user_id: str | None = None,
        carried: Collection[str] | None = None,
        budget_ms: int = 50,
        max_tokens: int | None = None,
        read_own_writes: bool = True,
        redact: Redact | None = None,
        idle_s: float = 300.0,
        buffer: int = 10_000,
        source: str = "/graphweft/adapters",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = ClientSettings.from_environment()
        self._client = client or Client()
        self._sender = Sender(
            self._client, source=source, redact=redact, max_tokens=max_tokens, read_own_writes=read_own_writes
        )
        self._context_on, self._capture_on = settings.context, settings.capture
        self._fixed = {"app_id": app_id, "chat_id": chat_id, "workflow_name": workflow_name, "user_id": user_id}
        self._carried = None if carried is None else frozenset(carried)
        self._budget_ms = budget_ms
        self._tick_s = min(_TICK_S, max(0.01, idle_s / 4))
        self._buffer = buffer
        self._clock = clock
        self._lock = threading.Lock()
        self._book = TurnBook(idle_s=idle_s)
        self._asks: dict[tuple[tuple[str, str], int], _Ask] = {}
        self._last: dict[tuple[str, str], Future[str | None]] = {}
        self._waiting = 0
        self._loop = BackgroundLoop("graphweft-adapter")
        self._ticking = False
        self._closed = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the adapter itself: a copy of an agent, or of its settings, tells the same books."""
        return self

    @property
    def stats(self) -> AdapterStats:
        """What became of the callbacks."""
        return self._sender.stats

    @property
    def client_stats(self) -> ClientStats:
        """What became of the events that the client was given."""
        return self._client.stats

    # Callbacks

    def start_run(self, variables: Mapping[str, Any]) -> None:
        """Tell that a run of the workflow begins."""
        self._record(variables, TurnBook.start_run)

    def end_run(self, variables: Mapping[str, Any], *, outputs: Any = None) -> None:
        """Tell that the run has ended well."""
        self._record(variables, TurnBook.end_run, outputs=outputs)

    def fail_run(self, variables: Mapping[str, Any], error: BaseException) -> None:
        """Tell that the run has failed; one that a turn failed with is not told again."""
        self._record(variables, TurnBook.fail_run, raised=error)

    def start_turn(
        self,
        variables: Mapping[str, Any],
        agent: str,
        *,
        run: str = "",
        fresh: bool = False,
        sequential: bool = False,
    ) -> None:
        """See ``TurnBook.start_turn``."""
        self._record(variables, partial(TurnBook.start_turn, agent=agent, run=run, fresh=fresh, sequential=sequential))

    def end_turn(self, variables: Mapping[str, Any], agent: str, *, run: str = "", response: Any = None) -> None:
        """Tell that the agent has answered."""
        self._record(variables, partial(TurnBook.end_turn, agent=agent, run=run), response=response)

    def fail_turn(self, variables: Mapping[str, Any], agent: str, error: BaseException, *, run: str = "") -> None:
        """Tell that the agent's turn failed."""
        self._record(variables, partial(TurnBook.end_turn, agent=agent, run=run), raised=error)

    def hand_over(self, variables: Mapping[str, Any], agent: str, to: str, *, run: str = "") -> None:
        """Tell that the agent hands the chat over to another one."""
        self._record(variables, partial(TurnBook.hand_over, agent=agent, to=to, run=run))

    def abandon_turn(self, variables: Mapping[str, Any], agent: str, *, run: str = "") -> None:
        """Tell that nobody waits for the agent's answer any more, such as the reader of a stream that was closed."""
        self._record(variables, partial(TurnBook.abandon_turn, agent=agent, run=run))

    def start_tool(
        self,
        variables: Mapping[str, Any],
        tool: str,
        call_id: str,
        *,
        arguments: Any = None,
        agent: str | None = None,
        run: str = "",
    ) -> None:
        """Tell that a tool is about to be called."""
        step = partial(TurnBook.start_tool, tool=tool, call_id=call_id, agent=agent, run=run)
        self._record(variables, step, arguments=arguments)

    def end_tool(
        self,
        variables: Mapping[str, Any],
        tool: str,
        call_id: str,
        *,
        result: Any = None,
        success: bool | None = None,
        error: str | None = None,
        agent: str | None = None,
        run: str = "",
    ) -> None:
        """Tell that the tool has returned or failed; ``agent`` and ``run`` are those of its start."""
        step = partial(TurnBook.end_tool, tool=tool, call_id=call_id, success=success, agent=agent, run=run)
        self._record(variables, step, result=result, error=error)

    def model_call(
        self,
        variables: Mapping[str, Any],
        agent: str,
        *,
        run: str = "",
        success: bool,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Tell that a model has answered the agent, or failed to."""
        self._record(variables, partial(TurnBook.model_call, agent=agent, run=run, success=success), about=about or {})

    def tell(
        self,
        variables: Mapping[str, Any],
        type: str,
        data: Mapping[str, Any],
        *,
        agent: str | None = None,
        run: str = "",
    ) -> None:
        """Publish an event of the runtime's own; ``type`` is a lower-case dotted name."""
        self._record(variables, partial(TurnBook.tell, type=type, agent=agent, run=run), data=data)

    def record(
        self, variables: Mapping[str, Any], step: Callable[..., list[Told]], stamp: Stamp, **values: Any
    ) -> None:
        """Tell what a step of ``TurnBook`` makes of ``values``, and of what ``stamp`` adds to each event.

        For runtimes that know ids and times of what they tell, and may tell it later.
        """
        self._record(variables, step, stamp=stamp, **values)

    def tick(self) -> None:
        """Close the turns that were abandoned. The adapter's own thread does so every few seconds."""
        if self._loop.forked:
            return
        with self.guarded("tick"), self._lock:
            self._hand_on(self._book.tick(self._clock()))

    # Context

    def context(self, variables: Mapping[str, Any], agent: str, *, run: str = "") -> ContextReply:
        """Return the context of the agent's turn, which it begins if none is open; wait for it at most the budget.

        The second call of a turn returns what the first one did.
        """
        try:
            ask = self._asking(variables, agent, run)
            if isinstance(ask, ContextReply):
                return ask
            if ask.reply is None and ask.future is not None:
                with contextlib.suppress(TimeoutError):
                    ask.future.result(max(0.0, ask.deadline_s - time.monotonic()))
            return self._sealed(ask)
        except Exception as error:  # noqa: BLE001 - the agent's turn goes on whatever happens here
            return self._sender.without_context(error)

    async def acontext(self, variables: Mapping[str, Any], agent: str, *, run: str = "") -> ContextReply:
        """Return what ``context`` does, without blocking the event loop."""
        try:
            ask = self._asking(variables, agent, run)
            if isinstance(ask, ContextReply):
                return ask
            if ask.reply is None and ask.future is not None:
                left_s = max(0.0, ask.deadline_s - time.monotonic())
                await asyncio.wait({asyncio.wrap_future(ask.future)}, timeout=left_s)
            return self._sealed(ask)
        except Exception as error:  # noqa: BLE001 - the agent's turn goes on whatever happens here
            return self._sender.without_context(error)

    # Other work

    @property
    def budget_ms(self) -> int:
        """Most milliseconds that a turn waits."""
        return self._budget_ms

    @property
    def context_on(self) -> bool:
        """Whether anything is asked for at all: not with ``GRAPHWEFT_CONTEXT=off``."""
        return self._context_on

    @property
    def capture_on(self) -> bool:
        """Whether anything is published at all: not with ``GRAPHWEFT_CAPTURE=off``."""
        return self._capture_on

    def submit[T](self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> Future[T | None] | None:
        """Have ``work`` use the client in the adapter's thread, behind what was told before, and return its future.

        What it raises is counted and gives None; None is also returned where the adapter is closed. Texts go through
        ``redacted`` first.
        """
        if self._forked():
            return None
        with self._lock:
            self._begin()
            return None if self._closed else self._loop.submit(partial(self._guard, work))

    async def asubmit[T](
        self, work: Callable[[Client], Coroutine[Any, Any, T]], budget_ms: float | None = None
    ) -> T | None:
        """Return what ``submit`` gives, or None when that takes longer than the budget; then the work is cancelled."""
        future = self.submit(work)
        if future is None:
            return None
        try:
            waiting = asyncio.wrap_future(future)
            await asyncio.wait({waiting}, timeout=(self._budget_ms if budget_ms is None else budget_ms) / 1000)
            return waiting.result() if waiting.done() and not waiting.cancelled() else None
        finally:
            future.cancel()

    async def asearch(
        self,
        asked: Collection[str],
        work: Callable[[dict[str, ContextReply], Client], Coroutine[Any, Any, None]],
        *,
        who: Hashable,
        budget_ms: float,
    ) -> dict[str, ContextReply]:
        """Have ``work`` put the reply of each search of ``asked`` into its map, as ``submit`` does; return all of them.

        A search without a reply within the budget gets one that says why. What replies lack is counted by reason, and
        said once for each ``who`` and reason; there ``asked`` name what is searched.
        """
        replies: dict[str, ContextReply] = {}
        future = self.submit(partial(work, replies))
        if future is None:
            late = no_context("bus_unavailable", "the adapter is closed, or has no thread in this process")
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
        """Count what is raised within, and go on behind it: an adapter's own failure is none of the agent's."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the agent's turn goes on whatever happens here
            self._sender.failed(where, error)

    def redacted(self, type: str, data: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what of ``data`` may go to the bus by the ``redact`` setting, or None for nothing."""
        return self._sender.redacted(type, dict(data))

    def redacted_request(self, data: Mapping[str, Any]) -> dict[str, Any] | ContextReply:
        """Return what of a request may go to the bus by the ``redact`` setting, or the reply where nothing may."""
        return self._sender.redacted_request(dict(data))

    # The end

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all that was told is on the bus; return False when that takes longer."""
        future = self._loop.submit(partial(self._client.flush, timeout_s)) if self._loop.started else None
        if future is None:
            return self._waiting == 0
        try:
            return future.result(timeout_s + 1)
        except Exception:  # noqa: BLE001 - closed meanwhile
            return False

    def close(self, drain_s: float = 2.0) -> None:
        """Close open turns as abandoned, send what is buffered, for at most ``drain_s`` seconds, and end the thread."""
        with self.guarded("close"):
            if self._loop.forked:
                return
            with self._lock:
                if self._closed:
                    return
                self._hand_on(self._book.close(self._clock()))
                self._closed = True
            atexit.unregister(self.close)
            self._loop.stop(partial(self._client.aclose, drain_s))

    async def aclose(self, drain_s: float = 2.0) -> None:
        """``close`` without blocking the event loop."""
        await asyncio.to_thread(self.close, drain_s)

    # In the runtime's thread

    def _record(
        self,
        variables: Mapping[str, Any],
        step: Callable[..., list[Told]],
        *,
        raised: BaseException | None = None,
        stamp: Stamp | None = None,
        **values: Any,
    ) -> None:
        if self._forked() or not (self._context_on or self._capture_on):
            return
        with self.guarded("callback"):
            chat = self.chat(variables)
            if chat is None:
                return
            copied = plain(values, most_values=_MOST_VALUES, most_characters=_MOST_CHARACTERS)
            if raised is not None:
                copied["failure"] = _failure(raised)
            context = self._carry(variables)
            with self._lock:
                told = step(self._book, chat=chat, context=context, now_s=self._clock(), **copied)
                self._hand_on(told if stamp is None else stamp(told))

    def chat(self, variables: Mapping[str, Any]) -> Chat | None:
        """Return the chat that context variables belong to; None, counted, where they name none."""

        def text(name: str) -> str | None:
            value = self._fixed[name] or variables.get(name)
            return (str(value) or None) if value is not None else None  # runtimes write "" for unknown

        app_id, chat_id = text("app_id") or self._client.app_id, text("chat_id")
        if not app_id or not chat_id:
            self._sender.count("unplaced")
            self._sender.say_once(
                "app_id and chat_id are needed: pass them to the adapter or put them into the context"
            )
            return None
        workflow = text("workflow_name") or self._client.workflow
        return Chat(app_id=app_id, chat_id=chat_id, workflow=workflow, user_id=text("user_id"))

    def _forked(self) -> bool:
        """Return whether this is a copy in a forked process. It does nothing, for its thread stayed behind and what
        that held at that moment is locked for good.
        """
        if self._loop.forked:
            self._sender.say_once("no events and no context: the adapter was made before a fork; make one behind it")
        return self._loop.forked

    def _carry(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        wanted = self._carried
        chosen = variables if wanted is None else {name: variables[name] for name in variables if name in wanted}
        return plain(chosen, most_values=_MOST_VALUES, most_characters=_MOST_CHARACTERS)

    def _hand_on(self, told: list[Told]) -> None:
        """Give the events to the adapter's thread, in order; the lock is held."""
        if told:
            self._begin()
        for one in told:
            number = one.data.get("turn_number") if one.type in {TURN_START, TURN_COMPLETE} else None
            key = None if number is None else (one.chat.key, number)
            if key is not None and one.type == TURN_START:
                self._asks[key] = _Ask(after=self._last.get(one.chat.key))
            elif key is not None:
                self._asks.pop(key, None)
            if not self._capture_on:
                continue
            position: Future[str | None] = Future()
            if self._waiting >= self._buffer or self._closed:
                self._drop(position)
                continue
            self._waiting += 1
            if not self._loop.call(partial(self._send, one, datetime.now(UTC), position)):
                self._waiting -= 1
                self._drop(position)
                continue
            self._last.pop(one.chat.key, None)
            self._last[one.chat.key] = position
            if len(self._last) > _CHATS:
                del self._last[next(iter(self._last))]

    def _begin(self) -> None:
        """Have the thread look for abandoned turns, and the process close the adapter at its end; the lock is held."""
        if not self._ticking and not self._closed and self._loop.call(self._tick_on):
            self._ticking = True
            atexit.register(self.close)

    def _drop(self, position: Future[str | None]) -> None:
        position.set_result(None)
        self._sender.count("dropped")
        self._sender.say_once(
            "events are dropped: the adapter is closed, its thread does not keep up, or the system gives it no thread"
        )

    def _asking(self, variables: Mapping[str, Any], agent: str, run: str) -> _Ask | ContextReply:
        """Return the turn's request, sent by now, or an answer for which none is needed."""
        if not self._context_on:
            return no_context("disabled", f"{CONTEXT_VARIABLE} is off in this process")
        started_s = time.monotonic()
        if self._forked():
            return no_context("bus_unavailable", "the adapter belongs to another process")
        chat = self.chat(variables)
        if chat is None:
            return no_context("invalid_request", "app_id and chat_id are needed")
        context = self._carry(variables)
        with self._lock:
            if self._closed:
                return no_context("bus_unavailable", "the adapter is closed")
            turn = self._book.turn(chat, agent, run)
            if turn is None:
                self._hand_on(self._book.start_turn(chat, agent, context, self._clock(), run=run))
                turn = self._book.turn(chat, agent, run)
                assert turn is not None
            ask = self._asks[chat.key, turn.number]
            if ask.future is None and ask.reply is None:
                self._sender.count("asked")
                ask.turn = turn
                ask.deadline_s = started_s + self._budget_ms / 1000
                ask.future = self._loop.submit(
                    partial(self._sender.ask, chat, agent, context, ask.after, ask.deadline_s)
                )
                ask.reply = None if ask.future else no_context("bus_unavailable", "the adapter is closed")
            return ask

    def _sealed(self, ask: _Ask) -> ContextReply:
        """Return the turn's answer: what has come by now, for good."""
        with self._lock:
            if ask.reply is None and ask.future is not None:
                if ask.future.done() and not ask.future.cancelled():
                    ask.reply = ask.future.result()
                else:
                    ask.future.cancel()
                    ask.reply = no_context("timeout", f"no answer within {self._budget_ms} ms")
            assert ask.reply is not None
            if ask.turn is not None:
                ask.turn.context_id = ask.reply.context_id or None
            reply, first, ask.sealed = ask.reply, not ask.sealed, True
        if first:  # a log handler may be anybody's code, so the lock is not held
            self._sender.answered(reply)
        return reply

    # In the adapter's thread

    def _send(self, told: Told, time: datetime, position: Future[str | None]) -> None:
        with self._lock:
            self._waiting -= 1
        self._sender.publish(told, time, position)

    async def _guard[T](self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T | None:
        try:
            return await work(self._client)
        except Exception as error:  # noqa: BLE001 - the loop goes on
            self._sender.failed("submitted work", error)
            return None

    def _tick_on(self) -> None:
        self.tick()
        asyncio.get_running_loop().call_later(self._tick_s, self._tick_on)


def _failure(error: BaseException) -> Failure:
    try:
        message = str(error)[:_MOST_CHARACTERS].encode(errors="replace").decode()
    except Exception:  # noqa: BLE001 - an exception's own code
        message = None
    return Failure(error_type=type(error).__name__, error_message=message)

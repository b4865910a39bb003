"""The client for synchronous callers. It runs ``Client`` on an event loop in a background thread."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar
from uuid import uuid4

from typing_extensions import Self

from graphweft.background_loop import BackgroundLoop, renew_after_fork
from graphweft.client import Client
from graphweft.loop_connection import ClientStats
from graphweft.outbox import EncodedEvent
from graphweft.refusal_log import RefusalLog
from graphweft.timing import CLIENT_TIMING, DEFAULT_BUDGET_MS
from graphweft.transport import CLOSED, Outcome
from graphweft_contracts import BusUnavailable, ContextReply, Event
from graphweft_contracts.argument_names import takes_synonyms

P = ParamSpec("P")
T = TypeVar("T")

if TYPE_CHECKING:
    from graphweft.turns import Turn, Turns

logger = logging.getLogger("graphweft.client")

_THREAD: Final = "graphweft-client"
_OF_PARENT: Final[list[BackgroundLoop]] = []
"""Event loops of the parent of a forked process, which are never collected: that would close what it uses."""


def _closed() -> ContextReply:
    return ContextReply(id=uuid4().hex, reason="bus_unavailable", detail=CLOSED, partial=True)


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]], when_closed: Callable[[], T]
) -> Callable[Concatenate[SyncClient, P], T]:
    """Return a method of ``SyncClient`` that takes the same arguments as ``method`` and waits for its result."""

    @functools.wraps(method)
    def call(self: SyncClient, /, *args: P.args, **options: P.kwargs) -> T:
        return self._run(lambda client: method(client, *args, **options), when_closed())  # pyright: ignore[reportPrivateUsage]

    return call


class SyncClient:
    """``Client`` without ``await``. Thread-safe. Close it, or use it as a context manager.

    It takes the settings of ``Client``. An open client is closed when the interpreter exits. It may be used after a
    fork: then the child has a thread and connections of its own, and the parent sends what was buffered before.
    """

    @takes_synonyms
    def __init__(
        self,
        bus_url: str | None = None,
        *,
        app_id: str | None = None,
        workflow: str | None = None,
        buffer: int = 10_000,
        buffer_bytes: int = 64 * 1024**2,
        budget_ms: int = DEFAULT_BUDGET_MS,
        signing_key: str | None = None,
        max_events_per_s: float | None = None,
        max_bytes_per_s: float | None = None,
    ) -> None:
        # First, because it may raise: an invalid address must not leave a thread behind.
        self._client = Client(
            bus_url,
            app_id=app_id,
            workflow=workflow,
            buffer=buffer,
            buffer_bytes=buffer_bytes,
            budget_ms=budget_ms,
            signing_key=signing_key,
            max_events_per_s=max_events_per_s,
            max_bytes_per_s=max_bytes_per_s,
        )
        self._refusals = RefusalLog(logger)
        self._lock = threading.Lock()
        renew_after_fork(self, threading.Lock)
        self._closed = False
        self._loop = BackgroundLoop(_THREAD)
        atexit.register(self.close)

    def _running(self) -> BackgroundLoop:
        """Return the loop, after a fork a new one. Call this with the lock held."""
        if self._loop.forked and not self._closed:
            _OF_PARENT.append(self._loop)
            self._loop = BackgroundLoop(_THREAD)
        return self._loop

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send buffered events, then close."""
        self.close()

    @property
    def stats(self) -> ClientStats:
        """Counts of the emitted events by outcome."""
        return self._client.stats

    @property
    def app_id(self) -> str | None:
        """The default app."""
        return self._client.app_id

    @property
    def budget_ms(self) -> int:
        """The default budget."""
        return self._client.budget_ms

    def emit(self, event: Event, *, wait_s: float = 1.0) -> str | None:
        """See ``Client.emit``."""
        return self.emit_all((event,), wait_s=wait_s)[0]

    def emit_all(self, events: Sequence[Event], *, wait_s: float = 1.0) -> list[str | None]:
        """See ``Client.emit_all``."""
        return [each if isinstance(each, str) else None for each in self.emit_each(events, wait_s=wait_s)]

    def emit_each(self, events: Sequence[Event | EncodedEvent], *, wait_s: float = 1.0) -> list[Outcome | None]:
        """See ``Client.emit_each``."""
        closed: list[Outcome | None] = [BusUnavailable(CLOSED)] * len(events)
        if self._closed:
            self.stats.rejected += len(events)
            for event in events:
                self._refusals.note(getattr(event, "id", None), CLOSED)
            return closed
        return self._run(lambda client: client.emit_each(events, wait_s=wait_s), closed)

    context = _blocking(Client.context, _closed)
    search = _blocking(Client.search, _closed)
    flush = _blocking(Client.flush, bool)

    @takes_synonyms
    @contextlib.contextmanager
    def turn(
        self,
        *,
        agent: str,
        chat: str,
        user: str | None = None,
        message: str | None = None,
        app: str | None = None,
        workflow: str | None = None,
        context: Mapping[str, Any] | None = None,
        budget_ms: int | None = None,
        max_tokens: int | None = None,
    ) -> Generator[Turn]:
        """See ``Client.turn``. The methods of the turn do not wait."""
        client = self._client
        turn = self.turns.turn(
            agent, chat, app=client.app_id if app is None else app, user=user, workflow=workflow or client.workflow,
            message=message, context=context,
        )  # fmt: skip
        budget = client.budget_ms if budget_ms is None else budget_ms
        self._run(lambda _: turn.start(self._post, budget_ms=budget, max_tokens=max_tokens), None)
        try:
            yield turn
        except BaseException as error:
            turn.fail(error)
            raise
        turn.end()

    @property
    def turns(self) -> Turns:
        """See ``Client.turns``."""
        with self._lock:  # made at the first call
            return self._client.turns

    def _post(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._running().call(work)

    def close(self, drain_s: float = 2.0) -> None:
        """See ``Client.aclose``. Also ends calls of other threads and the background thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        self._loop.stop(lambda: self._finish(drain_s))

    async def _finish(self, drain_s: float) -> None:
        await self._client.aclose(drain_s)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:  # if the loop stopped under a waiting call, its thread would wait forever
            await asyncio.wait(others, timeout=CLIENT_TIMING.last_calls_s)

    def _run(self, work: Callable[[Client], Coroutine[Any, Any, T]], when_closed: T) -> T:
        with self._lock:
            future = self._running().submit(lambda: work(self._client))
        try:
            return when_closed if future is None else future.result()
        except CancelledError:  # by ``close`` in another thread
            return when_closed

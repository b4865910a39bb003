"""The client for synchronous callers: the same promises, on an event loop of its own in a background thread."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

from graphweft.client import Client, ClientStats
from graphweft_contracts import ContextReply, Event, MemoryScope, SearchQuery
from graphweft_contracts.search import IndexType, Searched, WithoutEmbedder

__all__ = ("SyncClient",)


logger = logging.getLogger("graphweft.client")

_LAST_CALLS_S: Final = 1.0
"""How long ``close`` waits for other threads' calls after the client is closed; those still waiting are ended."""


class SyncClient:
    """``Client`` without ``await``; safe to share between threads. Close it, or use it as a context manager.

    One that is still open when the interpreter ends is closed then. A forked process must make its own: the thread
    does not come along, so there the inherited one behaves as if it were closed.
    """

    def __init__(
        self,
        bus_url: str | None = None,
        *,
        app_id: str | None = None,
        workflow: str | None = None,
        buffer: int = 10_000,
        buffer_bytes: int = 64 * 1024**2,
        budget_ms: int = 500,
    ) -> None:
        # First, for it may raise: a broken address must not leave a thread behind.
        self._client = Client(
            bus_url,
            app_id=app_id,
            workflow=workflow,
            buffer=buffer,
            buffer_bytes=buffer_bytes,
            budget_ms=budget_ms,
        )
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="graphweft-client", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what is buffered, then close."""
        self.close()

    @property
    def stats(self) -> ClientStats:
        """Counts of what became of the emitted events."""
        return self._client.stats

    @property
    def app_id(self) -> str | None:
        """The app that is meant where none is named."""
        return self._client.app_id

    def emit(self, event: Event, *, wait_s: float = 1.0) -> str | None:
        """See ``Client.emit``."""
        return self.emit_all((event,), wait_s=wait_s)[0]

    def emit_all(self, events: Sequence[Event], *, wait_s: float = 1.0) -> list[str | None]:
        """See ``Client.emit_all``."""
        if self._closed or not self._thread.is_alive():
            self.stats.rejected += len(events)
            for event in events:
                logger.warning("event %s came after the client was closed and is not sent", getattr(event, "id", None))
            return [None] * len(events)
        return self._run(lambda: self._client.emit_all(events, wait_s=wait_s), [None] * len(events))

    def context(
        self,
        *,
        agent: str,
        chat_id: str,
        app_id: str | None = None,
        workflow: str | None = None,
        user_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        budget_ms: int | None = None,
        max_tokens: int | None = None,
        after: str | None = None,
        explain: bool = False,
        search: SearchQuery | None = None,
    ) -> ContextReply:
        """See ``Client.context``."""
        return self._run(
            lambda: self._client.context(
                agent=agent,
                chat_id=chat_id,
                app_id=app_id,
                workflow=workflow,
                user_id=user_id,
                context=context,
                budget_ms=budget_ms,
                max_tokens=max_tokens,
                after=after,
                explain=explain,
                search=search,
            ),
            _closed(),
        )

    def search(
        self,
        query: str | Iterable[Any],
        *,
        memory: MemoryScope | None = None,
        of: Searched = "all",
        index_type: IndexType | None = None,
        without_embedder: WithoutEmbedder | None = None,
        index_name: str | None = None,
        fulltext_index_name: str | None = None,
        top_k: int = 5,
        retrieval_query: str | None = None,
        params: Mapping[str, Any] | None = None,
        filter_stop_words: bool = True,
        message_history_count: int = 10,
        app_id: str | None = None,
        budget_ms: int | None = None,
        max_tokens: int | None = None,
        after: str | None = None,
        explain: bool = False,
    ) -> ContextReply:
        """See ``Client.search``."""
        return self._run(
            lambda: self._client.search(
                query,
                memory=memory,
                of=of,
                index_type=index_type,
                without_embedder=without_embedder,
                index_name=index_name,
                fulltext_index_name=fulltext_index_name,
                top_k=top_k,
                retrieval_query=retrieval_query,
                params=params,
                filter_stop_words=filter_stop_words,
                message_history_count=message_history_count,
                app_id=app_id,
                budget_ms=budget_ms,
                max_tokens=max_tokens,
                after=after,
                explain=explain,
            ),
            _closed(),
        )

    def flush(self, timeout_s: float = 5.0) -> bool:
        """See ``Client.flush``."""
        return self._run(lambda: self._client.flush(timeout_s), False)

    def close(self, drain_s: float = 2.0) -> None:
        """See ``Client.aclose``; ends the calls of other threads and the background thread too."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        if not self._thread.is_alive():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._finish(drain_s), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _finish(self, drain_s: float) -> None:
        await self._client.aclose(drain_s)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:  # a loop that stops under a waiting call would leave its thread waiting for ever
            _, late = await asyncio.wait(others, timeout=_LAST_CALLS_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _run[T](self, work: Callable[[], Coroutine[Any, Any, T]], when_closed: T) -> T:
        with self._lock:
            if self._closed or not self._thread.is_alive():
                return when_closed
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result()
        except CancelledError:  # by ``close`` in another thread
            return when_closed


def _closed() -> ContextReply:
    return ContextReply(id=uuid4().hex, reason="bus_unavailable", detail="the client is closed", partial=True)

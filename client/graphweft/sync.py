"""The client for synchronous callers: the same promises, on an event loop of its own in a background thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

from graphweft.client import Client, ClientStats
from graphweft_contracts import ContextReply, Event

__all__ = ("SyncClient",)


class SyncClient:
    """``Client`` without ``await``; safe to share between threads. Close it, or use it as a context manager."""

    def __init__(
        self,
        bus_url: str | None = None,
        *,
        app_id: str | None = None,
        workflow: str | None = None,
        buffer: int = 10_000,
        budget_ms: int = 500,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="graphweft-client", daemon=True)
        self._thread.start()
        self._closed = False

        async def make() -> Client:
            return Client(bus_url, app_id=app_id, workflow=workflow, buffer=buffer, budget_ms=budget_ms)

        self._client = self._run(make())

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

    def emit(self, event: Event, *, wait_s: float = 1.0) -> str | None:
        """See ``Client.emit``."""
        return self._run(self._client.emit(event, wait_s=wait_s))

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
    ) -> ContextReply:
        """See ``Client.context``."""
        return self._run(
            self._client.context(
                agent=agent,
                chat_id=chat_id,
                app_id=app_id,
                workflow=workflow,
                user_id=user_id,
                context=context,
                budget_ms=budget_ms,
            )
        )

    def flush(self, timeout_s: float = 5.0) -> bool:
        """See ``Client.flush``."""
        return self._run(self._client.flush(timeout_s))

    def close(self, drain_s: float = 2.0) -> None:
        """See ``Client.aclose``; ends the background thread too."""
        if self._closed:
            return
        self._closed = True
        self._run(self._client.aclose(drain_s))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run[T](self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

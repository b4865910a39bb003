"""Waits for several tasks that say themselves that they end."""

from __future__ import annotations

import asyncio


class Countdown:
    """Waits for the ends of ``count`` tasks, or for a time.

    ``asyncio.wait`` is told of an end a turn of the event loop later, and takes as long as a small query's rows.
    """

    __slots__ = ("_all", "_left")

    def __init__(self, count: int) -> None:
        self._left = count
        self._all: asyncio.Future[None] | None = None

    def end(self) -> None:
        """Note the end of a task."""
        self._left -= 1
        if not self._left:
            self._wake()

    async def wait(self, timeout_s: float) -> None:
        """Return when all tasks have said that they end, at the latest after ``timeout_s``."""
        if self._left <= 0:
            return
        loop = asyncio.get_running_loop()
        self._all = loop.create_future()
        timer = loop.call_later(max(0.0, timeout_s), self._wake)
        try:
            await self._all
        finally:
            timer.cancel()

    def _wake(self) -> None:
        if self._all is not None and not self._all.done():
            self._all.set_result(None)

"""Tasks that several requests wait for, and that go on when one of them does not wait any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Background:
    """Keeps tasks until they end; each has to have a time limit of its own. Nobody need look at how one ended."""

    _tasks: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._tasks)

    def start[Result](self, call: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start a task; wait for it with ``asyncio.wait``, which does not cancel it."""
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def aclose(self) -> None:
        """Cancel all and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # else asyncio complains that nobody looked

"""Tasks that several requests share, and that continue when one of the requests stops waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from graphweft_workers.support.tasks import begun, end_tasks


@dataclass(slots=True)
class Background:
    """Keeps tasks alive until they end. Each must have a time limit of its own; nobody has to collect its result."""

    _tasks: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    def __len__(self) -> int:
        """Return the number of running tasks."""
        return len(self._tasks)

    def start[Result](self, call: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start a task; wait for it with ``asyncio.wait``, which does not cancel it."""
        return self._kept(asyncio.create_task(call))

    def begin[Result](self, call: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start a task that runs up to its first wait at once: see ``tasks.begun``."""
        return self._kept(begun(call))

    def _kept[Result](self, task: asyncio.Task[Result]) -> asyncio.Task[Result]:
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def aclose(self) -> None:
        """Cancel all tasks and wait for their end."""
        tasks = list(self._tasks)
        await end_tasks(*tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved, else asyncio logs it

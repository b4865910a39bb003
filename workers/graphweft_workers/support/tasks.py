"""Tasks: how they begin, run beside other work, and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and wait until all have ended, however they do."""
    there = [task for task in tasks if task is not None]
    for task in there:
        task.cancel()
    await asyncio.gather(*there, return_exceptions=True)


@asynccontextmanager
async def running_beside(*calls: Coroutine[Any, Any, object], name: str | None = None) -> AsyncGenerator[None]:
    """Run coroutines while the block runs. An error of theirs ends nothing else."""
    tasks = [asyncio.create_task(call, name=name) for call in calls]
    try:
        yield
    finally:
        await end_tasks(*tasks)


def begun[Result](call: Coroutine[Any, Any, Result], *, name: str | None = None) -> asyncio.Task[Result]:
    """Return a task that has run up to its first wait; one of ``asyncio.create_task`` begins a turn of the loop later.

    So what the coroutine reads must be set before, and until its first wait nobody else has the task.
    """
    return asyncio.Task(call, loop=asyncio.get_running_loop(), name=name, eager_start=True)


def is_being_cancelled() -> bool:
    """Tell whether the current task itself is being cancelled.

    If not, a ``CancelledError`` comes from an awaited call that a driver cancelled. A task that passes such an error on
    ends silently: it is not logged, and its task group continues without it.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

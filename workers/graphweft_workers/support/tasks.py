"""Tasks that run beside other work, and end with it."""

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

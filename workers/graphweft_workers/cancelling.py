"""Telling our own cancellation from one that comes out of what was awaited."""

from __future__ import annotations

import asyncio


def is_being_cancelled() -> bool:
    """Tell whether the current task was asked to end.

    If not, a ``CancelledError`` comes from something that was awaited and that a driver has cancelled. A task that
    lets it through ends without a word: nobody logs it, and a task group goes on without it.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

"""Distinguishes our own cancellation from one that comes out of an awaited call."""

from __future__ import annotations

import asyncio


def is_being_cancelled() -> bool:
    """Tell whether the current task itself is being cancelled.

    If not, a ``CancelledError`` comes from an awaited call that a driver cancelled. A task that passes such an error on
    ends silently: it is not logged, and its task group continues without it.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

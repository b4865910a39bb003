"""Tasks that begin at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def begun[Result](call: Coroutine[Any, Any, Result], *, name: str | None = None) -> asyncio.Task[Result]:
    """Return a task that has run up to its first wait; one of ``asyncio.create_task`` begins a turn of the loop later.

    So what the coroutine reads must be set before, and until its first wait nobody else has the task.
    """
    return asyncio.Task(call, loop=asyncio.get_running_loop(), name=name, eager_start=True)

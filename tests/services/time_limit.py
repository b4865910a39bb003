"""A test of an event loop that reaches its time limit is cancelled, so that it closes what it has opened.

pytest-timeout raises an error wherever the main thread is. In an event loop that ends the loop and not the test: its
task goes on while its fixtures are torn down, opens what they have closed, and a later test fails by a warning of that.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Generator
from types import FrameType
from typing import Any, Final

import pytest

_GRACE_S: Final = 30.0
"""A test that has not ended then is ended as pytest-timeout does it."""


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Any) -> Generator[None, Any, Any]:
    """Cancel the task that the event loop runs for the test, before the error of pytest-timeout."""
    result = yield
    fail = signal.getsignal(signal.SIGALRM)
    if settings.method != "signal" or not callable(fail):
        return result
    cancelled: list[asyncio.Task[Any]] = []

    def end(number: int, frame: FrameType | None) -> None:
        task = _task()
        if task is None or cancelled:
            fail(number, frame)
        else:
            cancelled.append(task)
            signal.setitimer(signal.ITIMER_REAL, _GRACE_S)
            task.cancel(f"the test took longer than {settings.timeout} s")
            task.get_loop().call_soon_threadsafe(lambda: None)  # the loop may be waiting

    signal.signal(signal.SIGALRM, end)
    return result


def _task() -> asyncio.Task[Any] | None:
    """Return the task of ``asyncio.Runner.run``: the one that it cancels at Ctrl-C."""
    interrupt = signal.getsignal(signal.SIGINT)
    if not isinstance(interrupt, functools.partial):
        return None
    task: asyncio.Task[Any] | None = interrupt.keywords.get("main_task")
    return None if task is None or task.done() else task

"""Time that passes only when nothing else is left to do, so a test never waits for it.

``VirtualLoop`` is an event loop whose time is that of ``VIRTUAL``. When no callback is ready it sets the time to the
next timer: sleeps, timeouts and timers end at once, in their order. While something outside of the loop may act, which
is another thread, or an open file or socket, it waits as other loops do.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_START: Final = datetime(2026, 1, 1, tzinfo=UTC)


class VirtualClock:
    """A ``Clock`` that stands still until ``advance``, or until the loop has nothing else to do."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def now(self) -> datetime:
        return _START + timedelta(seconds=self.elapsed_s)

    def monotonic(self) -> float:
        return self.elapsed_s

    def cpu(self) -> float:
        return self.elapsed_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def advance(self, seconds: float) -> None:
        self.elapsed_s += seconds


VIRTUAL: Final = VirtualClock()
"""One for the process: the objects of a test see the time of whichever loop runs them."""


class _Selector(selectors.DefaultSelector):
    """Waits in virtual time while only the loop itself can do something."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        """Calls of ``run_in_executor`` that are under way."""
        self._idle = set(threading.enumerate())
        """Threads that were there before, as those of pytest itself."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is not None and self._is_alone():
            VIRTUAL.advance(timeout)
            return []
        began = time.monotonic()
        ready = super().select(timeout)
        if not ready or not self.calls:  # a call takes no time if it ends before the next timer
            VIRTUAL.advance(time.monotonic() - began)
        return ready

    def _is_alone(self) -> bool:
        """Tell whether nobody else can make something happen."""
        if self.calls or len(self.get_map()) > 1:  # one is the loop's own pipe
            return False
        others = (each for each in threading.enumerate() if each not in self._idle)
        return all(each.name.startswith("asyncio_") for each in others)  # threads of calls that have ended


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that waits for nothing but threads and files."""

    def __init__(self) -> None:
        self._waits = _Selector()
        super().__init__(self._waits)

    def time(self) -> float:
        return VIRTUAL.monotonic()

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        self._waits.calls += 1
        running = super().run_in_executor(executor, func, *args)
        running.add_done_callback(self._thread_ended)
        return running

    def _thread_ended(self, _: asyncio.Future[Any]) -> None:
        self._waits.calls -= 1


def run[T](main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as ``asyncio.run`` does, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)

"""An event loop in a thread of its own, for callers that may not wait, have no loop, or whose loop may be held up."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final

__all__ = ("BackgroundLoop", "renew_after_fork")


_LOCKED: Final[weakref.WeakKeyDictionary[object, Callable[[], object]]] = weakref.WeakKeyDictionary()
"""Whose ``_lock`` a forked child makes anew, and how."""


def renew_after_fork(owner: object, make: Callable[[], object]) -> None:
    """Give ``owner``, in each forked child, a ``_lock`` of its own: the thread that may have held it is not there."""
    _LOCKED[owner] = make


def _renew() -> None:
    for owner, make in list(_LOCKED.items()):
        setattr(owner, "_lock", make())  # noqa: B010 - of any class


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew)


class BackgroundLoop:
    """Runs callbacks and coroutines in the order in which they are given. Starts with the first one.

    After ``stop``, and in a forked process, whose copy has no thread, everything is refused: ``call`` returns False and
    ``submit`` None. So it is while the system gives no thread. Safe to share between threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._stopped = False

    @property
    def started(self) -> bool:
        """Whether there was anything to run, and it can still run."""
        return self._thread is not None and not self._stopped and not self.forked

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a forked process; its locks may be held for ever there."""
        return self._process != os.getpid()

    def call(self, callback: Callable[[], object]) -> bool:
        """Run ``callback`` soon; it must not raise."""
        if self.forked:
            return False
        with self._lock:
            loop = self._running()
            if loop is None:
                return False
            loop.call_soon_threadsafe(callback)
            return True

    def submit[T](self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T] | None:
        """Run the coroutine of ``work`` soon and return its future."""
        if self.forked:
            return None
        with self._lock:
            loop = self._running()
            return None if loop is None else asyncio.run_coroutine_threadsafe(work(), loop)

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``last`` to its end, then end what still runs, and the thread.

        A second call does nothing, and neither does one where nothing was ever run.
        """
        if self.forked:
            return
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._end(last), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await last()
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    def _running(self) -> asyncio.AbstractEventLoop | None:
        if self._stopped:
            return None
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, in a container at its limit for example
                loop.close()
                return None
            self._loop, self._thread = loop, thread
        return self._loop

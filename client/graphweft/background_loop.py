"""An event loop in a background thread, for callers that must not wait, or have no loop that they can rely on."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

_LOCKED: Final[weakref.WeakKeyDictionary[object, Callable[[], object]]] = weakref.WeakKeyDictionary()
"""Objects whose ``_lock`` a forked child replaces, and the functions that make it."""


def renew_after_fork(owner: object, make: Callable[[], object]) -> None:
    """Replace ``owner._lock`` in each forked child: a thread that held it does not exist there."""
    _LOCKED[owner] = make


def _renew() -> None:
    for owner, make in list(_LOCKED.items()):
        setattr(owner, "_lock", make())  # noqa: B010 - of any class


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew)


class BackgroundLoop:
    """Runs callbacks and coroutines in the order of their calls. The thread starts with the first one. Thread-safe.

    ``call`` returns False, and ``submit`` None, after ``stop``, in a forked process, which has no thread, and while the
    system refuses a new thread.
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
        """Whether the thread was started and can still run callbacks."""
        return self._thread is not None and not self._stopped and not self.forked

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a forked process, where locks may stay held forever."""
        return self._process != os.getpid()

    def call(self, callback: Callable[[], object]) -> bool:
        """Schedule ``callback``, which must not raise."""
        if self.forked:
            return False
        with self._lock:
            loop = self._running()
            if loop is None:
                return False
            loop.call_soon_threadsafe(callback)
            return True

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T] | None:
        """Schedule the coroutine of ``work`` and return its future."""
        if self.forked:
            return None
        with self._lock:
            loop = self._running()
            return None if loop is None else asyncio.run_coroutine_threadsafe(work(), loop)

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``last``, then cancel the remaining tasks and end the thread. Does nothing if no thread runs."""
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
            except RuntimeError:  # a container at its thread limit
                loop.close()
                return None
            self._loop, self._thread = loop, thread
        return self._loop

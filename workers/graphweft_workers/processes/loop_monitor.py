"""A debug switch: finds work that takes a role's event loop for too long, and says where it was.

What counts is the processor time of the thread, not the time on the clock, so that a busy machine makes no findings.
Two kinds are told apart:

- *held*: one callback of the loop, which is one step of a task, took more than the limit. What Python's search for
  cycles took in it is left out, and counts as a hold of its own.
- *locked out*: another thread kept Python's interpreter lock for longer than the limit, in one call into a library. The
  loop could not run, although the work had left it.

asyncio's own debug mode measures the time on the clock, cannot say where in a callback it went, and makes each
callback slower. A thread looks at the stack meanwhile, ``_LOOKS`` times within the limit. It gets the lock after a long
call into a library too, at the line of that call.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Literal, cast

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.loop")

_RUN: Final = "_run"
"""The method of a handle that calls its callback. asyncio offers nothing public around a callback."""
_LOOKS: Final = 4
_FRAMES: Final = 25
"""Innermost frames of a stack that are shown, below the outermost one, which tells whose work it is."""

type _Kind = Literal["held", "locked_out", "garbage"]
type _Stack = tuple[tuple[str, int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One time for which an event loop could not run. ``stack`` is where it was seen most often, the innermost last."""

    kind: _Kind
    cpu_ms: float
    work: str
    """The callback or the task, or the thread."""
    stack: tuple[str, ...] = ()


class LoopMonitor:
    """Watches the event loops of the thread that makes it, one after the other, while ``watching`` runs."""

    def __init__(self, limit_s: float, report: Callable[[Hold], None], clock: Clock = SYSTEM_CLOCK) -> None:
        """``report`` is called in the watched thread; what locked the loop out is reported by the watching one."""
        self._limit_s = limit_s
        self._report = report
        self._ident = threading.get_ident()
        self._cpu = time.pthread_getcpuclockid(self._ident)
        self._monotonic = clock.monotonic
        self._number = 0
        """Of the callback that runs: odd while one does."""
        self._begun = 0.0
        self._seen: tuple[int, Counter[_Stack]] = (0, Counter())
        self._collecting = 0.0
        self._collected_s = 0.0
        """In the callback that runs."""
        self._stopping = threading.Event()

    @contextmanager
    def watching(self) -> Generator[None]:
        """Watch while the block runs. Only one monitor of a process may do so at a time."""
        run: Callable[[asyncio.Handle], None] = getattr(asyncio.Handle, _RUN)
        monitor = self

        def measured(handle: asyncio.Handle) -> None:
            if threading.get_ident() == monitor._ident:
                monitor._measure(run, handle)
            else:
                run(handle)

        thread = threading.Thread(target=self._look, name="graphweft-loop-monitor", daemon=True)
        setattr(asyncio.Handle, _RUN, measured)
        gc.callbacks.append(self._collect)
        thread.start()
        try:
            yield
        finally:
            setattr(asyncio.Handle, _RUN, run)
            gc.callbacks.remove(self._collect)
            self._stopping.set()
            thread.join()

    def _measure(self, run: Callable[[asyncio.Handle], None], handle: asyncio.Handle) -> None:
        # A callback may run another loop to its end, which is then a part of it.
        outermost = not self._number % 2
        if not outermost:
            run(handle)
            return
        self._collected_s = 0.0
        self._begun = time.thread_time()
        self._number += 1
        number = self._number
        try:
            run(handle)
        finally:
            took_s = time.thread_time() - self._begun - self._collected_s
            self._number += 1
            if took_s > self._limit_s:
                seen = self._seen[1] if self._seen[0] == number else Counter[_Stack]()
                stack = seen.most_common(1)[0][0] if seen else ()
                self._report(
                    Hold(
                        kind="held",
                        cpu_ms=round(took_s * 1000, 1),
                        work=_handle_name(handle),
                        stack=_stack_lines(stack),
                    )
                )

    def _collect(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self._ident:
            return
        if phase == "start":
            self._collecting = time.thread_time()
            return
        took_s = time.thread_time() - self._collecting
        self._collected_s += took_s
        if took_s > self._limit_s and self._number % 2:
            work = f"the search for cycles, generation {info['generation']}"
            self._report(Hold(kind="garbage", cpu_ms=round(took_s * 1000, 1), work=work))

    def _look(self) -> None:
        """Note the stack of a callback that has taken half of the limit, and what kept this thread from looking."""
        every_s = self._limit_s / _LOOKS
        before, at = _cpu_times(), self._monotonic()
        while not self._stopping.wait(every_s):
            late = self._monotonic() - at > self._limit_s + every_s
            if self._number % 2 and time.clock_gettime(self._cpu) - self._begun > self._limit_s / 2:
                self._note()
            after = _cpu_times()
            if late:
                self._find_lock(before, after)
            before, at = after, self._monotonic()

    def _note(self) -> None:
        number = self._number
        frame = _frames().get(self._ident)
        if number % 2 and frame is not None:
            if self._seen[0] != number:
                self._seen = (number, Counter())
            self._seen[1][_stack_of(frame)] += 1

    def _find_lock(self, before: dict[threading.Thread, float], after: dict[threading.Thread, float]) -> None:
        """Report the thread that worked in the time in which neither the loop nor this thread got the lock."""
        took = {thread: cpu_s - before.get(thread, 0.0) for thread, cpu_s in after.items()}
        if any(thread.ident == self._ident and took_s > self._limit_s / 2 for thread, took_s in took.items()):
            return
        for thread, took_s in took.items():
            if took_s <= self._limit_s:
                continue
            frame = _frames().get(thread.ident or 0)
            stack = () if frame is None else _stack_of(frame)
            self._report(
                Hold(kind="locked_out", cpu_ms=round(took_s * 1000, 1), work=thread.name, stack=_stack_lines(stack))
            )


def log_hold(hold: Hold) -> None:
    """Log a hold as an error."""
    logger.error(
        "event_loop_held", kind=hold.kind, cpu_ms=hold.cpu_ms, work=hold.work, stack="\n".join(hold.stack),
        next="report it: a piece of work must not keep others from running for so long",
    )  # fmt: skip


@contextmanager
def watched(limit_ms: int | None) -> Generator[None]:
    """Log what takes the event loop of this thread for longer than a limit while the block runs; None: nothing."""
    if limit_ms is None:
        yield
        return
    count: Counter[str] = Counter()

    def report(hold: Hold) -> None:
        count[hold.kind] += 1
        log_hold(hold)

    with LoopMonitor(limit_ms / 1000, report).watching():
        yield
    kinds: tuple[_Kind, ...] = ("held", "locked_out", "garbage")
    logger.info("event_loop_holds", limit_ms=limit_ms, **{kind: count[kind] for kind in kinds})


def _frames() -> dict[int, FrameType]:
    return sys._current_frames()  # pyright: ignore[reportPrivateUsage] - the way that Python offers


def _cpu_times() -> dict[threading.Thread, float]:
    """Return the processor time of each thread that has not ended meanwhile."""
    found: dict[threading.Thread, float] = {}
    for thread in threading.enumerate():
        if thread.ident is not None:
            with suppress(ProcessLookupError):
                found[thread] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return found


def _stack_of(frame: FrameType) -> _Stack:
    found: list[tuple[str, int, str]] = []
    at: FrameType | None = frame
    while at is not None and at.f_code.co_qualname != "Handle._run":
        found.append((at.f_code.co_filename, at.f_lineno, at.f_code.co_qualname))
        at = at.f_back
    return tuple(reversed([*found[:_FRAMES], *found[_FRAMES:][-1:]]))


def _stack_lines(stack: _Stack) -> tuple[str, ...]:
    return tuple(f"{file}:{line} in {name}" for file, line, name in stack)


def _handle_name(handle: Any) -> str:
    """Return the name of what a handle calls: of a task, its name and its coroutine."""
    callback = getattr(handle, "_callback", None)
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine: Any = cast("Any", task).get_coro()
        return f"{task.get_name()} {getattr(coroutine, '__qualname__', '')}".strip()
    return str(getattr(callback, "__qualname__", callback))[:200]

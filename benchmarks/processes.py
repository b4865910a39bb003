"""What is measured, each as a process of its own, and how fast it changes the graph."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.harness import Died
from benchmarks.services import GraphProbe
from benchmarks.workload import ROOT
from graphweft_workers.drivers.embedded.server import die_with_parent
from graphweft_workers.settings.settings import Settings

ENGINE: Final = ("-m", "graphweft_workers.cli", "run", "mutation")
NAIVE: Final = ("-m", "benchmarks.naive")
UNWIND: Final = ("-m", "benchmarks.ceiling")
_START_S: Final = 60.0
_STOP_S: Final = 30.0
_POLL_S: Final = 0.02
_CHANGES: Final = 10
"""Fewer changes than these are too few to call their mean a rate: then it takes longer, up to ``_LONGEST`` times."""
_LONGEST: Final = 4
_AS_SET: Final[Mapping[str, str]] = {}
_PROCESS_CLOCK: Final = 2
"""With the complement of a process id before it: the clock that ``clock_getcpuclockid`` returns."""


@asynccontextmanager
async def process(
    arguments: tuple[str, ...],
    settings: Settings,
    *,
    kill: bool = False,
    log: Path | None = None,
    environment: Mapping[str, str] = _AS_SET,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a Python process with the settings in its environment while the block runs. ``log`` gets what it writes.

    ``environment`` holds variables that are not settings of ours.

    With ``kill`` it ends at once and leaves what it holds, which is for those whose bus is emptied next or read by
    nobody again; otherwise it finishes what it has in hand.
    """
    with tempfile.TemporaryFile() if log is None else log.open("w+b") as errors:
        started = await asyncio.create_subprocess_exec(
            *(sys.executable, *arguments),
            cwd=ROOT,
            env={**settings.as_environment(), **environment},
            stdout=errors,
            stderr=errors,
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGTERM),
        )
        try:
            yield started
        except Died as error:
            errors.seek(0)
            raise Died(f"{' '.join(arguments)} {error}:\n{errors.read().decode(errors='replace')[-3000:]}") from error
        finally:
            if started.returncode is None:
                if kill:
                    started.kill()
                else:
                    started.terminate()
                try:
                    async with asyncio.timeout(_STOP_S):
                        await started.wait()
                except TimeoutError:
                    started.kill()
                    await started.wait()


async def events_per_second(
    running: asyncio.subprocess.Process, probe: GraphProbe, applied: str, size: int, *, limit_s: float
) -> float:
    """Return the rate between the first change that is seen and the last one, all events or the time limit.

    This is for those who hold little more than what they write. A worker reads ahead: see ``cost_of_backlog``. So the
    process's start is not in it, nor half a batch at either end. Looking on costs the server one small query every
    20 ms.
    """
    begun = time.monotonic()
    while not (first := await count(probe, applied)):
        if running.returncode is not None or time.monotonic() - begun > _START_S:
            raise Died("changed nothing" if running.returncode is None else f"ended with {running.returncode}")
        await asyncio.sleep(_POLL_S)
    first_at = now = time.monotonic()
    seen, seen_at, changes = first, first_at, 0
    limits_s = {0: _START_S} | dict.fromkeys(range(1, _CHANGES), _LONGEST * limit_s)
    while seen < size and now - first_at < limits_s.get(changes, limit_s):
        if running.returncode is not None:
            raise Died(f"ended with {running.returncode}")
        await asyncio.sleep(_POLL_S)
        found, now = await count(probe, applied), time.monotonic()
        if found != seen:
            seen, seen_at, changes = found, now, changes + 1
    if seen > size or not changes:
        raise Died(f"applied {seen} events of {size}, {first} of them at first sight")
    return (seen - first) / (seen_at - first_at)


def cpu_s(pid: int) -> float:
    """Return the processor time of a process until now, to the nanosecond (Linux)."""
    return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)


def waited_s(pid: int | str) -> float:
    """Return how long the threads of a process that still run were ready and waited for a processor (Linux)."""
    waited_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            waited_ns += int((task / "schedstat").read_text("ascii").split()[1])
    return waited_ns / 1e9


async def count(probe: GraphProbe, applied: str) -> int:
    rows = await probe.rows(applied)
    return int(rows[0][0] or 0) if rows else 0

"""Reads what servers know for metrics before these are collected: seldom, within a time, and once for all who ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from graphweft_contracts import GraphweftError
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.tasks import end_tasks
from graphweft_workers.telemetry.metrics import LOOKS_FAILED, LabelledValues, ObservedMetric, observing

logger = get_logger("graphweft.metrics")

LOOK_S: Final = 5.0
"""What was read counts so long."""
_WAIT_S: Final = 1.0
"""So long a collection waits for what is read; later it finds it in the next one."""
_MOST_S: Final = 30.0
"""So long reading may take."""

type SeenValues = Mapping[ObservedMetric, LabelledValues]
type _Read = Callable[[], Awaitable[SeenValues]]


class ServerReading:
    """Values of metrics that a function reads, at most every so many seconds, and only if somebody collects."""

    def __init__(self, read: _Read, every_s: float, clock: Clock) -> None:
        self.seen: SeenValues = {}
        """As they were read last; empty after a failure, because old ones would hide it."""
        self._read = read
        self._every_s = every_s
        self._clock = clock
        self._at: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Read again unless the values are new; return after a second at the latest."""
        now = self._clock.monotonic()
        if self._reading is None and (self._at is None or now - self._at >= self._every_s):
            self._at = now
            self._reading = asyncio.create_task(self._refresh(), name="graphweft-metrics-look")
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=_WAIT_S)

    async def aclose(self) -> None:
        """Read no more."""
        await end_tasks(self._reading)

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(_MOST_S):
                self.seen = await self._read()
        except (GraphweftError, TimeoutError) as error:
            self.seen = {}
            LOOKS_FAILED.add()
            logger.debug("metrics_look_failed", error=str(error) or f"no answer within {_MOST_S:g} s")
        except Exception:  # a defect must not end the collection of other metrics
            self.seen = {}
            LOOKS_FAILED.add()
            logger.exception("metrics_look_failed")
        finally:
            self._reading = None


_readings: list[ServerReading] = []


@asynccontextmanager
async def looking(
    read: _Read, metrics: Sequence[ObservedMetric], *, every_s: float = LOOK_S, clock: Clock = SYSTEM_CLOCK
) -> AsyncGenerator[None]:
    """Have ``read`` say the values of ``metrics`` while the block runs. It is not called while nobody collects."""
    reading = ServerReading(read, every_s, clock)
    with observing({metric: _of(reading, metric) for metric in metrics}):
        _readings.append(reading)
        try:
            yield
        finally:
            _readings.remove(reading)
            await reading.aclose()


async def look() -> None:
    """Refresh what servers know, before metrics are collected."""
    await asyncio.gather(*(each.refresh() for each in _readings))


def _of(reading: ServerReading, metric: ObservedMetric) -> Callable[[], LabelledValues]:
    return lambda: reading.seen.get(metric, {})

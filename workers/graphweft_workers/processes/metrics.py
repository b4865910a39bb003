"""Metrics of a role's process: they are counted, observed and pushed while it runs, if the settings ask for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.processes.heartbeat import Heartbeat
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.optional_dependencies import naming_extra
from graphweft_workers.support.tasks import end_tasks
from graphweft_workers.telemetry import metrics
from graphweft_workers.telemetry.metrics_looks import SeenValues, look, looking

if TYPE_CHECKING:
    from graphweft_workers.telemetry.meters import ProcessMeter

_LAG_S: Final = 0.5
"""How often the event loop is to wake the task that measures its lag."""
_LAST_PUSH_S: Final = 3.0
"""How long the end of a role waits for its last push."""
_LINUX: Final = Path("/proc/self")

type Collect = Callable[[], Awaitable[tuple[str, bytes]]]
"""Returns the type and the text of all metrics, for Prometheus."""


@asynccontextmanager
async def measured(
    settings: Settings, heartbeat: Heartbeat, servers: Callable[[], Awaitable[Mapping[str, bool]]]
) -> AsyncGenerator[Collect]:
    """Count metrics while the block runs, and push them if there is a target; give what collects them.

    ``servers`` says which servers answer. Raises ``InvalidSettings`` without the packages for it.
    """
    async with AsyncExitStack() as stack:
        with naming_extra("GRAPHWEFT_METRICS", "telemetry", "opentelemetry", "google", "requests"):
            from graphweft_workers.telemetry.meters import MeterOptions, OtlpTarget, metering
            from graphweft_workers.telemetry.meters_text import CONTENT_TYPE

            url = settings.metrics_otlp_url
            target = None if url is None else OtlpTarget(url=url, headers=settings.metrics_headers)
            meter = stack.enter_context(metering(MeterOptions(apps=settings.metrics_app_ids, otlp=target)))

        async def connections() -> SeenValues:
            return {metrics.CONNECTION_UP: {(name,): float(answers) for name, answers in (await servers()).items()}}

        async def collect() -> tuple[str, bytes]:
            await look()
            return CONTENT_TYPE, meter.text().encode()

        stack.enter_context(metrics.observing(_readers(heartbeat)))
        await stack.enter_async_context(looking(connections, [metrics.CONNECTION_UP]))
        await stack.enter_async_context(_measuring(settings, meter))
        yield collect


@asynccontextmanager
async def _measuring(settings: Settings, meter: ProcessMeter) -> AsyncGenerator[None]:
    tasks = [asyncio.create_task(_measure_lag(), name="graphweft-loop-lag")]
    if settings.metrics_otlp_url is not None:
        tasks.append(asyncio.create_task(_push(meter, settings.metrics_every_s), name="graphweft-metrics-push"))
    try:
        yield
    finally:
        await end_tasks(*tasks)
        await asyncio.wait([asyncio.ensure_future(meter.push())], timeout=_LAST_PUSH_S)


async def _push(meter: ProcessMeter, every_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
    while True:
        await clock.sleep(every_s)
        await look()
        await meter.push()


async def _measure_lag(clock: Clock = SYSTEM_CLOCK) -> None:
    while True:
        due = clock.monotonic() + _LAG_S
        await clock.sleep(_LAG_S)
        metrics.LOOP_LAG.record(max(0.0, clock.monotonic() - due))


def _readers(heartbeat: Heartbeat) -> dict[metrics.ObservedMetric, Callable[[], metrics.LabelledValues]]:
    """Return what reads the metrics of the process and its heartbeat."""
    page = os.sysconf("SC_PAGE_SIZE")
    role = (heartbeat.role,)

    def resident() -> metrics.LabelledValues:
        try:
            return {(): float(int((_LINUX / "statm").read_text().split()[1]) * page)}
        except OSError:  # not Linux
            return {}

    def files() -> metrics.LabelledValues:
        try:
            return {(): float(len(os.listdir(_LINUX / "fd")))}
        except OSError:
            return {}

    def cpu() -> metrics.LabelledValues:
        times = os.times()
        return {(): times.user + times.system}

    return {
        metrics.TURN_AGE: lambda: {(): heartbeat.turn_age_s},
        metrics.RUNNING: lambda: {role: float(heartbeat.state == "running")},
        metrics.CPU: cpu,
        metrics.MEMORY: resident,
        metrics.OPEN_FILES: files,
    }

"""Runs a service as a role: with its spans, heartbeat and probes, until a signal or a defect ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Final

from graphweft_contracts import BusUnavailable
from graphweft_workers.ports.check import layout_checks
from graphweft_workers.processes.health import healthy
from graphweft_workers.processes.loop_monitor import watched
from graphweft_workers.processes.service import Service
from graphweft_workers.processes.traced import traced
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.backoff import backoff_s
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.wiring.connections import make_bus, new_layout

logger = get_logger("graphweft.hosting")

_FIRST_WAIT_S: Final = 0.1

type OpenService = Callable[[Settings], AbstractAsyncContextManager[Service]]


@asynccontextmanager
async def serving(
    role: str, settings: Settings, open_service: OpenService, ended: Callable[[], None]
) -> AsyncGenerator[None]:
    """Have a service work until the block ends, and finish what it is at; an error of the service is raised then.

    ``ended`` is called when the service ends, also by itself: that is a defect, and the block should end.
    """
    async with traced(role, settings), healthy(role, settings) as heartbeat, open_service(settings) as service:
        working = asyncio.create_task(service.run(), name="graphweft-service")
        heartbeat.begin()
        working.add_done_callback(lambda _: ended())
        with watched(settings.loop_limit_ms):
            try:
                yield
            finally:
                service.stop()
                await working


async def run_role(role: str, settings: Settings, open_service: OpenService) -> None:
    """Run a service until SIGTERM or SIGINT, then finish its current work. Raises any error that ends it."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(role, settings, open_service, stop.set):
        answered = asyncio.create_task(until_answered(settings))

        def look(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                stop.set()

        answered.add_done_callback(look)
        try:
            await stop.wait()
        finally:
            answered.cancel()
            [error] = await asyncio.gather(answered, return_exceptions=True)
        if isinstance(error, Exception):
            raise error


async def until_answered(settings: Settings) -> None:
    """Wait until the bus answers; warn if its number of partitions differs from the settings."""
    attempt = 0
    async with aclosing(make_bus(settings)) as bus:
        while True:
            try:
                layout = await bus.partitions.layout()
            except BusUnavailable as error:
                attempt += 1
                logger.debug("bus_unavailable", error=str(error))
                await asyncio.sleep(backoff_s(_FIRST_WAIT_S, attempt))
            else:
                for check in layout_checks(layout, new_layout(settings), settings.model_fields_set):
                    logger.warning("layout_differs", found=check.found, next=check.advice)
                return

"""The roles as FastStream applications, with signals and a broker for your own subscribers.

``faststream run --factory graphweft_workers.processes.hosting:mutation_app`` runs these. Add your own routers and
middlewares to the app's broker (None if FastStream has none for the bus), which uses the same bus::

    app = mutation_app()
    app.broker.include_router(router)

``graphweft run`` runs the same without a broker (``role_app``), because nobody can add a subscriber to it.

The roles are tasks of the lifespan, not subscribers: a FastStream subscriber would lose or reorder events (see
``docs/decisions/0009-faststream-hosts-it-does-not-deliver.md``). Import this module only to run a role, because
importing FastStream takes a tenth of a role's start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Literal, override

import anyio
from faststream import FastStream
from faststream._internal.cli.supervisors.utils import set_exit
from faststream.specification import AsyncAPI

from graphweft_contracts import BusUnavailable
from graphweft_workers.drivers import bus_driver
from graphweft_workers.ports.check import layout_checks
from graphweft_workers.processes.health import healthy
from graphweft_workers.processes.loop_monitor import watched
from graphweft_workers.processes.service import Reaching, Service
from graphweft_workers.processes.traced import traced
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.backoff import backoff_s
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.logs import set_up_logs
from graphweft_workers.wiring.connections import make_broker, make_bus, new_layout

logger = get_logger("graphweft.hosting")

_FIRST_WAIT_S: Final = 0.1

type HostedRole = Literal["mutation", "injection", "memory", "archive"]
"""A role that FastStream hosts."""


def mutation_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs a mutation worker until SIGTERM or SIGINT, then finishes its batch.

    Without ``settings`` it reads the environment and sets up the logs. Nothing is connected yet. ``run`` raises
    ``InvalidRules`` or ``InvalidSettings`` at once, and any error that ends the worker. Before the worker reads events,
    the graph server checks the queries of the rules; ``InvalidRules`` names those that it refuses. While the server is
    unavailable, the worker waits.
    """
    return _with_broker("mutation", settings)


def injection_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs an injection responder until SIGTERM or SIGINT; otherwise like ``mutation_app``.

    While the graph server is unavailable it answers without it, and checks the queries later.
    """
    return _with_broker("injection", settings)


def memory_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs the jobs of memory until SIGTERM or SIGINT; otherwise like ``mutation_app``.

    It reads ontologies, but no rules. ``run`` raises ``InvalidSettings`` when the settings ask
    for no job.
    """
    return _with_broker("memory", settings)


def archive_app(settings: Settings | None = None) -> FastStream:
    """Return an app that copies the log into the archive until SIGTERM or SIGINT; otherwise like ``mutation_app``.

    It reads no rules and no graph. ``run`` raises ``InvalidSettings`` if the settings name no archive.
    """
    return _with_broker("archive", settings)


def role_app(role: HostedRole, settings: Settings) -> RoleApp:
    """Return the app of a role without a broker, which takes a tenth of a role's start and a connection."""
    return RoleApp(role, settings)


def _with_broker(role: HostedRole, settings: Settings | None) -> FastStream:
    if settings is None:
        unknown: list[str] = []
        settings = Settings.load(unknown=unknown)
        set_up_logs(settings.log_level, settings.log_format)
        for warning in unknown:
            logger.warning("unknown_variable", message=warning)
    broker = make_broker(settings, logger=logger)
    return RoleApp(role, settings, *(() if broker is None else (broker,)))


def _opener(role: HostedRole) -> Callable[[Settings], AbstractAsyncContextManager[Service]]:
    match role:
        case "mutation":
            from graphweft_workers.processes.mutation import open_mutation as found
        case "injection":
            from graphweft_workers.processes.injection import open_injection as found
        case "memory":
            from graphweft_workers.processes.memory import open_memory as found
        case "archive":
            from graphweft_workers.processes.archive import open_archive as found
    return found


class RoleApp(FastStream):
    """Runs a service in its lifespan. The service also runs before and after the broker is connected."""

    def __init__(self, role: HostedRole, settings: Settings, *brokers: Any) -> None:
        self._settings = settings
        self.ends = asyncio.Event()
        """Is set when the service is to end."""
        open_service = _opener(role)

        @asynccontextmanager
        async def lifespan() -> AsyncGenerator[None]:
            async with (
                traced(role, settings), healthy(role, settings) as heartbeat, open_service(settings) as service,
            ):  # fmt: skip
                working = asyncio.create_task(service.run(), name="graphweft-service")
                if isinstance(service, Reaching):
                    heartbeat.reached = service.reached
                heartbeat.begin(lambda: service.interrupted)
                # A service that ends by itself has a defect; FastStream would wait for a signal for ever.
                working.add_done_callback(lambda _: self.exit())
                with watched(settings.loop_limit_ms):
                    try:
                        yield
                    finally:
                        service.stop()
                        await working

        super().__init__(*brokers, logger=logger, lifespan=lifespan, specification=AsyncAPI(title="graphweft"))

    @override
    async def run(
        self, log_level: int = logging.INFO, run_extra_options: dict[str, Any] | None = None, sleep_time: float = 0.1
    ) -> None:
        """Run until a signal or ``exit``, as FastStream does, which looks every ``sleep_time`` whether it is to end."""
        set_exit(lambda number, frame: self.exit(), sync=False)
        options = run_extra_options or {}
        async with self.lifespan_context(**options):  # pyright: ignore[reportUnknownMemberType] - it says not of what
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._startup, log_level, run_extra_options)
                    await self.ends.wait()
                    await self._shutdown(log_level)
                    tasks.cancel_scope.cancel()
            except ExceptionGroup as group:
                raise group.exceptions[0] from None

    @override
    def exit(self) -> None:
        self.ends.set()

    @override
    async def _start_broker(self) -> None:
        """Start the broker, if there is one, once the bus answers: FastStream would end the app."""
        errors = bus_driver(self._settings.bus).broker_errors()
        while True:
            await _until_answered(self._settings)
            try:
                if self.brokers:
                    await super()._start_broker()
            except errors as error:  # unavailable again
                logger.debug("bus_unavailable", error=str(error))
                for broker in self.brokers:
                    await broker.stop()
            else:
                return


async def _until_answered(settings: Settings) -> None:
    """Wait until the bus answers; warn if its number of partitions differs from the settings."""
    attempt = 0
    bus = make_bus(settings)
    try:
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
    finally:
        with anyio.CancelScope(shield=True):  # the scope that ends the start would end this, too
            await bus.aclose()

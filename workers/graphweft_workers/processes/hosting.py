"""The roles as FastStream applications, with a broker for your own subscribers.

``faststream run --factory graphweft_workers.processes.hosting:mutation_app`` runs one. ``graphweft run`` runs the same
role without FastStream, whose import takes a fifth of a role's start. Add your own routers and middlewares to the app's
broker (None if FastStream has none for the bus), which uses the same bus::

    app = mutation_app()
    app.broker.include_router(router)

The roles are tasks of the lifespan, not subscribers: a FastStream subscriber would lose or reorder events (see
``docs/decisions/0009-faststream-hosts-it-does-not-deliver.md``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import override

from faststream import FastStream
from faststream.specification import AsyncAPI

from graphweft_workers.drivers import bus_driver
from graphweft_workers.processes.role import OpenService, serving, until_answered
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.logs import set_up_logs
from graphweft_workers.wiring.connections import make_broker

logger = get_logger("graphweft.hosting")


def mutation_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs a mutation worker until SIGTERM or SIGINT, then finishes its batch.

    Without ``settings`` it reads the environment and sets up the logs. Nothing is connected yet. ``run`` raises
    ``InvalidRules`` or ``InvalidSettings`` at once, and any error that ends the worker. Before the worker reads events,
    the graph server checks the queries of the rules; ``InvalidRules`` names those that it refuses. While the server is
    unavailable, the worker waits.
    """
    from graphweft_workers.processes.mutation import open_mutation

    return _App.of("mutation", settings, open_mutation)


def injection_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs an injection responder until SIGTERM or SIGINT; otherwise like ``mutation_app``.

    While the graph server is unavailable it answers without it, and checks the queries later.
    """
    from graphweft_workers.processes.injection import open_injection

    return _App.of("injection", settings, open_injection)


def memory_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs the jobs of memory until SIGTERM or SIGINT; otherwise like ``mutation_app``.

    It reads ontologies, but no rules. ``run`` raises ``InvalidSettings`` when the settings ask
    for no job.
    """
    from graphweft_workers.processes.memory import open_memory

    return _App.of("memory", settings, open_memory)


def archive_app(settings: Settings | None = None) -> FastStream:
    """Return an app that copies the log into the archive until SIGTERM or SIGINT; otherwise like ``mutation_app``.

    It reads no rules and no graph. ``run`` raises ``InvalidSettings`` if the settings name no archive.
    """
    from graphweft_workers.processes.archive import open_archive

    return _App.of("archive", settings, open_archive)


class _App(FastStream):
    """Runs a service in its lifespan. The service also runs before and after the broker is connected."""

    @classmethod
    def of(cls, role: str, settings: Settings | None, open_service: OpenService) -> _App:
        """Return the app of a role; without ``settings``, with those of the environment."""
        if settings is None:
            unknown: list[str] = []
            settings = Settings.load(unknown=unknown)
            set_up_logs(settings.log_level, settings.log_format)
            for warning in unknown:
                logger.warning("unknown_variable", message=warning)
        return cls(role, settings, open_service)

    def __init__(self, role: str, settings: Settings, open_service: OpenService) -> None:
        self._settings = settings

        @asynccontextmanager
        async def lifespan() -> AsyncGenerator[None]:
            # FastStream would wait for a signal for ever.
            async with serving(role, settings, open_service, self.exit):
                yield

        broker = make_broker(settings, logger=logger)
        brokers = () if broker is None else (broker,)
        super().__init__(*brokers, logger=logger, lifespan=lifespan, specification=AsyncAPI(title="graphweft"))

    @override
    async def _start_broker(self) -> None:
        """Start the broker, if there is one, once the bus answers: FastStream would end the app."""
        errors = bus_driver(self._settings.bus).broker_errors()
        while True:
            await until_answered(self._settings)
            try:
                if self.brokers:
                    await super()._start_broker()
            except errors as error:  # unavailable again
                logger.debug("bus_unavailable", error=str(error))
                for broker in self.brokers:
                    await broker.stop()
            else:
                return

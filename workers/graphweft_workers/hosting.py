"""The long-running services as FastStream applications: life, signals, and a broker for subscribers of your own.

``graphweft run`` runs these, and so does ``faststream run --factory graphweft_workers.hosting:mutation_app``. Routers
of your own go to the app's broker, which is connected to the same bus::

    app = mutation_app()
    app.broker.include_router(router)

The services themselves are tasks of the lifespan, not subscribers: a FastStream subscriber would lose or misorder
events, see ``docs/decisions/0009-faststream-hosts-it-does-not-deliver.md``. Import this module where a service is run:
FastStream takes longer to import than everything else together.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from faststream import FastStream
from faststream.specification import AsyncAPI
from redis.exceptions import RedisError

from graphweft.drivers import KAFKA
from graphweft_contracts import BusUnavailable
from graphweft_workers.logs import set_up_logs
from graphweft_workers.services import load_rules, make_bus, make_graph
from graphweft_workers.settings import Settings

if TYPE_CHECKING:
    from graphweft_workers.injection.requests import RequestQueue

__all__ = ("injection_app", "make_broker", "mutation_app")

logger = logging.getLogger("graphweft.hosting")

_LAST_WAIT_S: Final = 5.0


class _Service(Protocol):
    """What is hosted: works until it is told to stop, then finishes what it has in hand."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...


type _Open = Callable[[Settings], AbstractAsyncContextManager[_Service]]


def mutation_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs a mutation worker until SIGTERM or SIGINT, then finishes the batch in hand.

    Without ``settings`` it takes those of the environment and sets the logs up by them. Nothing is connected yet.
    ``run`` raises ``InvalidRules`` or ``InvalidSettings`` at once, and whatever defect ends the worker.
    """
    return _app(settings, _mutation)


def injection_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs an injection responder until SIGTERM or SIGINT; otherwise like ``mutation_app``."""
    return _app(settings, _injection)


def make_broker(settings: Settings) -> Any:
    """Return FastStream's broker on the bus that the settings name; nothing is connected yet.

    A ``RedisBroker`` or a ``KafkaBroker``. It is untyped, for the type of a broker says what its messages are made of.
    """
    if settings.bus.startswith(KAFKA):
        from faststream.kafka import KafkaBroker

        from graphweft.kafka_connection import servers

        return KafkaBroker(servers(settings.bus).split(","), logger=logger)
    from faststream.redis import RedisBroker

    # The URL that documents show: the real one may hold a password in its query too.
    return RedisBroker(settings.bus, logger=logger, specification_url="redis://bus")


def _app(settings: Settings | None, open_service: _Open) -> FastStream:
    if settings is None:
        settings = Settings.load()
        set_up_logs(settings.log_level, settings.log_format)
    given = settings

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        async with open_service(given) as service:
            working = asyncio.create_task(service.run(), name="graphweft-service")
            # A service that ended by itself has a defect: FastStream would wait for a signal beside it for ever.
            working.add_done_callback(lambda _: app.exit())
            try:
                yield
            finally:
                service.stop()
                await working

    # The signals, and so the stop, are FastStream's. The worker works before the broker is connected, and after.
    app = FastStream(
        _patient(make_broker(given), given),
        logger=logger,
        lifespan=lifespan,
        specification=AsyncAPI(title="graphweft"),
    )
    return app


@asynccontextmanager
async def _mutation(settings: Settings) -> AsyncGenerator[_Service]:
    from graphweft_workers.mutation.worker import MutationWorker

    rules = load_rules(settings)
    if not rules.workflows:
        # Reading on would pass events by that rules may be written for.
        logger.warning("there are no rules in %s: events wait on the bus until a worker has some", settings.rules)
        yield _Idle()
        return
    bus, graph = make_bus(settings), make_graph(settings)
    name = settings.worker_name or f"{socket.gethostname()}-{os.getpid()}"
    try:
        yield MutationWorker(bus, graph, rules, name=name, batch_events=settings.batch_events, lease_s=settings.lease_s)
    finally:
        await graph.aclose()
        await bus.aclose()


@asynccontextmanager
async def _injection(settings: Settings) -> AsyncGenerator[_Service]:
    from graphweft_rules.token_count import token_counter
    from graphweft_workers.injection.answering import Answerer
    from graphweft_workers.injection.responder import InjectionResponder

    rules = load_rules(settings)
    count = token_counter(settings.token_counter)
    logger.info("rules of the workflows: %s", ", ".join(sorted(rules.workflows)) or "none")
    bus, graph = make_bus(settings), make_graph(settings)
    queue = _request_queue(settings)
    answerer = Answerer(
        rules,
        graph,
        bus=bus,
        query_timeout_s=settings.query_timeout_ms / 1000,
        cache_bytes=settings.context_cache_mb * 1024**2,
        last_good_s=settings.context_last_good_s,
        off=settings.context_off_apps,
        count=count,
    )
    try:
        yield InjectionResponder(
            queue, answerer.answer, max_requests=settings.max_requests, more_counts=answerer.cache.counts
        )
    finally:
        await queue.aclose()
        await answerer.aclose()
        await graph.aclose()
        await bus.aclose()


def _request_queue(settings: Settings) -> RequestQueue:
    # No replica may take another for itself, not even one that ran here before under the same number.
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    if settings.bus.startswith(KAFKA):
        from graphweft_workers.injection.kafka_requests import KafkaRequestQueue

        return KafkaRequestQueue(settings.bus, name=name, partitions=settings.partitions)
    from graphweft_workers.injection.redis_requests import RedisRequestQueue

    return RedisRequestQueue(settings.bus, consumer=name)


class _Idle:
    """A service with nothing to do."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        await self._stopping.wait()

    def stop(self) -> None:
        self._stopping.set()


def _patient(broker: Any, settings: Settings) -> Any:
    """Return the broker, which from now on waits for a bus that is away at the start; FastStream's ends the app."""
    start = broker.start
    errors: tuple[type[Exception], ...] = (RedisError, OSError)
    if settings.bus.startswith(KAFKA):
        from aiokafka.errors import KafkaError

        errors = (KafkaError, OSError)

    async def start_at_last() -> None:
        while True:
            await _until_answered(settings)
            try:
                await start()
            except errors as error:  # it went away again
                logger.debug("the bus is away: %s", error)
                await broker.stop()
            else:
                return

    broker.start = start_at_last
    return broker


async def _until_answered(settings: Settings) -> None:
    """Wait until the bus answers."""
    bus = make_bus(settings)
    wait_s = 0.1
    try:
        while True:
            try:
                await bus.partitions()
            except BusUnavailable as error:
                logger.debug("the bus is away: %s", error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LAST_WAIT_S)
            else:
                return
    finally:
        await bus.aclose()

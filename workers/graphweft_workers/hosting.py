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
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from faststream import FastStream
from faststream.specification import AsyncAPI
from redis.exceptions import RedisError

from graphweft.drivers import KAFKA
from graphweft_contracts import BusUnavailable, GraphUnavailable, GraphweftError
from graphweft_workers.heartbeat import beating
from graphweft_workers.logs import set_up_logs
from graphweft_workers.services import load_rules, make_bus, make_graph, make_transport
from graphweft_workers.settings import Settings

if TYPE_CHECKING:
    from graphweft_rules.workflow import CompiledInjection, CompiledMutation
    from graphweft_workers.embedding.protocol import Embedder
    from graphweft_workers.graph.store import GraphStore
    from graphweft_workers.injection.requests import RequestQueue
    from graphweft_workers.memory.worker import JobWorker

logger = logging.getLogger("graphweft.hosting")

_FIRST_WAIT_S: Final = 0.1
_LAST_WAIT_S: Final = 5.0
_CHECK_S: Final = 5.0
"""A responder waits no longer for the check of its queries: a request that is not answered gets nothing at all."""


class _Service(Protocol):
    """What is hosted: works until it is told to stop, then finishes what it has in hand."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...


type _Open = Callable[[Settings], AbstractAsyncContextManager[_Service]]


def mutation_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs a mutation worker until SIGTERM or SIGINT, then finishes the batch in hand.

    Without ``settings`` it takes those of the environment and sets the logs up by them. Nothing is connected yet.
    ``run`` raises ``InvalidRules`` or ``InvalidSettings`` at once, and whatever defect ends the worker. Before the
    worker takes anything up the graph server is asked about the rules' queries; ``InvalidRules`` says which it refuses.
    While the server is away, the worker waits.
    """
    return _app(settings, "mutation", _mutation)


def injection_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs an injection responder until SIGTERM or SIGINT; otherwise like ``mutation_app``.

    While the graph server is away it answers without it, and checks the queries when the server is there.
    """
    return _app(settings, "injection", _injection)


def memory_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs the jobs of memory until SIGTERM or SIGINT; otherwise like ``mutation_app``.

    It reads no rules, but the ontologies that episodes go by. ``run`` raises ``InvalidSettings`` when the settings ask
    for no job.
    """
    return _app(settings, "memory", _memory)


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


def _app(settings: Settings | None, role: str, open_service: _Open) -> FastStream:
    if settings is None:
        unknown: list[str] = []
        settings = Settings.load(unknown=unknown)
        set_up_logs(settings.log_level, settings.log_format)
        for warning in unknown:
            logger.warning("%s", warning)
    given = settings

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        async with beating(role) as heartbeat, open_service(given) as service:
            working = asyncio.create_task(service.run(), name="graphweft-service")
            heartbeat.begin()
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
        logger.warning(
            "there are no rules in %s: only memories and episodes take effect, events of workflows are kept in dead "
            "letters: add rules, restart, and run: graphweft dlq retry --reason no_rules",
            settings.rules,
        )
    bus, graph = make_bus(settings), make_graph(settings)
    worker = MutationWorker(
        bus,
        graph,
        rules,
        name=_worker_name(settings),
        batch_events=settings.batch_events,
        lease_s=settings.lease_s,
    )
    try:
        yield _Checked(worker, graph, rules.mutations, waits=True)
    finally:
        await graph.aclose()
        await bus.aclose()


@asynccontextmanager
async def _memory(settings: Settings) -> AsyncGenerator[_Service]:
    from graphweft_workers.memory import jobs
    from graphweft_workers.memory.worker import JobWorker

    jobs.check(settings)
    async with AsyncExitStack() as stack:
        graph, transport = make_graph(settings), make_transport(settings)
        stack.push_async_callback(graph.aclose)
        stack.push_async_callback(transport.aclose)
        workers: list[JobWorker] = []
        for job in jobs.make_jobs(settings, graph):
            stack.push_async_callback(job.aclose)
            bus = make_bus(settings, group=job.group)
            stack.push_async_callback(bus.aclose)
            workers.append(JobWorker(bus, transport, job, name=_worker_name(settings), lease_s=settings.lease_s))
        yield _Together(workers)


def _worker_name(settings: Settings) -> str:
    return settings.worker_name or f"{socket.gethostname()}-{os.getpid()}"


@asynccontextmanager
async def _injection(settings: Settings) -> AsyncGenerator[_Service]:
    from graphweft_rules.token_count import token_counter
    from graphweft_workers.embedding.cached import CachedEmbedder
    from graphweft_workers.embedding.factory import make_embedder
    from graphweft_workers.graphrag.retriever import HybridRetriever
    from graphweft_workers.injection.answering import Answerer
    from graphweft_workers.injection.responder import InjectionResponder
    from graphweft_workers.retrieval.search import IndexNames

    rules = load_rules(settings)
    if rules.asks_for_facts and not settings.graphrag_enabled:
        logger.warning("rules ask for facts by graphrag, which is off: their blocks are missing until the responder is "
                       "started with GRAPHRAG_ENABLED=true")  # fmt: skip
    embedder = make_embedder(settings)
    if embedder is not None:
        embedder = CachedEmbedder(embedder)
    count = token_counter(settings.token_counter)
    logger.info("rules of the workflows: %s", ", ".join(sorted(rules.workflows)) or "none")
    bus, graph = make_bus(settings), make_graph(settings)
    queue = _request_queue(settings)
    answerer = Answerer(
        rules,
        graph,
        bus=bus,
        embedder=embedder,
        index_names=IndexNames(
            index=settings.index_name, vector=settings.vector_index_name, fulltext=settings.fulltext_index_name
        ),
        query_timeout_s=settings.query_timeout_ms / 1000,
        graphrag=HybridRetriever.of(graph, settings),
        cache_bytes=settings.context_cache_mb * 1024**2,
        last_good_s=settings.context_last_good_s,
        off=settings.context_off_apps,
        count=count,
    )
    waking = asyncio.create_task(_wake(embedder)) if embedder is not None else None
    responder = InjectionResponder(
        queue, answerer.answer, max_requests=settings.max_requests, more_counts=answerer.cache.counts
    )
    try:
        yield _Checked(responder, graph, rules.injections, waits=False)
    finally:
        if waking is not None and embedder is not None:
            waking.cancel()
            await asyncio.gather(waking, return_exceptions=True)
            await embedder.aclose()
        await queue.aclose()
        await answerer.aclose()
        await graph.aclose()
        await bus.aclose()


async def _wake(embedder: Embedder) -> None:
    """Ask for a vector before anybody needs one: a local model takes seconds to load, and a wrong key is told now."""
    try:
        await embedder.embed(["ready"])
    except GraphweftError as error:
        logger.warning("the embedder does not answer, so searches go by words until it does: %s", error)


def _request_queue(settings: Settings) -> RequestQueue:
    # No replica may take another for itself, not even one that ran here before under the same number.
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    if settings.bus.startswith(KAFKA):
        from graphweft_workers.injection.kafka_requests import KafkaRequestQueue

        return KafkaRequestQueue(settings.bus, name=name, partitions=settings.partitions)
    from graphweft_workers.injection.redis_requests import RedisRequestQueue

    return RedisRequestQueue(settings.bus, consumer=name)


class _Checked:
    """A service whose queries the graph server is asked about; ``run`` raises ``RulesError`` when it refuses one.

    While the server is away, a service that waits does not begin; any other works, and ends when a query turns out to
    be refused.
    """

    def __init__(
        self,
        service: _Service,
        graph: GraphStore,
        parts: Iterable[CompiledMutation | CompiledInjection],
        *,
        waits: bool,
    ) -> None:
        self._service = service
        self._graph = graph
        self._parts = tuple(part for part in parts if part.cypher is not None)  # else there is nothing to ask for
        self._waits = waits
        self._begin = asyncio.Event()
        self._stopping = False

    async def run(self) -> None:
        checking = asyncio.create_task(self._check())
        begin = asyncio.create_task(self._begin.wait())
        working: asyncio.Task[None] | None = None
        try:
            limit_s = None if self._waits else _CHECK_S
            await asyncio.wait([checking, begin], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if checking.done():
                checking.result()
            if self._stopping:
                return
            working = asyncio.create_task(self._service.run())
            await asyncio.wait([checking, working], return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and checking.exception() is not None:
                self._service.stop()
            await working
            if checking.done():
                checking.result()
        finally:
            for task in (checking, begin, working):
                if task is not None:
                    task.cancel()
            await asyncio.gather(checking, begin, return_exceptions=True)

    def stop(self) -> None:
        self._stopping = True
        self._begin.set()
        self._service.stop()

    async def _check(self) -> None:
        from graphweft_workers.query_check import refuse_wrong_queries

        wait_s = _FIRST_WAIT_S
        while self._parts:
            try:
                await self._graph.check()
                await refuse_wrong_queries(self._graph, self._parts)
                return
            except GraphUnavailable as error:
                if wait_s == _FIRST_WAIT_S:
                    held = "nothing is taken up until then" if self._waits else "requests are answered meanwhile"
                    logger.warning("queries of rules are checked when the graph server answers, %s: %s", held, error)
                if not self._waits:
                    self._begin.set()
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LAST_WAIT_S)


class _Together:
    """Several workers as one service; a defect of one ends all."""

    def __init__(self, workers: Sequence[JobWorker]) -> None:
        self._workers = workers

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for worker in self._workers:
                tasks.create_task(worker.run())

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()


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
    """Wait until the bus answers, and say so where it has other partitions than the settings name."""
    bus = make_bus(settings)
    wait_s = _FIRST_WAIT_S
    try:
        while True:
            try:
                keyed = await bus.keyed_partitions()
            except BusUnavailable as error:
                logger.debug("the bus is away: %s", error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LAST_WAIT_S)
            else:
                if "partitions" in settings.model_fields_set and settings.partitions != keyed:
                    logger.warning(
                        "GRAPHWEFT_PARTITIONS is %d and has no effect: this bus spreads chats over %d partitions since "
                        "it was first used. Set it to %d, or leave it out",
                        *(settings.partitions, keyed, keyed),
                    )
                return
    finally:
        await bus.aclose()

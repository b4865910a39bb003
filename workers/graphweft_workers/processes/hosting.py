"""The roles as FastStream applications, with signals and a broker for your own subscribers.

``graphweft run`` runs these, and so does ``faststream run --factory graphweft_workers.processes.hosting:mutation_app``.
Add your own routers to the app's broker (None if FastStream has none for the bus), which uses the same bus::

    app = mutation_app()
    app.broker.include_router(router)

The roles are tasks of the lifespan, not subscribers: a FastStream subscriber would lose or reorder events (see
``docs/decisions/0009-faststream-hosts-it-does-not-deliver.md``). Import this module only to run a role, because
importing FastStream takes longer than everything else together.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, override
from uuid import uuid4

from faststream import FastStream
from faststream.specification import AsyncAPI

from graphweft_contracts import (
    BusUnavailable,
    ContextReply,
    ContextRequest,
    GraphUnavailable,
    GraphweftError,
    InvalidRules,
    QueryFailed,
    channels,
)
from graphweft_workers.apps import Quotas
from graphweft_workers.drivers import bus_driver
from graphweft_workers.ports.check import layout_checks
from graphweft_workers.processes.heartbeat import beating
from graphweft_workers.processes.loop_monitor import watched
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.garbage_collection import leave_out_the_start
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.logs import set_up_logs
from graphweft_workers.wiring.apps import apps_of_graphs
from graphweft_workers.wiring.connections import (
    make_archive,
    make_broker,
    make_bus,
    make_graph,
    make_keyring,
    make_request_queue,
    make_transport,
    new_layout,
)
from graphweft_workers.wiring.pipelines import make_pipeline
from graphweft_workers.wiring.policies import may_use, open_policies
from graphweft_workers.wiring.rule_faults import keep_faults
from graphweft_workers.wiring.rules import load_new_rules, load_usable_rules, logged_rules, push_if_new

if TYPE_CHECKING:
    from graphweft_rules import RuleSet
    from graphweft_rules.matching.mutation import CompiledMutation
    from graphweft_rules.matching.workflow import CompiledInjection
    from graphweft_workers.embedding.protocol import Embedder
    from graphweft_workers.engine.job_worker import JobWorker
    from graphweft_workers.injection.purges import PurgeFollower
    from graphweft_workers.ports.bus import Bus
    from graphweft_workers.ports.graph_store import GraphStore
    from graphweft_workers.rule_sets.active_rules import LoggedRules

logger = get_logger("graphweft.hosting")

_FIRST_WAIT_S: Final = 0.1
_LAST_WAIT_S: Final = 5.0
_FOLLOW_S: Final = 0.5
_CHECK_S: Final = 5.0
"""How long a responder waits for the active rules, and for the check of its queries: unanswered requests get no
context."""
_MOST_APPS: Final = 300
"""Apps whose memories are looked at when a responder starts."""
_REPORT_S: Final = 1.0
"""How long a responder that ends tries to write its record of usage."""


class _Service(Protocol):
    """A hosted service: runs until ``stop``, then finishes its current work."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...


type _Open = Callable[[Settings], AbstractAsyncContextManager[_Service]]


def mutation_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs a mutation worker until SIGTERM or SIGINT, then finishes its batch.

    Without ``settings`` it reads the environment and sets up the logs. Nothing is connected yet. ``run`` raises
    ``InvalidRules`` or ``InvalidSettings`` at once, and any error that ends the worker. Before the worker reads events,
    the graph server checks the queries of the rules; ``InvalidRules`` names those that it refuses. While the server is
    unavailable, the worker waits.
    """
    return _app(settings, "mutation", _mutation)


def injection_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs an injection responder until SIGTERM or SIGINT; otherwise like ``mutation_app``.

    While the graph server is unavailable it answers without it, and checks the queries later.
    """
    return _app(settings, "injection", _injection)


def memory_app(settings: Settings | None = None) -> FastStream:
    """Return an app that runs the jobs of memory until SIGTERM or SIGINT; otherwise like ``mutation_app``.

    It reads ontologies, but no rules. ``run`` raises ``InvalidSettings`` when the settings ask
    for no job.
    """
    return _app(settings, "memory", _memory)


def archive_app(settings: Settings | None = None) -> FastStream:
    """Return an app that copies the log into the archive until SIGTERM or SIGINT; otherwise like ``mutation_app``.

    It reads no rules and no graph. ``run`` raises ``InvalidSettings`` if the settings name no archive.
    """
    return _app(settings, "archive", _archive)


def _app(settings: Settings | None, role: str, open_service: _Open) -> FastStream:
    if settings is None:
        unknown: list[str] = []
        settings = Settings.load(unknown=unknown)
        set_up_logs(settings.log_level, settings.log_format)
        for warning in unknown:
            logger.warning("setting_unknown", message=warning)
    given = settings

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        async with beating(role) as heartbeat, open_service(given) as service:
            working = asyncio.create_task(service.run(), name="graphweft-service")
            heartbeat.begin()
            # A service that ends by itself has a defect; without this FastStream would wait for a signal for ever.
            working.add_done_callback(lambda _: app.exit())
            with watched(given.loop_limit_ms):
                try:
                    yield
                finally:
                    service.stop()
                    await working

    # FastStream handles signals. The worker also runs before and after the broker is connected.
    broker = make_broker(given, logger=logger)
    brokers = () if broker is None else (_patient(broker, given),)
    app = _App(*brokers, logger=logger, lifespan=lifespan, specification=AsyncAPI(title="graphweft"))
    if broker is None:

        @app.on_startup
        async def start_at_last() -> None:
            await _until_answered(given)

    return app


class _App(FastStream):
    """An app that may have no broker; FastStream's own refuses to start then."""

    @override
    async def _start_broker(self) -> None:
        if self.brokers:
            await super()._start_broker()


@asynccontextmanager
async def _mutation(settings: Settings) -> AsyncGenerator[_Service]:
    from graphweft_workers.engine.worker import MutationWorker
    from graphweft_workers.features.graphrag.safe_cypher import KEYS
    from graphweft_workers.replay.graph_obstacle import GraphObstacles

    async with AsyncExitStack() as stack:
        bus = make_bus(settings)
        stack.push_async_callback(bus.aclose)
        rules = await _folder_rules(settings, bus)
        graph = make_graph(settings)
        stack.push_async_callback(graph.aclose)
        policies = open_policies(settings)
        if policies is not None:
            following = asyncio.create_task(policies.follow())
            stack.callback(following.cancel)
        worker = MutationWorker(
            bus,
            graph,
            logged_rules(settings, bus, without_lost=True, restores=True),
            name=_worker_name(settings),
            batch_events=settings.batch_events,
            lease_s=settings.lease_s,
            fact_keys=KEYS,
            obstacle=GraphObstacles(bus, graph).of,
            quotas=lambda app_id: Quotas() if policies is None else policies.current.of(app_id).quotas,
        )
        yield _Checked(worker, graph, bus, rules, settings, waits=True)


@asynccontextmanager
async def _memory(settings: Settings) -> AsyncGenerator[_Service]:
    from graphweft_workers.engine.job_worker import JobWorker
    from graphweft_workers.wiring import features as jobs

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


@asynccontextmanager
async def _archive(settings: Settings) -> AsyncGenerator[_Service]:
    from graphweft_workers.archive.archiver import Archiver

    blobs = make_archive(settings)
    async with (
        aclosing(make_bus(settings, group=channels.ARCHIVE_GROUP, archived=False)) as bus,
        aclosing(make_bus(settings, archived=False)) as applied,
    ):
        yield Archiver(
            bus,
            blobs,
            name=_worker_name(settings),
            every_s=settings.archive_every_s,
            trims=settings.archive_trim,
            lease_s=settings.lease_s,
            applied=applied.partitions,
        )


def _worker_name(settings: Settings) -> str:
    return settings.worker_name or f"{socket.gethostname()}-{os.getpid()}"


@asynccontextmanager
async def _injection(settings: Settings) -> AsyncGenerator[_Service]:
    from graphweft_workers.embedding.cached import CachedEmbedder
    from graphweft_workers.injection.compile_rest import compile_rest
    from graphweft_workers.injection.responder import InjectionResponder
    from graphweft_workers.processes.responder_usage import ResponderUsage
    from graphweft_workers.wiring.embedder import make_embedder

    policies = open_policies(settings)
    bus = make_bus(settings)
    try:
        rules = await _folder_rules(settings, bus)
    except BaseException:
        await bus.aclose()
        raise
    embedder = make_embedder(settings)
    if embedder is not None:
        embedder = CachedEmbedder(embedder)
    graph = make_graph(settings)
    active = logged_rules(settings, bus, none=None if isinstance(rules, InvalidRules) else rules, without_lost=True)
    with suppress(BusUnavailable, TimeoutError):  # else the first requests would find no rules
        async with asyncio.timeout(_CHECK_S):
            await active.refresh()
    # The name must be unique, even among earlier processes with the same pid.
    name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    queue, keyring = make_request_queue(settings, name=name), make_keyring(settings)
    pipeline = make_pipeline(
        settings,
        active,
        graph,
        bus=bus,
        embedder=embedder,
        cache_bytes=settings.context_cache_mb * 1024**2,
        index_bytes=settings.context_index_mb * 1024**2,
        last_good_s=settings.context_last_good_s,
        off=settings.context_off_apps,
        root=settings.rules,
        may_use=may_use(policies),
    )
    for model in (ContextRequest, ContextReply):  # else the first request waits 5 ms until pydantic has built them
        model.model_rebuild()
    tasks = [asyncio.create_task(_follow(active, settings, pipeline.purges)), asyncio.create_task(compile_rest(active))]
    if embedder is not None:
        tasks.append(asyncio.create_task(_wake(embedder)))
        tasks.append(asyncio.create_task(_name_other_models(graph, embedder.model)))
    if policies is not None:
        tasks.append(asyncio.create_task(policies.follow()))
    usage = ResponderUsage(bus.usage, graph.without_turn, name=name)
    tasks.append(asyncio.create_task(usage.run()))
    responder = InjectionResponder(
        queue,
        pipeline.answer,
        max_requests=settings.max_requests,
        more_counts=lambda: {**pipeline.counts(), "without_turn": graph.without_turn.total()},
        check=None if keyring is None else keyring.check_request,
    )
    try:
        yield _Checked(responder, graph, bus, rules, settings, waits=False)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_S):
                await usage.report()
        if embedder is not None:
            await embedder.aclose()
        await queue.aclose()
        await pipeline.aclose()
        await graph.aclose()
        await bus.aclose()


async def _wake(embedder: Embedder) -> None:
    """Embed a text at the start: a local model takes seconds to load, and a wrong key is reported now."""
    try:
        await embedder.embed(["ready"])
    except GraphweftError as error:
        logger.warning("embedder_unavailable", error=str(error), next="searches use words only until it answers")


async def _name_other_models(graph: GraphStore, model: str) -> None:
    """Warn of apps whose memories have vectors of another model, once at the start."""
    from graphweft_workers.retrieval.embedded_models import models_text, other_models

    with suppress(GraphUnavailable, QueryFailed):
        for app_id in (await apps_of_graphs(graph))[:_MOST_APPS]:
            if models := await other_models(graph, app_id, model, timeout_s=_CHECK_S):
                logger.warning(
                    "embedder_changed", app_id=app_id, embedder=model, memories=models_text(models),
                    next="searches find these memories by words only: set GRAPHWEFT_EMBEDDER to the model that "
                    "embedded them",
                )  # fmt: skip


async def _follow(rules: LoggedRules, settings: Settings, purges: PurgeFollower | None) -> None:
    """Read new activations of rules, and purges of cached rows, twice a second."""
    warns = not settings.graphrag_enabled
    while True:
        try:
            if purges is not None:
                await purges.follow()
            await rules.refresh()
        except BusUnavailable as error:
            logger.debug("bus_unavailable", error=str(error))
        if warns and any(each.asks_for_facts for each in (rules.none, *rules.in_use())):
            warns = False
            logger.warning(
                "facts_off",
                next="rules ask for facts, and their blocks are missing until the responder is started with "
                "GRAPHRAG_ENABLED=true",
            )
        await asyncio.sleep(_FOLLOW_S)


async def _folder_rules(settings: Settings, bus: Bus) -> RuleSet | InvalidRules | None:
    """Return the rules of the folder, or their errors; None if they are active already."""
    try:
        return await load_new_rules(settings, bus)
    except InvalidRules as error:
        return error


class _Checked:
    """A service whose folder of rules the graph server checks, and which pushes them then if they are new.

    Workflows with errors, or with a query that the server refuses, keep the rules that are active; the log and
    ``status`` name the errors. ``run`` raises ``RulesError`` only if there would be no rules at all. While the server
    or the bus is unavailable, a service with ``waits`` does not begin. Any other begins, and ends if nothing can be
    used later.
    """

    def __init__(
        self,
        service: _Service,
        graph: GraphStore,
        bus: Bus,
        rules: RuleSet | InvalidRules | None,
        settings: Settings,
        *,
        waits: bool,
    ) -> None:
        """``rules`` are those of the folder; None if they are active, so that the server checked them before."""
        self._service = service
        self._graph = graph
        self._bus = bus
        self._rules = rules
        self._settings = settings
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
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                await self._push()
                leave_out_the_start()
                return
            except (GraphUnavailable, BusUnavailable) as error:
                if wait_s == _FIRST_WAIT_S:
                    held = "no event is read until then" if self._waits else "requests are answered meanwhile"
                    server = "graph server" if isinstance(error, GraphUnavailable) else "bus"
                    logger.warning(
                        "query_check_waits", error=str(error), next=f"it goes on when the {server} answers; {held}"
                    )
                if not self._waits:
                    self._begin.set()
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LAST_WAIT_S)

    async def _push(self) -> None:
        from graphweft_workers.wiring.query_check import refuse_wrong_queries

        rules, folder = self._rules, self._settings.rules
        if rules is None:
            await keep_faults(self._bus, str(folder), "")
            return
        try:
            if isinstance(rules, InvalidRules):
                raise rules
            every: list[CompiledMutation | CompiledInjection] = [*rules.mutations, *rules.injections]
            if parts := [part for part in every if part.cypher is not None]:
                await self._graph.check()
                await refuse_wrong_queries(self._graph, parts, folder)
            await push_if_new(self._bus, rules, folder)
            if rules.workflows:  # a process without a folder says nothing about that of another one
                await keep_faults(self._bus, str(folder), "")
        except InvalidRules as error:
            await self._graph.check()
            found = await load_usable_rules(self._settings, self._bus, self._graph, error)
            if found.rules is not None:
                await push_if_new(self._bus, found.rules, folder)
            for line in found.faults.splitlines():
                logger.error("rules_have_errors", error=line)
            await keep_faults(self._bus, str(folder), found.faults)


class _Together:
    """Several workers as one service; an error of one ends all."""

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
    """Let the broker wait for an unavailable bus at the start; FastStream would end the app."""
    start = broker.start
    errors = bus_driver(settings.bus).broker_errors()

    async def start_at_last() -> None:
        while True:
            await _until_answered(settings)
            try:
                await start()
            except errors as error:  # unavailable again
                logger.debug("bus_unavailable", error=str(error))
                await broker.stop()
            else:
                return

    broker.start = start_at_last
    return broker


async def _until_answered(settings: Settings) -> None:
    """Wait until the bus answers; warn if its number of partitions differs from the settings."""
    bus = make_bus(settings)
    wait_s = _FIRST_WAIT_S
    try:
        while True:
            try:
                layout = await bus.partitions.layout()
            except BusUnavailable as error:
                logger.debug("bus_unavailable", error=str(error))
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LAST_WAIT_S)
            else:
                for check in layout_checks(layout, new_layout(settings), settings.model_fields_set):
                    logger.warning("layout_differs", found=check.found, next=check.advice)
                return
    finally:
        await bus.aclose()

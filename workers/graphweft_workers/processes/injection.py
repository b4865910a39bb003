"""Opens the injection responder of a process."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final
from uuid import uuid4

from graphweft_contracts import (
    BusUnavailable,
    ContextReply,
    ContextRequest,
    GraphUnavailable,
    GraphweftError,
    InvalidRules,
    QueryFailed,
)
from graphweft_workers.embedding.cached import CachedEmbedder
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.engine.usage.host_clock import HostClock
from graphweft_workers.injection.compile_rest import compile_rest
from graphweft_workers.injection.purges import PurgeFollower
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.processes.checked_service import CHECK_S, CheckedService, folder_rules
from graphweft_workers.processes.responder_usage import ResponderUsage
from graphweft_workers.processes.role_metrics import responder_metrics
from graphweft_workers.processes.service import Service
from graphweft_workers.retrieval.embedded_models import models_text, other_models
from graphweft_workers.rule_sets.active_rules import LoggedRules
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.tasks import running_beside
from graphweft_workers.wiring.apps import apps_of_graphs
from graphweft_workers.wiring.connections import make_bus, make_graph, make_keyring, make_request_queue
from graphweft_workers.wiring.embedder import make_embedder
from graphweft_workers.wiring.pipelines import make_pipeline
from graphweft_workers.wiring.policies import may_use, open_policies
from graphweft_workers.wiring.rules import logged_rules

logger = get_logger("graphweft.hosting")

_FOLLOW_S: Final = 0.5
_MOST_APPS: Final = 300
"""Apps whose memories are looked at when a responder starts."""
_REPORT_S: Final = 1.0
"""How long a responder that ends tries to write its record of usage."""


@asynccontextmanager
async def open_injection(settings: Settings) -> AsyncGenerator[Service]:
    """Open a responder, which answers with the active rules while the graph server is unavailable."""
    async with AsyncExitStack() as stack:
        policies = open_policies(settings)
        bus = make_bus(settings)
        stack.push_async_callback(bus.aclose)
        rules = await folder_rules(settings, bus)
        embedder = make_embedder(settings)
        if embedder is not None:
            embedder = CachedEmbedder(embedder)
            stack.push_async_callback(embedder.aclose)
        graph = make_graph(settings)
        stack.push_async_callback(graph.aclose)
        none = None if isinstance(rules, InvalidRules) else rules
        active = logged_rules(settings, bus, none=none, without_lost=True)
        with suppress(BusUnavailable, TimeoutError):  # else the first requests would find no rules
            async with asyncio.timeout(CHECK_S):
                await active.refresh()
        # The name must be unique, even among earlier processes with the same pid.
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        keyring = make_keyring(settings)
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
        stack.push_async_callback(pipeline.aclose)
        queue = make_request_queue(settings, name=name)
        stack.push_async_callback(queue.aclose)
        for model in (ContextRequest, ContextReply):  # else the first request waits 5 ms until pydantic has built them
            model.model_rebuild()
        usage = ResponderUsage(bus.usage, graph.without_turn, name=name)
        stack.push_async_callback(_report_last, usage)
        host_clock = HostClock(bus, "responder", name=name)
        stack.push_async_callback(host_clock.aclose)
        background = [_follow(active, settings, pipeline.purges), compile_rest(active), usage.run(), host_clock.run()]
        if embedder is not None:
            background += [_wake(embedder), _name_other_models(graph, embedder.model)]
        if policies is not None:
            background.append(policies.follow())
        await stack.enter_async_context(running_beside(*background))
        responder = InjectionResponder(
            queue,
            pipeline.answer,
            max_requests=settings.max_requests,
            more_counts=lambda: {**pipeline.counts(), "without_turn": graph.without_turn.total()},
            check=None if keyring is None else keyring.check_request,
        )
        stack.enter_context(responder_metrics(responder, pipeline, graph))
        yield CheckedService(responder, graph, bus, rules, settings, waits=False)


async def _report_last(usage: ResponderUsage) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_REPORT_S):
            await usage.report()


async def _wake(embedder: Embedder) -> None:
    """Embed a text at the start: a local model takes seconds to load, and a wrong key is reported now."""
    try:
        await embedder.embed(["ready"])
    except GraphweftError as error:
        logger.warning("embedder_unavailable", error=str(error), next="searches use words only until it answers")


async def _name_other_models(graph: GraphStore, model: str) -> None:
    """Warn of apps whose memories have vectors of another model, once at the start."""
    with suppress(GraphUnavailable, QueryFailed):
        for app_id in (await apps_of_graphs(graph))[:_MOST_APPS]:
            if models := await other_models(graph, app_id, model, timeout_s=CHECK_S):
                logger.warning(
                    "embedder_changed", app_id=app_id, embedder=model, memories=models_text(models),
                    next="searches find these memories by words only: run `graphweft memory embed --app` with the "
                    "app, or set GRAPHWEFT_EMBEDDER to the model that embedded them",
                )  # fmt: skip


async def _follow(rules: LoggedRules, settings: Settings, purges: PurgeFollower | None) -> None:
    """Read new activations of rules, and purges of cached rows, twice a second."""
    warns = not settings.graphrag_enabled
    while True:
        try:
            # Together they wake the event loop half as often.
            await asyncio.gather(rules.refresh(), *(() if purges is None else (purges.follow(),)))
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

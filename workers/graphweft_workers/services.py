"""Builds the services from settings. The only place where drivers are chosen.

Rules, worker and responder are imported where they are run: a command that reads a count need not wait for them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from graphweft.redis_transport import RedisTransport
from graphweft.transport import Transport
from graphweft_contracts import InvalidSettings
from graphweft_workers.bus.log import Bus
from graphweft_workers.bus.redis_streams import RedisStreamsBus
from graphweft_workers.graph.falkordb import FalkorDBStore
from graphweft_workers.graph.store import GraphStore
from graphweft_workers.settings import Settings

if TYPE_CHECKING:
    from graphweft_rules import Ruleset

__all__ = ("load_rules", "make_bus", "make_graph", "make_transport", "run_injection", "run_mutation")

logger = logging.getLogger("graphweft.services")


def load_rules(settings: Settings) -> Ruleset:
    """Load every workflow below ``settings.rules``. Raises ``InvalidRules`` with all findings.

    A folder that was named must exist; without the default one there are no rules.
    """
    from graphweft_rules import Ruleset

    if not settings.rules.is_dir():
        if "rules" not in settings.model_fields_set:
            return Ruleset({})
        raise InvalidSettings(
            f"the rules folder {str(settings.rules)!r} does not exist; give --rules, or set GRAPHWEFT_RULES, to a "
            "folder with <Workflow>/graph_injection.yaml files"
        )
    return Ruleset.load(settings.rules)


def make_bus(settings: Settings) -> Bus:
    """Return the bus that the settings name; nothing is connected yet."""
    return RedisStreamsBus(settings.bus, partitions=settings.partitions)


def make_graph(settings: Settings) -> GraphStore:
    """Return the graph store that the settings name; nothing is connected yet."""
    return FalkorDBStore(
        settings.graph, graph_template=settings.graph_template, write_timeout_ms=settings.mutation_timeout_ms
    )


def make_transport(settings: Settings) -> Transport:
    """Return the producer's side of the bus; nothing is connected yet."""
    return RedisTransport(settings.bus, partitions=settings.partitions)


async def run_mutation(settings: Settings) -> None:
    """Run a mutation worker until SIGTERM or SIGINT, then finish the batch in hand."""
    from graphweft_workers.mutation.worker import MutationWorker

    rules = load_rules(settings)
    if not rules.workflows:
        # Reading on would pass events by that rules may be written for.
        logger.warning("there are no rules in %s: events wait on the bus until a worker has some", settings.rules)
        stopped = asyncio.Event()
        _on_stop(stopped.set)
        await stopped.wait()
        return
    bus, graph = make_bus(settings), make_graph(settings)
    name = settings.worker_name or f"{socket.gethostname()}-{os.getpid()}"
    worker = MutationWorker(bus, graph, rules, name=name, batch_events=settings.batch_events)
    _on_stop(worker.stop)
    try:
        await worker.run()
    finally:
        await graph.aclose()
        await bus.aclose()


async def run_injection(settings: Settings) -> None:
    """Run an injection responder until SIGTERM or SIGINT, then finish the requests in hand."""
    from graphweft_workers.injection.requests import RedisRequestQueue
    from graphweft_workers.injection.responder import InjectionResponder

    rules = load_rules(settings)
    graph = make_graph(settings)
    queue = RedisRequestQueue(settings.bus, consumer=f"{socket.gethostname()}-{os.getpid()}")
    responder = InjectionResponder(
        queue, graph, rules, query_timeout_s=settings.query_timeout_ms / 1000, max_requests=settings.max_requests
    )
    _on_stop(responder.stop)
    try:
        await responder.run()
    finally:
        await queue.aclose()
        await graph.aclose()


def _on_stop(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)

"""Opens the mutation worker of a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from graphweft_workers.apps import Quotas
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.processes.checked_service import CheckedService, folder_rules
from graphweft_workers.processes.role_metrics import worker_metrics
from graphweft_workers.processes.service import Service, worker_name
from graphweft_workers.replay.graph_obstacle import GraphObstacles
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus, make_graph
from graphweft_workers.wiring.policies import open_policies
from graphweft_workers.wiring.rules import logged_rules


@asynccontextmanager
async def open_mutation(settings: Settings) -> AsyncGenerator[Service]:
    """Open a worker, which waits while the graph server is unavailable."""
    async with AsyncExitStack() as stack:
        bus = make_bus(settings, over_gaps=False)  # it must tell a gap from another log
        stack.push_async_callback(bus.aclose)
        rules = await folder_rules(settings, bus)
        graph = make_graph(settings)
        stack.push_async_callback(graph.aclose)
        policies = open_policies(settings)
        if policies is not None:
            following = asyncio.create_task(policies.follow())
            stack.callback(following.cancel)
        obstacles = GraphObstacles(bus, graph)
        worker = MutationWorker(
            bus,
            graph,
            logged_rules(settings, bus, without_lost=True, restores=True),
            name=worker_name(settings),
            batch_events=settings.batch_events,
            lease_s=settings.lease_s,
            obstacle=obstacles.of,
            older=obstacles.older,
            effects_keep=settings.effects_keep,
            quotas=lambda app_id: Quotas() if policies is None else policies.current.of(app_id).quotas,
        )
        await stack.enter_async_context(worker_metrics(settings, bus, worker_name(settings)))
        yield CheckedService(worker, graph, bus, rules, settings, waits=True)

"""Workers that run in the event loop of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from graphweft_rules import RuleSet
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.support.timing import LeaseTiming, Timing

__all__ = ("SOON", "running", "working")

SOON: Final = Timing(leases=LeaseTiming(read_s=0.2))
"""A worker commits what its apps took longer over than it waited when its next read ends, which takes 2.5 s without
new events. Tests wait for that."""


class Runner(Protocol):
    """What runs until it is stopped."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...


@asynccontextmanager
async def running[W: Runner](worker: W) -> AsyncGenerator[W]:
    """Run a worker while the block does."""
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


@asynccontextmanager
async def working(bus: Bus, graph: GraphStore, rules: RuleSet, **how: Any) -> AsyncGenerator[MutationWorker]:
    """Run a worker of a graph while the block does; ``how`` are further arguments of ``MutationWorker``."""
    async with running(MutationWorker(bus, graph, rules, name="w", **{"timing": SOON, **how})) as worker:
        yield worker

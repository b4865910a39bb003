"""A worker opens its partitions in turns: each opening uses connections to both servers, and those stay open."""

from __future__ import annotations

import asyncio
from typing import cast

from tests.chaos.memory_bus import memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import GraphUnavailable
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.graph_store import GraphStore

PARTITIONS = 64


class Graphs:
    """A graph server that counts the questions that it has at once, and refuses each after a while."""

    dialect = FALKORDB

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.asked = 0

    async def check(self) -> str:
        self.now += 1
        self.asked += 1
        self.most = max(self.most, self.now)
        await VIRTUAL.sleep(0.1)
        self.now -= 1
        raise GraphUnavailable("away")

    async def positions(self) -> None:
        return None


async def test_few_partitions_are_opened_at_once() -> None:
    graphs = Graphs()
    bus = memory_bus([[] for _ in range(PARTITIONS)])
    worker = MutationWorker(bus, cast(GraphStore, graphs), RuleSet({}), name="w", clock=VIRTUAL)
    running = asyncio.create_task(worker.run())
    await VIRTUAL.sleep(60)
    worker.stop()
    await running
    assert graphs.asked > PARTITIONS
    assert graphs.most == 8

"""(r) Events a second of a worker beside consumers without rules: one written by hand, and Neo4j's connector."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import count as numbers
from pathlib import Path
from typing import Final

from tests.services.rules import load_rules

from benchmarks import connector
from benchmarks.hand_written import ONE, with_values
from benchmarks.harness import Bench, Contender, Result, Skip, ratio, without
from benchmarks.processes import ENGINE, process, rate_and_cpu
from benchmarks.services import Graph, GraphProbe, Services, publish, publish_plain
from benchmarks.workload import CALLS
from graphweft_workers.roles.connections import make_bus
from graphweft_workers.roles.settings import Settings

ROW: Final = "r"
_PER_S: Final = 20_000
_LEAST: Final = 40_000
_LONGEST_S: Final = 3.0
_RULES: Final = """\
version: "1.0"
mutation_rules:
  - name: "call"
    events: ["tool.call_complete"]
    mutations:
      - id: "keep"
        cypher: "STATEMENT"
        params: {id: "$event.call_id", tool: "$event.tool_name", success: "$event.success", chat: "$workflow.chat_id"}
"""
_runs = numbers(1)
type _Process = asyncio.subprocess.Process


async def run(graph: Graph, bench: Bench, services: Services) -> list[Result]:
    """Compare them over Kafka: on Neo4j by the same statement for an event, on FalkorDB by the same three."""
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
        rules = CALLS.rules
        if graph == "neo4j":
            rules = Path(folder, "workflows")
            (rules / "Calls").mkdir(parents=True)
            statement = with_values(ONE, id="$id", tool="$tool", success="$success", chat="$chat")
            (rules / "Calls/graph_injection.yaml").write_text(_RULES.replace("STATEMENT", statement))
        settings = await services.settings("kafka", graph, rules)
        case = _Case(settings, graph, services, max(_LEAST, int(_PER_S * bench.seconds)))
        contenders: dict[str, Contender] = {"engine": case.engine, "by hand": case.by_hand}
        skipped: Skip | None = None
        if graph == "neo4j":
            try:
                connector.jar()
                contenders |= {name: partial(case.connector, name) for name in connector.SETTINGS}
            except Skip as reason:
                skipped = reason
        values = await bench.interleave(f"kafka x {graph}, consumers", contenders)
    note = "; ".join(
        f"{name}: {statistics.median(each):.0f} µs of CPU for each event" for name, each in case.cpu.items()
    )
    results = [
        ratio(ROW, f"engine / {name}, kafka x {graph}", values, of="engine", to=name, unit="events/s", note=note)
        for name in list(contenders)[1:]
    ]
    return results if skipped is None else [*results, without(ROW, "engine / connector, kafka x neo4j", skipped)]


class _Case:
    def __init__(self, settings: Settings, graph: Graph, services: Services, size: int) -> None:
        self._settings = settings
        self._graph: Graph = graph
        self._services = services
        self._size = size
        self.cpu: dict[str, list[float]] = {}
        """By contender: microseconds of CPU for each event, without the servers'."""

    async def engine(self, _round: int) -> float:
        probe = await self._cleared()
        await publish(self._settings, CALLS.outgoing(self._size, self._name()))
        log = make_bus(self._settings)
        try:
            size = sum(part.lag for part in await log.partitions.status())  # with what the last worker left
        finally:
            await log.aclose()
        return await self._rate("engine", probe, process(ENGINE, self._settings), size)

    async def by_hand(self, _round: int) -> float:
        return await self._plain(
            "by hand", lambda topic: process(("-m", "benchmarks.hand_written", topic), self._settings)
        )

    async def connector(self, name: str, _round: int) -> float:
        more = connector.SETTINGS[name]
        return await self._plain(name, lambda topic: connector.connector(self._settings, topic, more))

    async def _plain(self, name: str, start: Callable[[str], AbstractAsyncContextManager[_Process]]) -> float:
        probe = await self._cleared()
        await probe.index(load_rules(self._settings.rules).keys | {("Offset", "partition")})
        run = self._name()
        await publish_plain(self._settings, run, CALLS.outgoing(self._size, run))
        return await self._rate(name, probe, start(run), self._size)

    async def _cleared(self) -> GraphProbe:
        await self._services.clear("kafka", self._graph)
        return await self._services.probe(self._graph)

    async def _rate(
        self, name: str, probe: GraphProbe, starting: AbstractAsyncContextManager[_Process], size: int
    ) -> float:
        async with starting as running:
            rate, cpu_us = await rate_and_cpu(running, probe, CALLS.applied, size, limit_s=_LONGEST_S)
        self.cpu.setdefault(name, []).append(cpu_us)
        return rate

    def _name(self) -> str:
        return f"consumer{next(_runs)}"

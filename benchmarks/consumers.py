"""(r) Events a second of a worker beside consumers without rules: one written by hand, and Neo4j's connector."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import count as numbers
from itertools import islice
from pathlib import Path
from typing import Final

from tests.services.rules import load_rules

from benchmarks import connector
from benchmarks.backlog import BACKLOG, LEASE_S, WARM_UP, Cost, applied_up_to, cost_of_backlog, note, settled
from benchmarks.hand_written import ONE, with_values
from benchmarks.harness import Bench, Contender, Result, Skip, ratio, without
from benchmarks.processes import ENGINE, count, process
from benchmarks.services import Graph, GraphProbe, Services, drop_plain, publish, publish_plain
from benchmarks.workload import CALLS
from graphweft.transport import Outgoing
from graphweft_workers.settings.settings import Settings

ROW: Final = "r"
CONNECTOR_WARM_UP: Final = 150_000
"""Events before the clock starts, for all contenders beside the connector: its JVM is not quick before."""
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
        connectors, warm_up = list[str](), WARM_UP[graph]
        skipped: Skip | None = None
        if graph == "neo4j":
            try:
                connector.jar()
                connectors, warm_up = list(connector.SETTINGS), CONNECTOR_WARM_UP
            except Skip as reason:
                skipped = reason
        case = _Case(settings, graph, services, warm_up)
        contenders: dict[str, Contender] = {"engine": case.engine, "by hand": case.by_hand}
        contenders |= {name: partial(case.connector, name) for name in connectors}
        values = await bench.interleave(f"kafka x {graph}, consumers", contenders)
    spent = note(case.costs)
    results = [
        ratio(ROW, f"engine / {name}, kafka x {graph}", values, of="engine", to=name, unit="events/s", note=spent)
        for name in list(contenders)[1:]
    ]
    return results if skipped is None else [*results, without(ROW, "engine / connector, kafka x neo4j", skipped)]


class _Case:
    def __init__(self, settings: Settings, graph: Graph, services: Services, warm_up: int) -> None:
        self._settings = settings.model_copy(update={"lease_s": LEASE_S})
        self._graph: Graph = graph
        self._services = services
        self._warm_up = warm_up
        self.costs: dict[str, list[Cost]] = {}
        """By contender, what its backlogs cost, without the servers."""

    async def engine(self, _round: int) -> float:
        probe = await self._cleared()
        async with process(ENGINE, self._settings) as running:
            await settled(self._settings, [running])  # it applies what the last worker left
            return await self._rate("engine", probe, running, self._name(), partial(publish, self._settings))

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
        await publish_plain(self._settings, run, ())  # makes the topic
        try:
            async with start(run) as running:
                return await self._rate(name, probe, running, run, partial(publish_plain, self._settings, run))
        finally:
            await drop_plain(self._settings, run)

    async def _cleared(self) -> GraphProbe:
        await self._services.clear("kafka", self._graph)
        return await self._services.probe(self._graph)

    async def _rate(
        self,
        name: str,
        probe: GraphProbe,
        running: _Process,
        run: str,
        put: Callable[[Iterable[Outgoing]], Awaitable[None]],
    ) -> float:
        before = await count(probe, CALLS.applied)
        events = CALLS.outgoing(self._warm_up + BACKLOG, run)
        await put(islice(events, self._warm_up))
        await applied_up_to([running], probe, CALLS.applied, before + self._warm_up)
        cost = await cost_of_backlog([running], probe, CALLS.applied, lambda: put(events), BACKLOG)
        self.costs.setdefault(name, []).append(cost)
        return cost.per_s

    def _name(self) -> str:
        return f"consumer{next(_runs)}"

"""(a), (b) and (f) Events a second of a backlog, all contenders of a bus and a graph in turn.

(a) compares the engine with a plain FastStream subscriber, (b) with hand-written UNWIND queries that need no bus
(``ceiling``), (f) two worker processes with one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count as numbers
from itertools import islice
from typing import Final

from tests.services.rules import load_rules

from benchmarks.backlog import BACKLOG, LEASE_S, WARM_UP, Cost, applied_up_to, cost_of_backlog, note, settled
from benchmarks.harness import Bench, Contender, Died, Result, ratio
from benchmarks.processes import ENGINE, NAIVE, UNWIND, count, events_per_second, process
from benchmarks.services import Bus, Graph, GraphProbe, Services, publish, publish_plain
from benchmarks.workload import CALLS, ROOT, Workload
from graphweft_workers.settings.settings import Settings

_SHARING_LEASE_S: Final = 30.0
"""Long enough to keep the partitions while the backlog is published, and short enough to share them in seconds."""
_runs = numbers(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured with what, whoever does the work."""

    bench: Bench
    services: Services
    settings: Settings
    bus: Bus
    graph: Graph
    workload: Workload
    costs: dict[str, list[Cost]] = field(default_factory=dict[str, list["Cost"]])
    """By contender, what its backlogs cost."""

    async def cleared(self) -> GraphProbe:
        """Empty graph and bus; return what looks at the graph."""
        await self.services.clear(self.bus, self.graph)
        return await self.services.probe(self.graph)

    async def prepared(self) -> GraphProbe:
        """Empty graph and bus, and make the indexes that the engine makes by itself."""
        probe = await self.cleared()
        await probe.index(load_rules(self.workload.rules).keys)
        return probe


async def run(bus: Bus, graph: Graph, workload: Workload, bench: Bench, services: Services) -> list[Result]:
    """Measure what the rows that are asked for need, the engine once for all of them."""
    where = f"{bus} x {graph}"
    settings = await services.settings(bus, graph, workload.rules)
    case = Case(bench=bench, services=services, settings=settings, bus=bus, graph=graph, workload=workload)
    naive = partial(_naive_rate, case)
    held: list[str] = []
    subscribers: dict[str, Contender] = {"naive, batch=True": partial(naive, ("--batch",), 3_000)}
    if workload is CALLS:  # the recorded runs say the same thing, so there the stronger one is enough
        subscribers["naive"] = partial(naive, (), 1_500)
    against: Mapping[str, Mapping[str, Contender]] = {
        "a": subscribers,
        "b": {"UNWIND": partial(_unwind_rate, case)},
        "f": {"two": partial(_two_rate, case, held)},
    }
    contenders: dict[str, Contender] = {"engine": partial(engine_rate, case)}
    for row in bench.rows:
        contenders |= against[row]
    values = await bench.interleave(f"{where}, {workload.name}", contenders)
    compare = partial(ratio, values=values, unit="events/s")
    spent = note(case.costs)
    results: list[Result] = []
    if "a" in bench.rows:
        results += [
            compare("a", f"engine / {name}, {where}, {workload.name}", of="engine", to=name, note=spent)
            for name in against["a"]
        ]
    if "b" in bench.rows:
        title = f"engine / hand-written UNWIND, {where}"
        results.append(compare("b", title, of="engine", to="UNWIND", note=f"3 mutations an event; {spent}"))
    if "f" in bench.rows:
        shares = f"partitions each held, by round: {', '.join(held)}"
        results.append(compare("f", f"two workers / one, {where}", of="two", to="engine", note=f"{shares}; {spent}"))
    return results


async def engine_rate(case: Case, _round: int = 0) -> float:
    """Return the events a second of one worker process."""
    probe = await case.cleared()
    settings = case.settings.model_copy(update={"lease_s": LEASE_S})
    async with process(ENGINE, settings, kill=_may_kill(case.bus)) as engine:
        await settled(settings, [engine])
        return await _rate(case, "engine", settings, probe, [engine])


async def _two_rate(case: Case, held: list[str], _round: int) -> float:
    """Return the events a second of two worker processes; ``held`` gets how many partitions each of them has.

    They share the partitions before there is a backlog, under leases that are short enough for it.
    """
    probe = await case.cleared()
    settings = case.settings.model_copy(update={"lease_s": _SHARING_LEASE_S})
    async with AsyncExitStack() as ends:
        both = [await ends.enter_async_context(process(ENGINE, settings, kill=_may_kill(case.bus))) for _ in range(2)]
        held.append(await settled(settings, both))
        return await _rate(case, "two", settings, probe, both)


async def _rate(
    case: Case, name: str, settings: Settings, probe: GraphProbe, workers: list[asyncio.subprocess.Process]
) -> float:
    """Return the events a second of workers that hold all partitions, and keep what it cost them."""
    events = case.workload.outgoing(WARM_UP[case.graph] + BACKLOG, _run_name())
    before = await count(probe, case.workload.applied)
    await publish(settings, islice(events, WARM_UP[case.graph]))
    await applied_up_to(workers, probe, case.workload.applied, before + WARM_UP[case.graph])
    cost = await cost_of_backlog(workers, probe, case.workload.applied, lambda: publish(settings, events), BACKLOG)
    case.costs.setdefault(name, []).append(cost)
    return cost.per_s


def _may_kill(bus: Bus) -> bool:
    """On Kafka a member that is killed would keep its partitions from the next one for the session timeout."""
    return bus == "redis"


async def _naive_rate(case: Case, options: tuple[str, ...], per_second: int, _round: int) -> float:
    bench, settings, workload = case.bench, case.settings, case.workload
    probe = await case.prepared()
    size, run_name = int(per_second * bench.seconds), _run_name()
    await publish_plain(settings, f"naive-{run_name}", workload.outgoing(size, run_name))
    async with process((*NAIVE, f"naive-{run_name}", *options), settings, kill=True) as naive:
        return await events_per_second(naive, probe, workload.applied, size, limit_s=bench.seconds)


async def _unwind_rate(case: Case, _round: int) -> float:
    await case.cleared()
    cost = await cost_of_unwind(case.services, case.settings, case.graph, BACKLOG, warm_up=WARM_UP[case.graph])
    case.costs.setdefault("UNWIND", []).append(cost)
    return cost.per_s


async def cost_of_unwind(services: Services, settings: Settings, graph: Graph, size: int, *, warm_up: int = 0) -> Cost:
    """Return what hand-written queries for the first events of ``CALLS`` cost, after those for ``warm_up`` others.

    The graph is empty before.
    """
    probe = await services.probe(graph)
    await probe.index(load_rules(CALLS.rules).keys)
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, *UNWIND, str(size), str(warm_up)),
        cwd=ROOT,
        env=settings.as_environment(),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await done.communicate()
    if done.returncode != 0:
        raise Died(f"the hand-written queries ended with {done.returncode}")
    found = json.loads(output)
    if (there := await count(probe, CALLS.applied)) != warm_up + size:
        raise Died(f"the hand-written queries made {there} events of {warm_up + size}")
    return Cost(
        per_s=size / found["seconds"], cpu_us=found["cpu_s"] / size * 1e6, waited_us=found["waited_s"] / size * 1e6
    )


def _run_name() -> str:
    """Return a name that no earlier measurement had."""
    return f"run{next(_runs)}"

"""(a) The engine against a plain FastStream subscriber, on each bus and graph, both with the backlog on the bus."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Final

from benchmarks.harness import Bench, Died, Result, Skip, ratio, without
from benchmarks.processes import ENGINE, NAIVE, NAIVE_BATCH, events_per_second, process
from benchmarks.services import Bus, Graph, Services, publish, publish_plain
from benchmarks.workload import AIRLINE, CALLS, Workload
from graphweft_rules import Ruleset
from graphweft_workers.settings import Settings

ROW: Final = "a"
PAIRS: Final[Sequence[tuple[Bus, Graph]]] = (
    ("redis", "falkordb"),
    ("redis", "neo4j"),
    ("kafka", "falkordb"),
    ("kafka", "neo4j"),
)
_runs = count(1)


def run_name() -> str:
    """Return a name that no earlier measurement had."""
    return f"run{next(_runs)}"


async def run(bench: Bench, services: Services) -> list[Result]:
    results: list[Result] = []
    for bus, graph in PAIRS:
        # The recorded runs on one pair: they say the same thing, at five times the price.
        for workload in (CALLS, AIRLINE) if (bus, graph) == PAIRS[0] else (CALLS,):
            where = f"{bus} x {graph}, {workload.name}"
            title = f"engine / naive, {where}"
            try:
                values = await _measure(bench, services, bus, graph, workload, title)
            except (Skip, Died) as reason:
                results.append(without(ROW, title, reason))
                continue
            results += [
                ratio(ROW, f"engine / {naive}, {where}", values, "engine", naive, unit="events/s")
                for naive in ("naive", "naive, batch=True")
            ]
    return results


async def _measure(
    bench: Bench, services: Services, bus: Bus, graph: Graph, workload: Workload, title: str
) -> dict[str, list[float]]:
    settings = await services.settings(bus, graph, workload.rules)
    naive = partial(naive_rate, bench, services, settings, bus, graph, workload)
    return await bench.interleave(
        title,
        {
            "engine": partial(engine_rate, bench, services, settings, bus, graph, workload),
            "naive": partial(naive, NAIVE, 1_500),
            "naive, batch=True": partial(naive, NAIVE_BATCH, 3_000),
        },
    )


async def engine_rate(
    bench: Bench, services: Services, settings: Settings, bus: Bus, graph: Graph, workload: Workload, _round: int = 0
) -> float:
    """Return the events a second of one worker process that starts on a backlog."""
    await services.clear(bus, graph)
    size = int(20_000 * bench.seconds)
    await publish(settings, workload.outgoing(size, run_name()))
    probe = await services.probe(graph)
    async with process(ENGINE, settings) as engine:
        return await events_per_second(engine, probe, workload.applied, size, limit_s=bench.seconds)


async def naive_rate(
    bench: Bench,
    services: Services,
    settings: Settings,
    bus: Bus,
    graph: Graph,
    workload: Workload,
    arguments: tuple[str, ...],
    per_second: int,
    _round: int,
) -> float:
    await services.clear(bus, graph)
    probe = await services.probe(graph)
    await probe.index(Ruleset.load(workload.rules).keys)  # the engine makes them by itself
    size = int(per_second * bench.seconds)
    await publish_plain(settings, workload.outgoing(size, run_name()))
    async with process(arguments, settings) as naive:
        return await events_per_second(naive, probe, workload.applied, size, limit_s=bench.seconds)

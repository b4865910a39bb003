"""(f) Two worker processes against one, on one graph."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from benchmarks.harness import Bench, Died, Result, Skip, ratio, without
from benchmarks.processes import ENGINE, events_per_second, process
from benchmarks.services import Bus, Graph, Services, publish
from benchmarks.throughput import PAIRS, run_name
from benchmarks.workload import CALLS
from graphweft_workers.services import make_bus

ROW: Final = "f"


async def run(bench: Bench, services: Services) -> list[Result]:
    results: list[Result] = []
    for bus, graph in (PAIRS[0], PAIRS[-1]):
        title = f"two workers / one, {bus} x {graph}"
        shares: list[str] = []
        try:
            values = await bench.interleave(
                title,
                {
                    "two": partial(_rate, bench, services, bus, graph, 2, shares),
                    "one": partial(_rate, bench, services, bus, graph, 1, []),
                },
            )
        except (Skip, Died) as reason:
            results.append(without(ROW, title, reason))
            continue
        note = f"partitions each held, by round: {', '.join(shares)}"
        results.append(ratio(ROW, title, values, "two", "one", unit="events/s", note=note))
    return results


async def _rate(
    bench: Bench, services: Services, bus: Bus, graph: Graph, workers: int, shares: list[str], _round: int
) -> float:
    await services.clear(bus, graph)
    settings = await services.settings(bus, graph, CALLS.rules)
    size = int(20_000 * bench.seconds)
    await publish(settings, CALLS.outgoing(size, run_name()))
    probe = await services.probe(graph)
    async with AsyncExitStack() as stack:
        first, *_ = [await stack.enter_async_context(process(ENGINE, settings)) for _ in range(workers)]
        rate = await events_per_second(first, probe, CALLS.applied, size, limit_s=bench.seconds)
        log = make_bus(settings)
        try:
            owners = [part.owner for part in await log.status()]
        finally:
            await log.aclose()
    shares.append("+".join(str(owners.count(name)) for name in sorted({name for name in owners if name})))
    return rate

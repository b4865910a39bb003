"""(m) and (n) Commands that replay the log: ``graphweft rebuild`` and hand-written UNWIND queries, and its memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.harness import Bench, Contender, Died, Result, Spread, ratio
from benchmarks.services import Graph, Services, publish
from benchmarks.throughput import cost_of_unwind
from benchmarks.workload import APP, CALLS, ROOT
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus, make_graph
from graphweft_workers.wiring.rules import load_rules, push
from graphweft_workers.wiring.second_graph import second_place

PER_S: Final = 20_000
LEAST: Final = 24_000
SMALL: Final = 10_000
COMMAND: Final = ("-m", "benchmarks.command")
_CHUNK: Final = 50_000
_LONGEST_S: Final = 120.0
_SUFFIX: Final = ".rebuilt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command printed and took."""

    found: Any
    """Its last line, which is JSON."""
    cpu_s: float
    highest_mb: float


async def against_unwind(graph: Graph, bench: Bench, services: Services) -> list[Result]:
    """Return the line of a rebuild into a graph server beside hand-written queries for the same rows."""
    where = f"redis x {graph}"
    size = max(LEAST, int(PER_S * bench.seconds))
    await services.clear("redis", graph)
    settings = await services.settings("redis", "falkordb", CALLS.rules)
    into = None if graph == "falkordb" else await services.url(graph)
    by_hand = await services.settings("redis", graph, CALLS.rules)
    await fill(settings, size)
    cpu_us: list[float] = []

    async def rebuild(_round: int) -> float:
        done = await rebuilt(settings, size, into=into)
        cpu_us.append(done.cpu_s / size * 1e6)
        return size / float(done.found["seconds"])

    async def queries(_round: int) -> float:
        await (await services.probe(graph)).clear()
        return (await cost_of_unwind(services, by_hand, graph, size)).per_s

    contenders: dict[str, Contender] = {"rebuild": rebuild, "UNWIND": queries}
    values = await bench.interleave(f"{where}, {size:,} events", contenders)
    note = f"3 mutations an event; the process of the rebuild took {statistics.median(cpu_us):.0f} µs of CPU for each"
    title = f"rebuild / hand-written UNWIND, {where}"
    return [ratio("m", title, values, of="rebuild", to="UNWIND", unit="events/s", note=note)]


async def memory(bench: Bench, services: Services) -> list[Result]:
    """Return the lines of the memory and the rate of a rebuild by the number of events."""
    sizes = [SMALL] if bench.quick else [SMALL, 100_000]
    if bench.full:
        sizes.append(1_000_000)
    highest: dict[int, list[float]] = {size: [] for size in sizes}
    rate: dict[int, list[float]] = {size: [] for size in sizes}
    settings = await services.settings("redis", "falkordb", CALLS.rules)
    for number in bench.turns("rebuild", 1 if bench.quick else 2):
        for size in sizes:
            if number and size == sizes[-1] and bench.full:
                continue
            await services.clear("redis", "falkordb")
            await fill(settings, size)
            done = await rebuilt(settings, size)
            highest[size].append(done.highest_mb)
            rate[size].append(size / float(done.found["seconds"]))
            bench.say(f"  [dim]{size:,} events[/] {done.highest_mb:.0f} MB, {rate[size][-1]:,.0f} events/s")
    results: list[Result] = []
    for size in sizes[1:] or sizes:
        for what, unit, values in (("highest memory", "MB", highest), ("rate", "events/s", rate)):
            results.append(
                Result(
                    row="n",
                    title=f"rebuild, {what}, {size:,} / {SMALL:,} events",
                    ratio=Spread.of([a / b for a, b in zip(values[size], values[SMALL], strict=False)]),
                    of=(f"{size:,}", Spread.of(values[size])),
                    to=(f"{SMALL:,}", Spread.of(values[SMALL])),
                    unit=unit,
                )
            )
    return results


async def fill(settings: Settings, size: int) -> None:
    """Put the rules, and then events of the app, on an empty bus."""
    async with contextlib.aclosing(make_bus(settings)) as bus:
        await push(bus, load_rules(settings))
    for number in range(0, size, _CHUNK):  # the ids differ by chunk, so only a chunk is in memory here
        await publish(settings, CALLS.outgoing(min(_CHUNK, size - number), f"replay{number}"))


async def rebuilt(settings: Settings, size: int, *, into: str | None = None) -> Ran:
    """Rebuild the app's graph beside the live one or on ``into``, and delete the new one."""
    target = ("--into", into) if into else ()
    try:
        done = await ran(settings, "rebuild", "--app", APP, "--json", *target)
        events = sum(each["events"] for each in done.found["partitions"])
        if events != size or done.found["dead_letters"]:
            raise Died(f"the rebuild applied {events:,} events of {size:,}")
        return done
    finally:
        async with contextlib.aclosing(
            make_graph(second_place(settings, APP, into=into, suffix=_SUFFIX), live=settings)
        ) as graph:
            await graph.whole.drop(APP)


async def ran(settings: Settings, *arguments: str) -> Ran:
    """Run a command that prints JSON as a process of its own. Raises ``Died`` unless it exits with 0."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *COMMAND, *arguments),
        cwd=ROOT,
        env=settings.as_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    if process.returncode != 0:
        raise Died(f"graphweft {' '.join(arguments)} ended with {process.returncode}: {errors.decode()[-2000:]}")
    found, took = map(json.loads, output.splitlines()[-2:])
    return Ran(found=found, **took)

"""(d) A worker's memory and rate at 10,000, 100,000 and (``--full``) 1,000,000 events."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Final

from benchmarks.backlog import LEASE_S, settled
from benchmarks.command import highest_resident_mb
from benchmarks.harness import Bench, Died, Result, Spread
from benchmarks.processes import ENGINE, count, process
from benchmarks.services import Services, publish
from benchmarks.workload import CALLS

ROW: Final = "d"
SMALL: Final = 10_000
_LONGEST_S: Final = 900.0
_SHORTEST_S: Final = 20.0
_CHUNK: Final = 50_000


async def run(bench: Bench, services: Services) -> list[Result]:
    rounds = 1 if bench.quick else 2
    sizes = [SMALL] if bench.quick else [SMALL, 100_000]
    if bench.full:
        sizes.append(1_000_000)
    memory: dict[int, list[float]] = {size: [] for size in sizes}
    rate: dict[int, list[float]] = {size: [] for size in sizes}
    reached: dict[int, int] = {}
    for round_number in bench.turns("events", rounds):
        for size in sizes if round_number % 2 == 0 else reversed(sizes):
            if size == 1_000_000 and round_number > 0:
                continue
            resident, per_second, reached[size] = await _measure(bench, services, size)
            memory[size].append(resident)
            rate[size].append(per_second)
            found = f"{resident:.0f} MB, {per_second:,.0f} events/s"
            bench.say(f"  [dim]{size:,} events {round_number + 1}/{rounds}[/] {found}")
    results: list[Result] = []
    for size in sizes[1:] or sizes:
        late = reached[size] < size
        note = f"stopped at {reached[size]:,} events by the time limit" if late else ""
        for what, unit, values in (("highest memory", "MB", memory), ("rate", "events/s", rate)):
            several = [a / b for a, b in zip(values[size], values[SMALL], strict=False)]
            results.append(
                Result(
                    row=ROW,
                    title=f"{what}, {size:,} / {SMALL:,} events",
                    ratio=Spread.of(several),
                    of=(f"{size:,}", Spread.of(values[size])),
                    to=(f"{SMALL:,}", Spread.of(values[SMALL])),
                    unit=unit,
                    note=note,
                )
            )
    return results


async def _measure(bench: Bench, services: Services, size: int) -> tuple[float, float, int]:
    """Return the worker's highest resident memory, its rate, and the number of events that took effect."""
    await services.clear("redis", "falkordb")
    settings = await services.settings("redis", "falkordb", CALLS.rules)
    settings = settings.model_copy(update={"lease_s": LEASE_S})
    probe = await services.probe("falkordb")
    async with process(ENGINE, settings, kill=True) as engine:
        await settled(settings, [engine])
        engine.send_signal(signal.SIGSTOP)
        for number in range(0, size, _CHUNK):  # the ids differ by chunk, so only a chunk is in memory here
            await publish(settings, CALLS.outgoing(min(_CHUNK, size - number), f"size{number}"))
        begun = time.monotonic()
        engine.send_signal(signal.SIGCONT)
        until = begun + min(_LONGEST_S, max(_SHORTEST_S, bench.until - begun))
        seen = 0
        while seen < size and time.monotonic() < until:
            await asyncio.sleep(0.1)
            if engine.returncode is not None:
                raise Died(f"ended with {engine.returncode}")
            seen = await count(probe, CALLS.applied)
        seconds = time.monotonic() - begun
        highest = highest_resident_mb(engine.pid)
    return highest, seen / seconds, seen

"""``python -m benchmarks``: measure, show the table, write the file."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Annotated

import typer

from benchmarks import ceiling, context, latency, rules, size, throughput, workers
from benchmarks.harness import RESULTS, Bench, Died, Result, Skip, show, without, write
from benchmarks.services import Fsync, Services

ROWS = {module.ROW: module for module in (throughput, ceiling, rules, size, latency, workers, context)}


def main(
    only: Annotated[str, typer.Option(help=f"Rows to measure, of {','.join(ROWS)}.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="3 short rounds: to see that it runs.")] = False,
    full: Annotated[bool, typer.Option("--full", help="With a million events; takes long.")] = False,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    seconds: Annotated[float, typer.Option(min=0.2, help="Longest time of one measurement.")] = 1.0,
    minutes: Annotated[float, typer.Option(help="Time for all rows; rounds and then rows are left out after it.")] = 9,
    fsync: Annotated[Fsync, typer.Option(help="How Redis and FalkorDB write to disk.")] = "everysec",
) -> None:
    """Measure the engine beside what it is compared with, in turn, on real servers that are started for it."""
    chosen = only.split(",") if only else list(ROWS)
    if unknown := set(chosen) - set(ROWS):
        raise typer.BadParameter(f"no row {', '.join(sorted(unknown))}; rows: {', '.join(ROWS)}")
    bench = Bench(rounds=3 if quick else rounds, seconds=0.5 if quick else seconds, quick=quick, full=full)
    bench.until = math.inf if full else time.monotonic() + 60 * minutes
    results = asyncio.run(_measure(bench, chosen, fsync))
    show(results)
    write(results, about={"rounds": bench.rounds, "fsync": fsync})
    bench.say(f"written to {RESULTS}")
    if any(result.failed for result in results):
        raise typer.Exit(1)


async def _measure(bench: Bench, chosen: list[str], fsync: Fsync) -> list[Result]:
    results: list[Result] = []
    async with Services(fsync=fsync) as services:
        for row in chosen:
            module = ROWS[row]
            bench.say(f"[bold]({row})[/] {(module.__doc__ or '').splitlines()[0].partition(' ')[2]}")
            try:
                results += await module.run(bench, services)
            except (Skip, Died) as reason:
                results.append(without(row, module.__name__, reason))
    return results


if __name__ == "__main__":
    typer.run(main)

"""``python -m benchmarks``: measure, show the table, write the file."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Final

import typer

from benchmarks import (
    adapters,
    attack,
    capacity,
    consumers,
    context,
    dear,
    graphrag,
    hostile,
    latency,
    many_apps,
    neighbours,
    poison,
    replaying,
    rules,
    search,
    size,
    stages,
    start,
    telemetry,
    throughput,
)
from benchmarks.harness import RESULTS, Bench, Result, Skip, show, without, write
from benchmarks.services import Fsync, Services
from benchmarks.workload import AIRLINE, CALLS


@dataclass(frozen=True, slots=True)
class Part:
    """What is measured in turn, and the rows that get lines from it."""

    rows: str
    title: str
    share: float
    """Its part of the time, as a weight: about the seconds that five rounds take on two processors."""
    measure: Callable[[Bench, Services], Awaitable[list[Result]]]


PARTS: Final = (
    # What needs no JVM comes first: one that is idle takes a little of the machine too. The share of the first part
    # that needs a server holds its start.
    Part("abf", "redis x falkordb, calls", 280, partial(throughput.run, "redis", "falkordb", CALLS)),
    Part("a", "redis x falkordb, airline", 250, partial(throughput.run, "redis", "falkordb", AIRLINE)),
    Part("c", "decode and match with many rules", 12, rules.alone),
    Part("c", "end to end with many rules", 250, rules.whole),
    Part("q", "CPU for each event by stage", 12, stages.run),
    Part("t", "hostile conditions and texts", 12, hostile.run),
    Part("l", "start with many workflows", 30, start.run),
    Part("s", "CPU for each event with 1,000 apps", 150, many_apps.run),
    Part("w", "a worker at 60 % of its plan", 120, capacity.run),
    Part("v", "cost of metrics and traces", 150, telemetry.run),
    Part("d", "memory and rate by the number of events", 45, size.run),
    Part("m", "rebuild, redis x falkordb", 40, partial(replaying.against_unwind, "falkordb")),
    Part("n", "memory of a rebuild by the number of events", 40, replaying.memory),
    Part("e", "emit to visible", 25, latency.run),
    Part("k", "emit to visible beside a slow app", 75, neighbours.run),
    Part("o", "beside an app at 100 %, redis", 120, attack.on_redis),
    Part("u", "beside dear work, redis", 240, dear.on_redis),
    Part("p", "with failing rows, redis x falkordb", 300, partial(poison.run, "falkordb")),
    Part("g", "context over redis", 35, partial(context.against_plain, "redis")),
    Part("g", "context under load", 43, context.under_load),
    Part("h", "search in 110,000 memories, or a million", 75, search.run),
    Part("i", "facts out of a million relationships, falkordb", 60, partial(graphrag.run, graph="falkordb")),
    Part("j", "what an adapter adds to a turn", 90, adapters.run),
    Part("g", "context over kafka", 55, partial(context.against_plain, "kafka")),
    Part("o", "beside an app at 100 %, kafka", 140, attack.on_kafka),
    Part("u", "beside dear work, kafka", 300, dear.on_kafka),
    Part("a", "kafka x falkordb, calls", 300, partial(throughput.run, "kafka", "falkordb", CALLS)),
    Part("ab", "redis x neo4j, calls", 400, partial(throughput.run, "redis", "neo4j", CALLS)),
    Part("af", "kafka x neo4j, calls", 600, partial(throughput.run, "kafka", "neo4j", CALLS)),
    Part("r", "consumers without rules, kafka x falkordb", 400, partial(consumers.run, "falkordb")),
    Part("r", "consumers without rules, kafka x neo4j", 600, partial(consumers.run, "neo4j")),
    Part("p", "with failing rows, redis x neo4j", 700, partial(poison.run, "neo4j")),
    Part("m", "rebuild, redis x neo4j", 60, partial(replaying.against_unwind, "neo4j")),
    Part("i", "facts out of a million relationships, neo4j", 120, partial(graphrag.run, graph="neo4j")),
)
ROWS: Final = sorted({row for part in PARTS for row in part.rows})


def main(
    only: Annotated[str, typer.Option(help=f"Rows to measure, of {','.join(ROWS)}.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="3 rounds, most of them short: to see that it runs.")] = False,
    full: Annotated[bool, typer.Option("--full", help="With a million events, or memories; takes long.")] = False,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    seconds: Annotated[float, typer.Option(min=0.2, help="Longest time of one measurement.")] = 0.7,
    minutes: Annotated[
        float, typer.Option(help="Time for all rows; each leaves out rounds to keep to its share.")
    ] = 40,
    fsync: Annotated[Fsync, typer.Option(help="How Redis and FalkorDB write to disk.")] = "everysec",
) -> None:
    """Measure the engine beside what it is compared with, in turn, on real servers that are started for it."""
    chosen = only.split(",") if only else ROWS
    if unknown := set(chosen) - set(ROWS):
        raise typer.BadParameter(f"no row {', '.join(sorted(unknown))}; rows: {', '.join(ROWS)}")
    bench = Bench(
        rows="".join(chosen),
        rounds=3 if quick else rounds,
        seconds=0.5 if quick else seconds,
        quick=quick,
        full=full,
        until=math.inf if full else time.monotonic() + 60 * minutes,
    )
    # A topic that is new has no leader for a moment: its producer says so, and tries again.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    results = asyncio.run(_measure(bench, fsync))
    show(results)
    write(results, about={"rounds": bench.rounds, "fsync": fsync})
    bench.say(f"written to {RESULTS}")
    if any(result.failed for result in results):
        raise typer.Exit(1)


async def _measure(bench: Bench, fsync: Fsync) -> Sequence[Result]:
    """Measure the parts with what ``bench`` asks for, each in its share of the time; return the lines by row."""
    results: list[Result] = []
    parts = [part for part in PARTS if set(part.rows) & set(bench.rows)]
    async with Services(fsync=fsync) as services:
        for number, part in enumerate(parts):
            rows = "".join(row for row in part.rows if row in bench.rows)
            now = time.monotonic()
            # Of what is left, so what a part leaves, or takes too much, is shared by all that come after it.
            until = now + (bench.until - now) * part.share / sum(later.share for later in parts[number:])
            bench.say(f"[bold]({', '.join(rows)})[/] {part.title}")
            try:
                results += await part.measure(replace(bench, rows=rows, until=until), services)
            except Exception as reason:  # noqa: BLE001 - what the other rows have found must not be lost
                if not isinstance(reason, Skip):
                    bench.console.print_exception(max_frames=3)
                results += [without(row, part.title, reason) for row in rows]
            bench.say(f"  [dim]{time.monotonic() - now:.0f} s[/]")
    return sorted(results, key=lambda result: result.row)


if __name__ == "__main__":
    typer.run(main)

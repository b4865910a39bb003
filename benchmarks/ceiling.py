"""(b) The engine, from the bus to the graph, against the graph alone: the same rows by hand-written UNWIND queries.

``python -m benchmarks.ceiling EVENTS SECONDS`` is that contender: one process, nothing but the graph's driver, no bus,
no position kept; the rows are made before the clock starts.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial
from itertools import batched
from typing import Final

from benchmarks.harness import Bench, Died, Result, Skip, ratio, without
from benchmarks.naive import connected
from benchmarks.processes import count
from benchmarks.services import Graph, Services
from benchmarks.throughput import engine_rate
from benchmarks.workload import CALLS
from graphweft_workers.settings import Settings

ROW: Final = "b"
_BATCH: Final = 1_000
"""Rows a query; neither server gains by more."""
# Written for these rules: in each of them rows may share a query on both servers.
_KEEP: Final = "UNWIND $rows AS row MERGE (c:Call {id: row.id}) SET c.tool = row.tool_name, c.success = row.success"
_LINK: Final = "UNWIND $rows AS row MATCH (c:Call {id: row.id}) MERGE (j:Journey {id: row.chat}) MERGE (j)-[:MADE]->(c)"
_COUNT: Final = (
    "UNWIND $rows AS row WITH row.chat AS chat, count(*) AS calls MATCH (j:Journey {id: chat}) "
    "SET j.calls = coalesce(j.calls, 0) + calls"
)


async def run(bench: Bench, services: Services) -> list[Result]:
    results: list[Result] = []
    graphs: tuple[Graph, ...] = ("falkordb", "neo4j")
    for graph in graphs:
        title = f"engine / hand-written UNWIND, redis x {graph}"
        try:
            settings = await services.settings("redis", graph, CALLS.rules)
            values = await bench.interleave(
                title,
                {
                    "engine": partial(engine_rate, bench, services, settings, "redis", graph, CALLS),
                    "UNWIND": partial(_ceiling_rate, bench, services, settings, graph),
                },
            )
        except (Skip, Died) as reason:
            results.append(without(ROW, title, reason))
            continue
        results.append(ratio(ROW, title, values, "engine", "UNWIND", unit="events/s", note="3 mutations an event"))
    return results


async def _ceiling_rate(bench: Bench, services: Services, settings: Settings, graph: Graph, _round: int) -> float:
    await services.clear("redis", graph)
    probe = await services.probe(graph)
    await probe.index({("Call", "id"), ("Journey", "id")})
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.ceiling", str(int(40_000 * bench.seconds)), str(bench.seconds)),
        env=settings.as_environment(),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await done.communicate()
    if done.returncode != 0:
        raise Died(f"the hand-written queries ended with {done.returncode}")
    found = json.loads(output)
    if (there := await count(probe, CALLS.applied)) != found["events"]:
        raise Died(f"the hand-written queries made {there} events of {found['events']}")
    return float(found["events"] / found["seconds"])


async def _main(size: int, limit_s: float) -> None:
    settings = Settings.load()
    rows = [{**event.data, "id": event.data["call_id"], "chat": event.chatid} for event in CALLS.events(size)]
    rows = [{name: row[name] for name in ("id", "tool_name", "success", "chat")} for row in rows]
    done = 0
    async with connected(settings.graph) as query:
        await query("RETURN 1", {})
        begun = time.monotonic()
        for batch in batched(rows, _BATCH):
            for statement in (_KEEP, _LINK, _COUNT):
                await query(statement, {"rows": list(batch)})
            done += len(batch)
            if time.monotonic() - begun > limit_s:
                break
        seconds = time.monotonic() - begun
    print(json.dumps({"events": done, "seconds": seconds}))


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2])))

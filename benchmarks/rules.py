"""(c) What an event costs with 10, 100 and 1,000 rules: decoding and matching alone, and end to end.

Half of the rules are about other event types. The other half are about the events that come and do not apply: every
second of them asks for equality, which may be looked up, and the others compare, so each has to be evaluated.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.harness import Bench, Result, ratio
from benchmarks.services import Services
from benchmarks.throughput import engine_rate
from benchmarks.workload import CALLS, Workload
from graphweft_contracts import wire
from graphweft_rules import Ruleset

ROW: Final = "c"
SIZES: Final = (10, 100, 1_000)
_EVENTS: Final = 2_000
_EQUAL: Final = "$event.tool_name == 'no-tool-{number}' && $context.phase == 'working'"
_COMPARE: Final = "$event.arguments.limit > 1000 + {number}"
_RULE: Final = """
  - name: "other_{number}"
    events: ["{type}"]
    condition: "{condition}"
    mutations:
      - id: "keep"
        cypher: "MERGE (n:Other {{id: $id}}) SET n.number = {number}"
        params:
          id: "$event.call_id"
"""


async def run(bench: Bench, services: Services) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
        workloads = {size: _workload(Path(folder) / str(size), size) for size in SIZES}
        alone = await bench.interleave(
            "µs CPU an event", {f"{size} rules": partial(_alone, workload) for size, workload in workloads.items()}
        )
        whole = await bench.interleave(
            "end to end",
            {f"{size} rules": partial(_whole, bench, services, workload) for size, workload in workloads.items()},
        )
    few = f"{SIZES[0]} rules"
    results: list[Result] = []
    for size in SIZES[1:]:
        many = f"{size} rules"
        results += [
            ratio(ROW, f"decode and match, {size} / {SIZES[0]} rules", alone, many, few, unit="µs CPU an event"),
            ratio(ROW, f"end to end, {size} / {SIZES[0]} rules", whole, many, few, unit="µs an event"),
        ]
    return results


async def _alone(workload: Workload, _round: int) -> float:
    rules = Ruleset.load(workload.rules)
    entries = [event.fields for event in workload.outgoing(_EVENTS, "cpu")]
    begun = time.process_time()
    for fields in entries:
        rules.match_event(wire.decode(fields))
    return (time.process_time() - begun) / _EVENTS * 1e6


async def _whole(bench: Bench, services: Services, workload: Workload, _round: int) -> float:
    settings = await services.settings("redis", "falkordb", workload.rules)
    return 1e6 / await engine_rate(bench, services, settings, "redis", "falkordb", workload)


def _workload(folder: Path, size: int) -> Workload:
    shutil.copytree(CALLS.rules, folder)
    with (folder / "Calls/graph_injection.yaml").open("a") as file:
        for number in range(size - 1):
            comes = "tool.call_complete" if number % 2 else "order.paid"
            condition = _EQUAL if number % 4 == 1 else _COMPARE
            file.write(_RULE.format(number=number, type=comes, condition=condition.format(number=number)))
    return Workload(CALLS.name, folder, CALLS.applied)

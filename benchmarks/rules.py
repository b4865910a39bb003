"""(c) What an event costs with 10, 100 and 1,000 rules: decoding and matching alone, and end to end.

Half of the rules are about other event types. The other half are about the events that come and do not apply: every
second of them asks for equality, which may be looked up, and the others compare with a sum, so each is evaluated.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from tests.services.rules import load_rules

from benchmarks.harness import Bench, Result, ratio
from benchmarks.services import Services
from benchmarks.throughput import Case, engine_rate
from benchmarks.workload import CALLS, Workload
from graphweft_workers.ports import event_decoder

ROW: Final = "c"
SIZES: Final = (10, 100, 1_000)
_EVENTS: Final = 1_000
_RECEIVED: Final = datetime(2026, 1, 1, tzinfo=UTC)
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


async def alone(bench: Bench, _services: Services) -> list[Result]:
    return await _by_size(bench, "decode and match", _alone, unit="µs CPU an event")


async def whole(bench: Bench, services: Services) -> list[Result]:
    return await _by_size(bench, "end to end", partial(_whole, bench, services), unit="µs an event")


async def _by_size(
    bench: Bench, title: str, measure: Callable[[Workload, int], Awaitable[float]], *, unit: str
) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
        workloads = {f"{size} rules": _workload(Path(folder) / str(size), size) for size in SIZES}
        values = await bench.interleave(
            title, {name: partial(measure, workload) for name, workload in workloads.items()}
        )
    few, *more = workloads
    return [ratio(ROW, f"{title}, {many.split()[0]} / {few}", values, many, few, unit=unit) for many in more]


async def _alone(workload: Workload, _round: int) -> float:
    rules = load_rules(workload.rules)
    entries = [event.fields for event in workload.outgoing(_EVENTS, "cpu")]
    begun = time.process_time()
    for fields in entries:
        rules.match_event(event_decoder.decode(fields, _RECEIVED))
    return (time.process_time() - begun) / _EVENTS * 1e6


async def _whole(bench: Bench, services: Services, workload: Workload, _round: int) -> float:
    settings = await services.settings("redis", "falkordb", workload.rules)
    case = Case(bench=bench, services=services, settings=settings, bus="redis", graph="falkordb", workload=workload)
    return 1e6 / await engine_rate(case)


def _workload(folder: Path, size: int) -> Workload:
    shutil.copytree(CALLS.rules, folder)
    file = folder / "Calls/graph_injection.yaml"
    mutation, injection, rest = file.read_text().partition("\ninjection_rules:")
    for number in range(size - 1):
        comes = "tool.call_complete" if number % 2 else "order.paid"
        condition = _EQUAL if number % 4 == 1 else _COMPARE
        mutation += _RULE.format(number=number, type=comes, condition=condition.format(number=number))
    file.write_text(mutation + injection + rest)
    return Workload(CALLS.name, folder, CALLS.applied)

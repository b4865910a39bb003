"""(p) Events a second of a worker while the graph server refuses rows of some events, beside none."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import count as numbers
from itertools import islice
from pathlib import Path
from typing import Final

from benchmarks.backlog import BACKLOG, LEASE_S, WARM_UP, Cost, applied_up_to, cost_of_backlog, note, settled
from benchmarks.harness import Bench, Contender, Died, Result, ratio
from benchmarks.processes import ENGINE, process
from benchmarks.services import Graph, Services, publish
from benchmarks.workload import CALLS, CHATS
from graphweft.transport import Outgoing
from graphweft_contracts import wire
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus

ROW: Final = "p"
SHARES: Final = {"0.2 %": 500, "1 %": 100}
"""One event of so many has a row that fails."""
_CLEAN: Final = "clean"
_FILE: Final = "Calls/graph_injection.yaml"
_CHANGES: Final = {
    "SET c.tool = $tool,": "SET c.share = 100 / $parts, c.tool = $tool,",
    'tool: "$event.tool_name"': 'tool: "$event.tool_name"\n          parts: "$event.arguments.parts"',
}
"""The first of an event's three mutations divides by a number of the event."""
_runs = numbers(1)


async def run(graph: Graph, bench: Bench, services: Services) -> list[Result]:
    """Measure the shares in turn; the first row of an event divides by zero."""
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
        rules = Path(folder, "workflows")
        shutil.copytree(CALLS.rules, rules)
        text = (rules / _FILE).read_text("utf-8")
        (rules / _FILE).write_text(failing(text), "utf-8")
        settings = await services.settings("redis", graph, rules)
        settings = settings.model_copy(update={"lease_s": LEASE_S})
        costs: dict[str, list[Cost]] = {}

        async def measured(name: str, every: int, _round: int) -> float:
            await services.clear("redis", graph)
            cost = await _measure(services, settings, graph, every)
            costs.setdefault(name, []).append(cost)
            return cost.per_s

        contenders: dict[str, Contender] = {_CLEAN: partial(measured, _CLEAN, 0)}
        contenders |= {name: partial(measured, name, every) for name, every in SHARES.items()}
        values = await bench.interleave(f"redis x {graph}, failing rows", contenders)
    return [
        ratio(
            ROW, f"{name} of events with a failing row / none, redis x {graph}", values, of=name, to=_CLEAN,
            unit="events/s", note=note(costs),
        )
        for name in SHARES
    ]  # fmt: skip


def failing(rules: str) -> str:
    """Return the rules with a mutation that fails for the events that ``outgoing`` breaks."""
    for old, new in _CHANGES.items():
        rules = rules.replace(old, new, 1)
    return rules


async def _measure(services: Services, settings: Settings, graph: Graph, every: int) -> Cost:
    """Return what a backlog costs the worker, with one of ``every`` events failing.

    The whole backlog is applied, and each failing row has its dead letter: a part of it may hold fewer failing rows.
    """
    probe = await services.probe(graph)
    warm_up = WARM_UP[graph]
    size = warm_up + BACKLOG
    events = outgoing(size, every)
    async with process(ENGINE, settings, kill=True) as engine:
        await settled(settings, [engine])
        await publish(settings, islice(events, warm_up))
        await applied_up_to([engine], probe, CALLS.applied, warm_up)
        cost = await cost_of_backlog([engine], probe, CALLS.applied, lambda: publish(settings, events), BACKLOG)
        await settled(settings, [engine])
        failed = await _dead_letters(settings)
        if failed != (expected := sum(_fails(number, every) for number in range(size))):
            raise Died(f"wrote {failed} dead letters of {expected}")
        return cost


async def _dead_letters(settings: Settings) -> int:
    bus = make_bus(settings)
    try:
        return await letter_count(bus.dead_letters)
    finally:
        await bus.aclose()


def outgoing(size: int, every: int) -> Iterator[Outgoing]:
    """Yield events, one of ``every`` of which fails; none with 0."""
    before, zero, other = b'"limit":', b'"parts":0,"limit":', b'"parts":4,"limit":'
    for number, each in enumerate(CALLS.outgoing(size, f"poison{next(_runs)}")):
        data = each.fields[wire.DATA].replace(before, zero if _fails(number, every) else other)
        yield Outgoing(key=each.key, fields={**each.fields, wire.DATA: data})


def _fails(number: int, every: int) -> bool:
    """Tell whether an event fails: one of ``every``, of another chat each time, and no chat's first one."""
    return bool(every) and number >= CHATS and number % every == number // every % every

"""(w) Whether a worker keeps up with what ``graphweft capacity`` plans for it, and how wrong the plan's CPU is.

The figures of the plan are measured on this machine first, as ``--measure`` does. Then one worker gets 60 % of the
events that the plan gives to one worker, of 1, 50 and 1,000 apps of unequal size, for some seconds. It keeps up if what
waits to be committed has grown by no more than two batches in the second half of that time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Final

from benchmarks.backlog import LEASE_S
from benchmarks.harness import Bench, Died, Result, ratio
from benchmarks.processes import ENGINE, cpu_s, process
from benchmarks.services import Services, publish
from benchmarks.workload import APP, CALLS
from graphweft.transport import Outgoing
from graphweft_contracts import InvalidSettings, wire
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.ports.bus import Bus
from graphweft_workers.processes.event_cost import event_cost
from graphweft_workers.reports.capacity import Capacity, Demand, Figures
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_transport
from graphweft_workers.wiring.rules import load_rules

ROW: Final = "w"
APPS: Final = (1, 50, 1_000)
SHARE: Final = 0.6
_ALLOWED: Final = 2_000
"""Events that may wait at the end, beyond those in the middle: two batches."""
_TICK_S: Final = 0.05
_LOOK_S: Final = 0.25
_LONGEST_S: Final = 120.0
_MEASURED, _MODEL = "measured", "model"


async def run(bench: Bench, services: Services) -> list[Result]:
    """Measure the figures, then each number of apps."""
    settings = await services.settings("redis", "falkordb", CALLS.rules)
    rules = len(load_rules(settings).mutations)
    cost = await event_cost(settings, CALLS.events(200))
    figures = Figures().measured(cost, rules)
    results: list[Result] = []
    for apps in APPS[:2] if bench.quick else APPS:
        plan = _largest(apps, rules, figures)
        rate = SHARE * plan.demand.events
        modelled = next(need.cores for need in plan.needs if need.role == "mutation") / plan.demand.events * 1e6
        values: dict[str, list[float]] = {_MEASURED: [], _MODEL: []}
        notes: list[str] = []
        for _ in bench.turns(f"a worker at {SHARE:.0%} of its plan, {apps:,} apps", 1 if bench.quick else 3):
            await services.clear("redis", "falkordb")
            us, middle, last = await _driven(bench, settings, apps, rate)
            kept = "kept up" if last <= middle + _ALLOWED else "did not keep up"
            notes.append(f"{kept}: {middle:,} events waited in the middle, {last:,} at the end")
            values[_MEASURED].append(us)
            values[_MODEL].append(modelled)
        title = f"CPU of a worker for an event at {rate:,.0f} events/s, {SHARE:.0%} of its plan, {apps:,} app(s)"
        results.append(ratio(ROW, title, values, of=_MEASURED, to=_MODEL, unit="µs", note="; ".join(notes)))
    return results


def _largest(apps: int, rules: int, figures: Figures) -> Capacity:
    """Return the plan with the most events a second for which one worker is enough."""

    def plan(events: float) -> Capacity | None:
        try:
            found = Capacity(Demand(apps=apps, events=events, rules=rules), figures)
        except InvalidSettings:
            return None
        return found if found.workers == found.deployments == 1 and not found.warnings else None

    low, high = 1.0, 1e6
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if plan(middle) else (low, middle)
    found = plan(low)
    assert found is not None
    return found


async def _driven(bench: Bench, settings: Settings, apps: int, rate: float) -> tuple[float, int, int]:
    """Return the worker's microseconds of CPU for an event, and how many events waited in the middle and at the end."""
    seconds = 6.0 if bench.quick else 12.0
    settings = settings.model_copy(update={"lease_s": LEASE_S})
    async with (
        process(ENGINE, settings, kill=True) as engine,
        aclosing(redis_bus(settings.bus)) as bus,
        aclosing(make_transport(settings)) as transport,
    ):
        await publish(settings, _events(range(apps), "first"))
        await _until_applied(bus, engine)
        # As a plan has it: the n-th largest app has n^-0.5 of the largest.
        weights = [(number + 1) ** -0.5 for number in range(apps)]
        chosen = random.Random(7).choices(range(apps), weights, k=int(rate * seconds))
        events = [*_events(chosen, "driven")]
        lags: list[int] = []
        began, used, sent, look = time.monotonic(), cpu_s(engine.pid), 0, 0.0
        while sent < len(events):
            passed = time.monotonic() - began
            due = min(len(events), int(passed * rate))
            if due > sent:
                await transport.append(events[sent:due])
                sent = due
            if passed >= look:
                lags.append(sum(each.lag for each in await bus.partitions.status()))
                look = passed + _LOOK_S
            await asyncio.sleep(_TICK_S)
        lags.append(sum(each.lag for each in await bus.partitions.status()))
        await _until_applied(bus, engine)
        return (cpu_s(engine.pid) - used) / len(events) * 1e6, lags[len(lags) // 2], lags[-1]


def _events(apps: Sequence[int], run: str) -> Iterator[Outgoing]:
    for number, each in zip(apps, CALLS.outgoing(len(apps), run), strict=True):
        data = each.fields[wire.DATA].replace(b'"appid":"%s"' % APP.encode(), b'"appid":"app-%d"' % number, 1)
        yield Outgoing(key=f"app-{number}/{each.key.partition('/')[2]}", fields={**each.fields, wire.DATA: data})


async def _until_applied(bus: Bus, engine: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(_LONGEST_S):
        while any(each.lag for each in await bus.partitions.status()):
            if engine.returncode is not None:
                raise Died(f"ended with {engine.returncode}")
            await asyncio.sleep(_TICK_S)

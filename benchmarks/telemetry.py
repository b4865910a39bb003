"""(v) What metrics, traces and the effects stream cost a worker: its CPU for each event of a backlog, with and without.

Each event names the span that sent it, as those of a traced program do, and with it whether it is sampled. The
collector only answers. It runs in the process that measures, whose CPU does not count.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers
from itertools import islice
from typing import Final

from tests.services.traces import TraceCollector

from benchmarks.backlog import BACKLOG, LEASE_S, WARM_UP, Cost, applied_up_to, cost_of_backlog, settled
from benchmarks.harness import Bench, Contender, Result, ratio
from benchmarks.processes import ENGINE, process
from benchmarks.services import Services, publish
from benchmarks.workload import CALLS
from graphweft.transport import Outgoing
from graphweft_contracts import wire
from graphweft_workers.settings.settings import Settings

_OFF: Final = "off"
_runs = numbers(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What a worker counts and exports."""

    metrics: bool
    sampled: float | None
    """Share of the events whose sender is sampled; ``None``: the worker exports no spans."""
    effects_keep: int = 0
    """Messages that the effects stream keeps; 0: there is none."""


KINDS: Final[Mapping[str, Telemetry]] = {
    _OFF: Telemetry(metrics=False, sampled=None),
    "metrics": Telemetry(metrics=True, sampled=None),
    "metrics, 1 % of traces": Telemetry(metrics=True, sampled=0.01),
    "metrics, all traces": Telemetry(metrics=True, sampled=1.0),
    "the effects stream": Telemetry(metrics=False, sampled=None, effects_keep=10_000),
}


async def run(bench: Bench, services: Services) -> list[Result]:
    """Measure all in turn, on Redis and FalkorDB, each with a worker of its own."""
    settings = (await services.settings("redis", "falkordb", CALLS.rules)).model_copy(update={"lease_s": LEASE_S})
    costs: dict[str, list[Cost]] = {name: [] for name in KINDS}
    with _Collector() as collector:
        contenders: Mapping[str, Contender] = {
            name: partial(_cpu_us, services, settings, collector, kind, costs[name]) for name, kind in KINDS.items()
        }
        values = await bench.interleave("telemetry", contenders)
    rates = "; ".join(
        f"{name}: {statistics.median(each.per_s for each in costs[name]):,.0f} events/s" for name in KINDS
    )
    others = [name for name in KINDS if name != _OFF]
    return [
        ratio(
            "v",
            f"CPU of a worker, {name} / {_OFF}",
            values,
            of=name,
            to=_OFF,
            unit="µs of CPU an event",
            note="" if number else rates,
        )
        for number, name in enumerate(others)
    ]


async def _cpu_us(
    services: Services, settings: Settings, collector: TraceCollector, kind: Telemetry, costs: list[Cost], _: int
) -> float:
    await services.clear("redis", "falkordb")
    probe = await services.probe("falkordb")
    settings = settings.model_copy(update={"metrics": kind.metrics, "effects_keep": kind.effects_keep})
    exports = {} if kind.sampled is None else {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    async with process(ENGINE, settings, kill=True, environment=exports) as engine:
        await settled(settings, [engine])
        events = _traced(CALLS.outgoing(WARM_UP["falkordb"] + BACKLOG, f"v{next(_runs)}"), kind.sampled or 0.0)
        await publish(settings, islice(events, WARM_UP["falkordb"]))
        await applied_up_to([engine], probe, CALLS.applied, WARM_UP["falkordb"])
        cost = await cost_of_backlog([engine], probe, CALLS.applied, lambda: publish(settings, events), BACKLOG)
    costs.append(cost)
    return cost.cpu_us


def _traced(events: Iterator[Outgoing], sampled: float) -> Iterator[Outgoing]:
    """Yield the events with the name of a span each; a turn of ten events is one trace."""
    chance = random.Random(7)
    for number, event in enumerate(events):
        if number % 10 == 0:
            trace, flag = chance.randbytes(16).hex(), "01" if chance.random() < sampled else "00"
        named = f'{{"traceparent":"00-{trace}-{chance.randbytes(8).hex()}-{flag}",'.encode()
        data = named + event.fields[wire.DATA].removeprefix(b"{")
        yield Outgoing(key=event.key, fields={**event.fields, wire.DATA: data})


class _Collector(TraceCollector):
    """Reads no span: what comes is as much as a worker can send."""

    def take(self, body: bytes) -> None:
        del body

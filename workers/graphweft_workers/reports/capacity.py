"""How many processes and servers a load needs: a model of measured figures, and a simulation of where apps fall.

A worker applies batches. Each app of a batch is a write of its own, so an event costs less the more events of its app
are in the batch; the busier a worker is, the larger its batches are. The model therefore takes full batches, or what
comes in a second if that is less: an event then costs what it takes itself, and the part of a write that falls to it. A
graph server has the writes of its workers. No worker is planned only because it would lessen these.

Which partition an app belongs to is decided by the hash of its id, and some partitions get several large apps. So apps
are given rates, their ids are hashed as the bus does it, and the busiest worker and server decide.

With a deployment, or a worker, less than planned, something is too busy. No number of deployments is enough if the
largest app alone is too much for one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from heapq import heapify, heapreplace
from typing import Any, Final, Literal, NamedTuple

from graphweft_contracts import InvalidSettings
from graphweft_contracts.channels import partition_of
from graphweft_contracts.layout import DEFAULT_PARTITIONS
from graphweft_workers.reports.report import Notice, Part, TextTable

MOST_PARTITIONS: Final = 256
"""The largest number of partitions of a bus."""
_BATCH_EVENTS: Final = 1_000
_BATCH_BYTES: Final = 4 * 1024**2
_FILLED_S: Final = 1.0
"""No batch takes the events of a longer time, or they would wait."""
_HOUR_S: Final = 3_600
_GB: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Microseconds of CPU, unless the name says otherwise. The defaults are those of ``docs/benchmarks.md``."""

    worker_event: float = 37.5
    """Rows b and c: 38 with 10 rules."""
    worker_rule: float = 0.052
    """For each rule and event. Row c: 89 with 1,000 rules; of those, a quarter has a condition that is evaluated."""
    worker_write: float = 260.0
    """For each app of a batch. Row s."""
    server_event: float = 25.0
    """Row d: 20 to 47, as the graph grows."""
    server_write: float = 240.0
    """Row s."""
    server_serial: float = 150.0
    """The part of a query that a graph server does in its one main thread. Decision 57."""
    responder_request: float = 300.0
    """Row g: responder and client together take 480."""
    gateway_event: float = 60.0
    gateway_request: float = 600.0
    bus_event: float = 12.0
    """To append it, and to read it twice: by a worker and by the archive role."""
    bus_request: float = 60.0
    worker_mb: int = 330
    """With a backlog of small events. Row d."""
    other_mb: int = 150
    """A responder or a gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What comes."""

    apps: int
    events: float
    """A second."""
    requests: float = 0.0
    """Context requests a second."""
    rules: int = 10
    queries: int = 2
    """Of a context request."""
    event_bytes: int = 1_000
    skew: float = 0.5
    """How unequal apps are: the rate of the n-th largest one goes with n to the power of minus this. 0: all equal."""
    use: float = 0.7
    """The share of a process or server that is planned for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleNeed:
    """How many processes or servers of a kind there must be in all deployments together."""

    role: str
    count: int
    cores: float
    memory_gb: float | None
    """None: not planned."""
    figures: Literal["measured", "estimated"]
    """What its CPU is from: a row of ``docs/benchmarks.md`` or this machine, or no measurement."""
    limit: str
    """The figure that decides."""


class BusiestUse(NamedTuple):
    """The share of a core that the busiest one of each kind needs; of servers, of their main threads."""

    worker: float
    graph_server: float
    bus: float


class Capacity:
    """The report of ``capacity``: the smallest deployment, or number of deployments, that a demand fits into."""

    def __init__(self, demand: Demand, figures: Figures, measured: Sequence[Measured] = ()) -> None:
        """Raises ``InvalidSettings`` if no number of deployments is enough."""
        self.demand = demand
        self.figures = figures
        self._measured = measured
        self._rates = _rates(demand)
        self._batch = min(_BATCH_EVENTS, max(1, _BATCH_BYTES // demand.event_bytes))
        self._most_of_app = demand.use * 1e6 / (self._event_us + figures.worker_write / self._batch)
        """Events a second of one app that one worker applies."""
        self._refuse_impossible()
        self.deployments = self._fewest_deployments()
        """Each has one bus and one graph server."""
        parts = self._parts(self.deployments)
        self.workers = self._fewest_workers(parts)
        """Of each deployment."""
        self.partitions = self._partitions(self.workers)
        self.uses = self._uses(parts, self.workers)
        self.needs = list(self._needs(parts))

    @property
    def _event_us(self) -> float:
        return self.figures.worker_event + self.figures.worker_rule * self.demand.rules

    def worker_use(self, rates: Sequence[float]) -> float:
        """Return the share of a core that a worker with these apps needs."""
        return self._worker_use(sum(rates), self._writes(rates))

    def _worker_use(self, events: float, writes: float) -> float:
        return (events * self._event_us + writes * self.figures.worker_write) / 1e6

    def uses_of(self, deployments: int, workers: int) -> BusiestUse:
        """Return the uses if there were so many deployments, and so many workers in each."""
        return self._uses(self._parts(deployments), workers)

    def _writes(self, rates: Sequence[float]) -> float:
        """Return the writes a second of a worker with these apps: one for each app of a batch."""
        batches = max(sum(rates) / self._batch, 1 / _FILLED_S)
        return batches * sum(1 - math.exp(-rate / batches) for rate in rates)

    def _refuse_impossible(self) -> None:
        app, rate = next(iter(self._rates.items()))
        alone = [{app: rate}]
        if not self._fits(alone):
            uses = self._uses(alone, MOST_PARTITIONS)
            what, use = max(zip(("a worker", "a graph server", "a bus"), uses, strict=True), key=lambda each: each[1])
            raise InvalidSettings(
                f"no plan helps: the largest app alone, with {rate:,.0f} events/s, would use {what} to {use:,.0%} of a "
                f"core, of which {self.demand.use:.0%} are planned, and an app cannot be on two graph servers: divide "
                "it into several apps, or give fewer --events or --requests, or a lower --skew"
            )

    def _fewest_deployments(self) -> int:
        """Return a number of deployments that is enough, while one less is not."""
        demand, figures = self.demand, self.figures
        graph = demand.events * figures.server_event + demand.requests * demand.queries * figures.server_serial
        bus = demand.events * figures.bus_event + demand.requests * figures.bus_request
        # Without writes: fewer are never enough, and need not be tried.
        too_few = min(max(1, math.ceil(max(graph, bus) / 1e6 / demand.use)), demand.apps) - 1
        step, enough = 1, demand.apps
        while too_few + step < enough:
            if self._fits(self._parts(too_few + step)):
                enough = too_few + step
            else:
                too_few, step = too_few + step, 2 * step
        numbers = range(too_few + 1, enough)
        return numbers.start + bisect_left(numbers, True, key=lambda n: self._fits(self._parts(n)))

    def _fits(self, parts: Sequence[dict[str, float]]) -> bool:
        workers = self._fewest_workers(parts)
        return workers > 0 and max(self._uses(parts, workers)) <= self.demand.use

    def _fewest_workers(self, parts: Sequence[dict[str, float]]) -> int:
        """Return a number of workers for each deployment of which none is too busy, while one less is not enough.

        0 if there is none.
        """

        def enough(workers: int) -> bool:
            return self._uses(parts, workers).worker <= self.demand.use

        powers = (2**power for power in range(MOST_PARTITIONS.bit_length()))
        first = next(filter(enough, powers), 0)
        numbers = range(first // 2 + 1, first)
        return numbers.start + bisect_left(numbers, True, key=enough) if first > 1 else first

    def _parts(self, deployments: int) -> list[dict[str, float]]:
        """Return the apps of each deployment: each app goes to the one with the fewest events so far."""
        parts: list[dict[str, float]] = [{} for _ in range(deployments)]
        totals = [(0.0, number) for number in range(deployments)]
        heapify(totals)
        for app, rate in self._rates.items():
            total, number = totals[0]
            parts[number][app] = rate
            heapreplace(totals, (total + rate, number))
        return parts

    def _uses(self, parts: Sequence[dict[str, float]], workers: int) -> BusiestUse:
        demand, figures = self.demand, self.figures
        each: list[BusiestUse] = []
        for apps in parts:
            held = self._held(apps, workers)
            events = sum(apps.values())
            requests = demand.requests * events / demand.events
            queries = sum(number * writes for number, _, writes in held) + requests * demand.queries
            worker = max(self._worker_use(events, writes) for _, events, writes in held)
            graph = events * figures.server_event + queries * figures.server_serial
            bus = events * figures.bus_event + requests * figures.bus_request
            each.append(BusiestUse(worker, graph / 1e6, bus / 1e6))
        return BusiestUse(*map(max, zip(*each, strict=True)))

    def _held(self, apps: dict[str, float], workers: int) -> list[tuple[int, float, float]]:
        """Return events and writes a second of workers, behind the number of workers with such ones.

        Partitions are shared out by number, whatever is in them.
        """
        partitions = self._partitions(workers)
        # Apps that are larger than a worker need the order `chat`, which spreads them.
        spread = [rate / workers for rate in apps.values() if rate > self._most_of_app]
        held: dict[int, list[float]] = defaultdict(lambda: [*spread])
        for app, rate in apps.items():
            if rate <= self._most_of_app:
                held[partition_of(app, partitions) % workers].append(rate)
        found = [(1, rates) for rates in held.values()]
        if len(held) < workers:
            found.append((workers - len(held), spread))
        return [(number, sum(rates), self._writes(rates)) for number, rates in found]

    @staticmethod
    def _partitions(workers: int) -> int:
        """Return how many partitions such a bus gets: at least four for each worker, as long as there are so many."""
        wanted = max(DEFAULT_PARTITIONS, 1 << (4 * max(workers, 1) - 1).bit_length())
        return min(MOST_PARTITIONS, wanted)

    def _needs(self, parts: Sequence[dict[str, float]]) -> Iterable[RoleNeed]:
        demand, figures, uses, n = self.demand, self.figures, self.uses, self.deployments
        held = [each for apps in parts for each in self._held(apps, self.workers)]
        writes = sum(number * each for number, _, each in held)
        cores = self._worker_use(demand.events, writes)
        limit = f"{cores * 1e6 / demand.events:.0f} us for an event; the busiest worker is used to {uses.worker:.0%}"
        yield RoleNeed(
            role="mutation", count=n * self.workers, cores=cores,
            memory_gb=n * self.workers * figures.worker_mb / 1_000, figures="measured",
            limit=limit,
        )  # fmt: skip
        largest = max(sum(apps.values()) for apps in parts) / demand.events
        for role, us, why in (
            ("injection", demand.requests * figures.responder_request, f"{figures.responder_request:.0f} us a request"),
            (
                "gateway", demand.events * figures.gateway_event + demand.requests * figures.gateway_request,
                f"{figures.gateway_event:.0f} us an event, {figures.gateway_request:.0f} a request",
            ),
        ):  # fmt: skip
            # Two of each, so that one may restart.
            count = n * max(2, math.ceil(us * largest / 1e6 / demand.use))
            memory = count * figures.other_mb / 1_000
            yield RoleNeed(
                role=role, count=count, cores=us / 1e6, memory_gb=memory, figures="estimated", limit=why
            )  # fmt: skip
        memory = n * figures.other_mb / 1_000
        yield RoleNeed(
            role="archive", count=n, cores=0.2 * n, memory_gb=memory, figures="estimated", limit="one each"
        )  # fmt: skip
        queries = writes + demand.requests * demand.queries
        yield RoleNeed(
            role="graph server", count=n,
            cores=(demand.events * figures.server_event + queries * figures.server_write) / 1e6,
            memory_gb=None, figures="measured",
            limit=f"its main thread is used to {uses.graph_server:.0%}; memory follows what rules store",
        )  # fmt: skip
        bus = demand.events * figures.bus_event + demand.requests * figures.bus_request
        yield RoleNeed(
            role="bus", count=n, cores=bus / 1e6,
            memory_gb=demand.events * demand.event_bytes * 1.25 * _HOUR_S / _GB, figures="estimated",
            limit=f"its main thread is used to {uses.bus:.0%}; memory for an hour of the log",
        )  # fmt: skip

    @property
    def warnings(self) -> list[str]:
        """What somebody has to do beside it."""
        largest = next(iter(self._rates.values()))
        if largest <= self._most_of_app:
            return []
        return [
            f"the largest app has {largest:,.0f} events/s, and one worker applies {self._most_of_app:,.0f}: it "
            "needs the order `chat`, as it is planned here, or a lower --skew if apps are more equal"
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return {
            "demand": asdict(self.demand), "figures": asdict(self.figures), "deployments": self.deployments,
            "partitions": self.partitions, "needs": [asdict(each) for each in self.needs],
            "measured": [asdict(each) for each in self._measured], "warnings": self.warnings,
        }  # fmt: skip

    def parts(self) -> Iterable[Part]:
        """Yield the plan for people."""
        demand = self.demand
        yield (
            f"{demand.apps:,} apps, {demand.events:,.0f} events/s and {demand.requests:,.0f} requests/s: "
            f"{self.deployments} deployment(s), each with one bus of {self.partitions} partitions and one graph server"
        )
        rows = [
            (
                each.role, each.count, round(each.cores, 1),
                "not planned" if each.memory_gb is None else round(each.memory_gb, 1), each.figures, each.limit,
            )
            for each in self.needs
        ]  # fmt: skip
        yield TextTable(("role", "processes", "cores", "memory GB", "figures", "what limits"), rows)
        if self._measured:
            rows_measured = [(each.what, round(each.measured, 1), round(each.modelled, 1)) for each in self._measured]
            yield TextTable(("us of CPU", "measured", "modelled"), rows_measured)
        yield (
            f"Assumed: {demand.rules} rules, {demand.event_bytes} bytes an event, {demand.queries} queries a request, "
            f"apps with rates by n^-{demand.skew:g}, processes used to {demand.use:.0%}, batches of {self._batch:,}. "
            "Figures of docs/benchmarks.md, of one kind of processor; --measure has those of this machine."
        )
        yield from (Notice(text) for text in self.warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A figure of this machine beside that of the model, in microseconds."""

    what: str
    measured: float
    modelled: float


def _rates(demand: Demand) -> dict[str, float]:
    """Return the events a second of each app, the largest first."""
    weights = [(number + 1) ** -demand.skew for number in range(demand.apps)]
    total = sum(weights)
    return {f"app-{number}": demand.events * weight / total for number, weight in enumerate(weights)}

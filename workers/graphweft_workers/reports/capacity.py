"""How many processes and servers a load needs: a model of measured figures, and a simulation of where apps fall.

A worker applies batches. Each app of a batch is a write of its own, so an event costs less the more events of its app
are in the batch; the busier a worker is, the larger its batches are. The model therefore takes full batches: an event
then costs what it takes itself, and the part of a write that falls to it.

Which partition an app belongs to is decided by the hash of its id, and some partitions get several large apps. So apps
are given rates, their ids are hashed as the bus does it, and the busiest worker and server decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from graphweft_contracts.channels import partition_of
from graphweft_contracts.layout import DEFAULT_PARTITIONS
from graphweft_workers.reports.report import Notice, Part, TextTable

MOST_PARTITIONS: Final = 256
"""The largest number of partitions of a bus."""
_BATCH_EVENTS: Final = 1_000
_BATCH_BYTES: Final = 4 * 1024**2
_HOUR_S: Final = 3_600
_GB: Final = 1e9
_MOST_DEPLOYMENTS: Final = 1_000


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
    memory_gb: float
    limit: str
    """The figure that decides."""


class Capacity:
    """The report of ``capacity``: the smallest deployment, or number of deployments, that a demand fits into."""

    def __init__(self, demand: Demand, figures: Figures, measured: Sequence[Measured] = ()) -> None:
        self.demand = demand
        self.figures = figures
        self._measured = measured
        self._rates = _rates(demand)
        self._batch = min(_BATCH_EVENTS, max(1, _BATCH_BYTES // demand.event_bytes))
        self._most_of_app = demand.use * 1e6 / self.event_us([1.0])[0]
        """Events a second of one app that one worker applies."""
        most = min(demand.apps, _MOST_DEPLOYMENTS)
        enough = max(1, math.ceil(self._graph_use(self._rates) / demand.use))
        self.deployments = next((n for n in range(1, most + 1) if self._fits(n)), min(enough, most))
        """Each has one bus and one graph server."""
        self.workers = self._workers(self._largest())
        self.partitions = self._partitions(self.workers)
        self.needs = list(self._needs())

    def event_us(self, rates: Sequence[float]) -> tuple[float, float]:
        """Return what an event of these apps costs a worker, and a graph server, in full batches."""
        total = sum(rates)
        writes = sum(1 - math.exp(-self._batch * rate / total) for rate in rates) / self._batch if total else 1.0
        figures = self.figures
        worker = figures.worker_event + figures.worker_rule * self.demand.rules + figures.worker_write * writes
        return worker, figures.server_event + figures.server_serial * writes

    def worker_use(self, rates: Sequence[float]) -> float:
        """Return the share of a core that a worker with these apps needs."""
        return sum(rates) * self.event_us(rates)[0] / 1e6

    def _largest(self) -> dict[str, float]:
        """Return the apps of the deployment with the most events."""
        return max(self._parts(self.deployments), key=lambda apps: sum(apps.values()))

    def _parts(self, deployments: int) -> list[dict[str, float]]:
        """Return the apps of each deployment: each app goes to the one with the fewest events so far."""
        parts: list[dict[str, float]] = [{} for _ in range(deployments)]
        totals = [0.0] * deployments
        for number, (app, rate) in enumerate(self._rates.items()):
            # Once the first are placed, in turn: to look for the emptiest one each time changes little.
            part = totals.index(min(totals)) if number < 4 * deployments else number % deployments
            parts[part][app] = rate
            totals[part] += rate
        return parts

    def _fits(self, deployments: int) -> bool:
        """Tell whether each deployment can do with one graph server and one bus."""
        apps = max(self._parts(deployments), key=lambda apps: sum(apps.values()))
        return self._workers(apps) > 0 and max(self._graph_use(apps), self._bus_use(apps)) <= self.demand.use

    def _share(self, apps: dict[str, float]) -> float:
        return sum(apps.values()) / self.demand.events

    def _graph_use(self, apps: dict[str, float]) -> float:
        """Return the share of a graph server's main thread: writes, one after the other, and queries."""
        reads = self.demand.requests * self._share(apps) * self.demand.queries * self.figures.server_serial
        return (sum(apps.values()) * self.event_us(list(apps.values()))[1] + reads) / 1e6

    def _bus_use(self, apps: dict[str, float]) -> float:
        requests = self.demand.requests * self._share(apps)
        return (sum(apps.values()) * self.figures.bus_event + requests * self.figures.bus_request) / 1e6

    def _workers(self, apps: dict[str, float]) -> int:
        """Return the least number of workers of which none is too busy; 0 if no number is enough."""
        least = max(1, math.ceil(self.worker_use(list(apps.values())) / self.demand.use))
        return next((n for n in range(least, MOST_PARTITIONS + 1) if self._busiest(apps, n) <= self.demand.use), 0)

    def _busiest(self, apps: dict[str, float], workers: int) -> float:
        """Return the use of the busiest worker; partitions are shared out by number, whatever is in them."""
        partitions = self._partitions(workers)
        held: list[list[float]] = [[] for _ in range(workers)]
        for app, rate in apps.items():
            if rate > self._most_of_app:  # it needs the order `chat`, which spreads it
                for rates in held:
                    rates.append(rate / workers)
            else:
                held[partition_of(app, partitions) % workers].append(rate)
        return max(self.worker_use(rates) for rates in held)

    @staticmethod
    def _partitions(workers: int) -> int:
        """Return how many partitions such a bus gets: at least four for each worker, as long as there are so many."""
        wanted = max(DEFAULT_PARTITIONS, 1 << (4 * max(workers, 1) - 1).bit_length())
        return min(MOST_PARTITIONS, wanted)

    def _needs(self) -> Iterable[RoleNeed]:
        demand, figures, n = self.demand, self.figures, self.deployments
        apps = self._largest()
        worker_us = self.event_us(list(apps.values()))[0]
        busiest = self._busiest(apps, max(1, self.workers))
        yield RoleNeed(
            role="mutation", count=n * max(1, self.workers), cores=demand.events * worker_us / 1e6,
            memory_gb=n * max(1, self.workers) * figures.worker_mb / 1_000,
            limit=f"{worker_us:.0f} us for an event; the busiest worker is used to {busiest:.0%}",
        )  # fmt: skip
        for role, us, why in (
            ("injection", demand.requests * figures.responder_request, f"{figures.responder_request:.0f} us a request"),
            (
                "gateway", demand.events * figures.gateway_event + demand.requests * figures.gateway_request,
                f"{figures.gateway_event:.0f} us an event, {figures.gateway_request:.0f} a request",
            ),
        ):  # fmt: skip
            # Two of each, so that one may restart.
            count = max(2 * n, math.ceil(us / 1e6 / demand.use))
            memory = count * figures.other_mb / 1_000
            yield RoleNeed(role=role, count=count, cores=us / 1e6, memory_gb=memory, limit=why)
        yield RoleNeed(role="archive", count=n, cores=0.2 * n, memory_gb=n * figures.other_mb / 1_000, limit="one each")
        graph = self._graph_use(apps)
        server_us = figures.server_event + figures.server_write * (worker_us - figures.worker_event) / (
            figures.worker_write
        )
        reads = demand.requests * demand.queries * figures.server_write
        yield RoleNeed(
            role="graph server", count=n, cores=(demand.events * server_us + reads) / 1e6, memory_gb=0.0,
            limit=f"its main thread is used to {graph:.0%}; memory follows what rules store",
        )  # fmt: skip
        hour_gb = demand.events * demand.event_bytes * 1.25 * _HOUR_S / _GB
        yield RoleNeed(
            role="bus", count=n, cores=self._bus_use(apps) * n, memory_gb=hour_gb,
            limit=f"its main thread is used to {self._bus_use(apps):.0%}; memory for an hour of the log",
        )  # fmt: skip

    @property
    def uses(self) -> tuple[float, float, float]:
        """The use of the busiest worker, and of the main threads of a graph server and a bus."""
        apps = self._largest()
        return self._busiest(apps, max(1, self.workers)), self._graph_use(apps), self._bus_use(apps)

    @property
    def warnings(self) -> list[str]:
        """What the plan cannot mend."""
        found: list[str] = []
        largest = next(iter(self._rates.values()))
        if largest > self._most_of_app:
            found.append(
                f"the largest app has {largest:,.0f} events/s, and one worker applies {self._most_of_app:,.0f}: it "
                "needs the order `chat`, as it is planned here, or a lower --skew if apps are more equal"
            )
        if max(self.uses[1:]) > self.demand.use:
            found.append("one app alone takes more than a graph server or a bus gives: no plan helps")
        return found

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
            (each.role, each.count, round(each.cores, 1), round(each.memory_gb, 1), each.limit) for each in self.needs
        ]
        yield TextTable(("role", "processes", "cores", "memory GB", "what limits"), rows)
        if self._measured:
            rows_measured = [(each.what, round(each.measured, 1), round(each.modelled, 1)) for each in self._measured]
            yield TextTable(("us of CPU", "measured", "modelled"), rows_measured)
        yield (
            f"Assumed: {demand.rules} rules, {demand.event_bytes} bytes an event, {demand.queries} queries a request, "
            f"apps with rates by n^-{demand.skew:g}, processes used to {demand.use:.0%}, batches of {self._batch}. "
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

"""How many processes and servers a load needs: a model of measured figures, and a simulation of where apps fall.

A worker applies batches. Each app of a batch is a write of its own, so an event costs less the more events of its app
are in the batch; the busier a worker is, the larger its batches are. The model therefore takes full batches, or what
comes in a second if that is less: an event then costs what it takes itself, and the part of a write that falls to it. A
graph server has the writes of its workers. No worker is planned only because it would lessen these.

Which partition an app belongs to is decided by the hash of its id, and some partitions get several large apps. So apps
are given rates, their ids are hashed as the bus does it, and the busiest worker decides. Where one bus or graph server
is not enough, apps go to several deployments in turn, and the first one, with the largest app, decides. No number of
deployments is enough if that app alone is too much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, Self

from graphweft_contracts import InvalidSettings
from graphweft_contracts.channels import partition_of
from graphweft_contracts.layout import DEFAULT_PARTITIONS
from graphweft_workers.reports.report import Notice, Part, TextTable

if TYPE_CHECKING:  # it needs a worker and servers
    from graphweft_workers.processes.event_cost import EventCost

MOST_PARTITIONS: Final = 256
"""The largest number of partitions of a bus."""
_BATCH_EVENTS: Final = 1_000
_BATCH_BYTES: Final = 4 * 1024**2
_FILLED_S: Final = 1.0
"""No batch takes the events of a longer time, or they would wait."""
_HOUR_S: Final = 3_600


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

    def measured(self, cost: EventCost, rules: int) -> Self:
        """Return these figures with what events cost on this machine."""
        return replace(
            self,
            worker_event=max(0.0, cost.worker_event - self.worker_rule * rules),
            worker_write=cost.worker_write,
            server_event=max(0.0, cost.server_event - self.bus_event),
            server_write=cost.server_write,
            server_serial=cost.server_write * self.server_serial / self.server_write,
        )

    def compared(self, cost: EventCost, rules: int) -> list[ComparedFigure]:
        """Return what events cost on this machine beside these figures."""
        return [
            ComparedFigure(what=what, measured=here, modelled=modelled)
            for what, here, modelled in (
                ("worker, an event", cost.worker_event, self.worker_event + self.worker_rule * rules),
                ("worker, an app of a batch", cost.worker_write, self.worker_write),
                ("graph server and bus, an event", cost.server_event, self.server_event + self.bus_event),
                ("graph server, an app of a batch", cost.server_write, self.server_write),
            )
        ]


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


class PlannedUse(NamedTuple):
    """The share of a core that the busiest one of each kind needs; of servers, of their main threads."""

    worker: float
    graph_server: float
    bus: float


class Capacity:
    """The report of ``capacity``: the smallest deployment, or number of deployments, that a demand fits into."""

    def __init__(self, demand: Demand, figures: Figures, measured: Sequence[ComparedFigure] = ()) -> None:
        """Raises ``InvalidSettings`` if no number of deployments is enough."""
        self.demand = demand
        self.figures = figures
        self._measured = measured
        self._batch = min(_BATCH_EVENTS, max(1, _BATCH_BYTES // demand.event_bytes))
        self._event_us = figures.worker_event + figures.worker_rule * demand.rules
        self._most_of_app = demand.use * 1e6 / (self._event_us + figures.worker_write / self._batch)
        """Events a second of one app that one worker applies."""
        rates = _rates(demand)
        self._largest = rates[0]
        self.deployments = 1
        """Each has one bus and one graph server."""
        while not self._fits(rates[:: self.deployments]):
            if self.deployments >= demand.apps:
                self._refuse()
            factor = max(self.uses) / demand.use
            self.deployments = min(demand.apps, max(self.deployments + 1, math.floor(self.deployments * factor)))

    def _fits(self, rates: Sequence[float]) -> bool:
        """Find the workers of a deployment with such apps; False if no number is enough, or a server is too busy."""
        demand, figures = self.demand, self.figures
        events = sum(rates)
        requests = demand.requests * events / demand.events
        first = math.ceil((events * self._event_us + self._writes(rates) * figures.worker_write) / 1e6 / demand.use)
        self.workers = min(max(1, first), MOST_PARTITIONS)
        while True:
            self.partitions = _partitions(self.workers)
            held = [(sum(each), self._writes(each)) for each in self._held(rates)]
            worker = max(each * self._event_us + writes * figures.worker_write for each, writes in held)
            if worker <= demand.use * 1e6 or self.workers >= MOST_PARTITIONS:
                break
            self.workers += 1
        self._writes_per_s = sum(writes for _, writes in held)
        self._events_per_s, self._requests_per_s = events, requests
        graph = events * figures.server_event + self._queries_per_s * figures.server_serial
        bus = events * figures.bus_event + requests * figures.bus_request
        self.uses = PlannedUse(worker / 1e6, graph / 1e6, bus / 1e6)
        return max(self.uses) <= demand.use

    @property
    def _queries_per_s(self) -> float:
        return self._writes_per_s + self._requests_per_s * self.demand.queries

    def _writes(self, rates: Sequence[float]) -> float:
        """Return the writes a second of a worker with these apps: one for each app of a batch."""
        batches = max(sum(rates) / self._batch, 1 / _FILLED_S)
        return batches * sum(1 - math.exp(-rate / batches) for rate in rates)

    def _held(self, rates: Sequence[float]) -> list[list[float]]:
        """Return the apps of each worker by their rates. Partitions are shared out by number, whatever is in them."""
        # Apps that are larger than a worker need the order `chat`, which spreads them.
        spread = [rate / self.workers for rate in rates if rate > self._most_of_app]
        held = [[*spread] for _ in range(self.workers)]
        for number, rate in enumerate(rates):
            if rate <= self._most_of_app:
                held[partition_of(f"app-{number}", self.partitions) % self.workers].append(rate)
        return held

    def _refuse(self) -> NoReturn:
        what, use = max(zip(("a worker", "a graph server", "a bus"), self.uses, strict=True), key=lambda each: each[1])
        raise InvalidSettings(
            f"no plan helps: the largest app alone, with {self._largest:,.0f} events/s, would use {what} to {use:,.0%} "
            f"of a core, of which {self.demand.use:.0%} are planned, and an app cannot be on two graph servers: divide "
            "it into several apps, or give fewer --events or --requests, or a lower --skew"
        )

    @property
    def needs(self) -> list[RoleNeed]:
        """What each role needs; deployments are planned like the first one."""
        demand, figures, n = self.demand, self.figures, self.deployments
        events, requests = self._events_per_s, self._requests_per_s
        worker_us = events * self._event_us + self._writes_per_s * figures.worker_write
        graph_us = events * figures.server_event + self._queries_per_s * figures.server_write
        bus_us = events * figures.bus_event + requests * figures.bus_request
        gateway_us = events * figures.gateway_event + requests * figures.gateway_request

        def need(role: str, count: int, us: float, mb: float | None, limit: str, *, measured: bool = False) -> RoleNeed:
            memory_gb = None if mb is None else n * mb / 1_000
            return RoleNeed(
                role=role, count=n * count, cores=n * us / 1e6, memory_gb=memory_gb,
                figures="measured" if measured else "estimated", limit=limit,
            )  # fmt: skip

        def two(us: float) -> int:  # so that one may restart
            return max(2, math.ceil(us / 1e6 / demand.use))

        answer_us, log_mb = requests * figures.responder_request, events * demand.event_bytes * 1.25 * _HOUR_S / 1e6
        return [
            need(
                "mutation", self.workers, worker_us, self.workers * figures.worker_mb,
                f"{worker_us / events:.0f} us for an event; the busiest worker is used to {self.uses.worker:.0%}",
                measured=True,
            ),
            need(
                "injection", two(answer_us), answer_us, two(answer_us) * figures.other_mb,
                f"{figures.responder_request:.0f} us a request",
            ),
            need(
                "gateway", two(gateway_us), gateway_us, two(gateway_us) * figures.other_mb,
                f"{figures.gateway_event:.0f} us an event, {figures.gateway_request:.0f} a request",
            ),
            need("archive", 1, 0.2e6, figures.other_mb, "one each"),
            need(
                "graph server", 1, graph_us, None,
                f"its main thread is used to {self.uses.graph_server:.0%}; memory follows what rules store",
                measured=True,
            ),
            need(
                "bus", 1, bus_us, log_mb,
                f"its main thread is used to {self.uses.bus:.0%}; memory for an hour of the log",
            ),
        ]  # fmt: skip

    @property
    def warnings(self) -> list[str]:
        """What somebody has to do beside it."""
        if self._largest <= self._most_of_app:
            return []
        return [
            f"the largest app has {self._largest:,.0f} events/s, and one worker applies {self._most_of_app:,.0f}: it "
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
            "Figures of docs/benchmarks.md, of one kind of processor; --measure has those of this machine. Workers at "
            "60 % of their plan kept up, and needed 1.1 to 2 times the CPU of this plan: one that is not behind takes "
            "smaller batches. Behind, they needed 0.6 to 1.1 times (docs/operations.md). What servers, gateways and "
            "responders need is not confirmed."
        )
        yield from (Notice(text) for text in self.warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """A figure of this machine beside that of the model, in microseconds."""

    what: str
    measured: float
    modelled: float


def _rates(demand: Demand) -> list[float]:
    """Return the events a second of each app, the largest first."""
    weights = [(number + 1) ** -demand.skew for number in range(demand.apps)]
    total = sum(weights)
    return [demand.events * weight / total for weight in weights]


def _partitions(workers: int) -> int:
    """Return how many partitions such a bus gets: at least four for each worker, as long as there are so many."""
    wanted = max(DEFAULT_PARTITIONS, 1 << (4 * max(workers, 1) - 1).bit_length())
    return min(MOST_PARTITIONS, wanted)

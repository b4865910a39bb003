"""The plan of ``graphweft capacity`` follows the measured figures, up to 10,000 apps and a million events a second."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from graphweft_contracts import InvalidSettings
from graphweft_workers.processes.event_cost import EventCost
from graphweft_workers.reports.capacity import MOST_PARTITIONS, Capacity, Demand, Figures, RoleNeed


def plan(**demand: float) -> Capacity:
    return Capacity(Demand(**demand), Figures())  # type: ignore[arg-type]


def need(capacity: Capacity, role: str) -> RoleNeed:
    return next(each for each in capacity.needs if each.role == role)


def worker_us(capacity: Capacity) -> float:
    """Return the CPU of workers for an event."""
    return need(capacity, "mutation").cores * 1e6 / capacity.demand.events


def test_an_event_costs_by_rules_as_measured() -> None:
    """Row c of the benchmarks: 38 and 89 us."""
    few, many = (worker_us(plan(apps=1, events=10_000, rules=rules)) for rules in (10, 1_000))
    assert many / few == pytest.approx(89 / 38, rel=0.05)


def test_an_event_of_many_apps_costs_a_write_of_its_own() -> None:
    """Row s of the benchmarks: 7 times an event of one app and more, if each app of a batch has about one."""
    one, many = worker_us(plan(apps=1, events=1_000)), worker_us(plan(apps=20_000, events=1_000, skew=0))
    assert many - one == pytest.approx(Figures().worker_write, rel=0.05)
    assert many / one > 7


def test_figures_of_a_machine_give_its_plan() -> None:
    cost = EventCost(worker_event=80.0, worker_write=500.0, server_event=60.0, server_write=480.0)
    figures = Figures().measured(cost, rules=10)
    slow = Capacity(Demand(apps=1, events=1_000, rules=10), figures)
    assert worker_us(slow) == pytest.approx(80.5, rel=0.01)
    assert {each.what: each.measured for each in Figures().compared(cost, 10)}["worker, an event"] == 80.0


def _demands() -> Iterator[Demand]:
    random = Random(11)
    for _ in range(60):
        yield Demand(
            apps=int(10 ** random.uniform(0, 3)), events=10 ** random.uniform(0, 5.5),
            requests=random.choice((0.0, 10 ** random.uniform(0, 3))), rules=random.choice((1, 10, 300)),
            skew=random.choice((0.0, 0.5, 1.0)), event_bytes=random.choice((200, 1_000, 50_000)),
        )  # fmt: skip


@pytest.mark.parametrize("demand", list(_demands()), ids=str)
def test_a_plan_keeps_its_limit(demand: Demand) -> None:
    try:
        found = Capacity(demand, Figures())
    except InvalidSettings:  # no plan helps: see below
        return
    assert max(found.uses) <= demand.use
    assert found.workers <= found.partitions <= MOST_PARTITIONS
    workers = need(found, "mutation")
    assert workers.cores / workers.count <= found.uses.worker * (1 + 1e-9), "the mean is no more than the busiest"


@pytest.mark.parametrize(("apps", "events", "deployments"), [(500, 10_000, 1), (2_000, 30_000_000, 2_000)])
def test_there_are_as_many_deployments_as_the_graph_server_needs(apps: int, events: int, deployments: int) -> None:
    assert plan(apps=apps, events=events, skew=0.5 if deployments == 1 else 0.0).deployments == deployments


def test_a_demand_that_nothing_keeps_up_with_is_refused_by_what_limits() -> None:
    with pytest.raises(InvalidSettings, match=r"no plan helps: the largest app alone, .* a graph server to 25,150%"):
        plan(apps=1, events=10_000_000)
    with pytest.raises(InvalidSettings, match=r"would use a worker to"):
        Capacity(Demand(apps=1, events=1_000), Figures(worker_event=1e6))


def test_a_million_events_of_ten_thousand_apps_need_about_ten_times_a_tenth() -> None:
    tenth, whole = (need(plan(apps=10_000, events=events), "mutation").count for events in (100_000, 1_000_000))
    assert tenth < whole <= 12 * tenth


def test_an_app_that_is_larger_than_a_worker_is_named() -> None:
    assert "chat" in plan(apps=1, events=20_000).warnings[0]
    assert not plan(apps=1, events=1_000).warnings

"""The plan of ``graphweft capacity`` follows the measured figures, up to 10,000 apps and a million events a second."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from graphweft_contracts import InvalidSettings
from graphweft_workers.reports.capacity import MOST_PARTITIONS, Capacity, Demand, Figures


def plan(**demand: float) -> Capacity:
    return Capacity(Demand(**demand), Figures())  # type: ignore[arg-type]


def count(capacity: Capacity, role: str) -> int:
    return next(need.count for need in capacity.needs if need.role == role)


def test_an_event_costs_by_rules_as_measured() -> None:
    """Row c of the benchmarks: 38 and 89 us."""
    few, many = (plan(apps=1, events=100, rules=rules).worker_use([10_000.0]) for rules in (10, 1_000))
    assert many / few == pytest.approx(89 / 38, rel=0.05)


def test_an_event_of_many_apps_costs_a_write_of_its_own() -> None:
    """Row s of the benchmarks: 7 times an event of one app and more, if each app of a batch has about one."""
    capacity = plan(apps=1, events=100)
    one, many = capacity.worker_use([10_000.0]), capacity.worker_use([0.1] * 100_000)
    assert (many - one) * 100 == pytest.approx(Figures().worker_write, rel=0.05)
    assert many / one > 7


def _demands() -> Iterator[Demand]:
    random = Random(11)
    for _ in range(60):
        yield Demand(
            apps=int(10 ** random.uniform(0, 3)), events=10 ** random.uniform(0, 5.5),
            requests=random.choice((0.0, 10 ** random.uniform(0, 3))), rules=random.choice((1, 10, 300)),
            skew=random.choice((0.0, 0.5, 1.0)), event_bytes=random.choice((200, 1_000, 50_000)),
        )  # fmt: skip


@pytest.mark.parametrize("demand", list(_demands()), ids=str)
def test_a_plan_keeps_its_limit_and_none_with_less_does(demand: Demand) -> None:
    try:
        found = Capacity(demand, Figures())
    except InvalidSettings:  # no plan helps: see below
        return
    most = demand.use
    assert max(found.uses) <= most
    assert found.uses == found.uses_of(found.deployments, found.workers)
    assert found.workers <= found.partitions <= MOST_PARTITIONS
    workers = next(need for need in found.needs if need.role == "mutation")
    assert workers.cores / workers.count <= found.uses.worker * (1 + 1e-9), "the mean is no more than the busiest"
    if found.workers > 1:
        assert found.uses_of(found.deployments, found.workers - 1).worker > most
    if found.deployments > 1:
        fewer = found.deployments - 1
        of_workers = [found.uses_of(fewer, number) for number in range(1, found.workers + 1)]
        assert all(max(uses) > most for uses in of_workers), "not with as many workers"


@pytest.mark.parametrize(("apps", "events", "deployments"), [(500, 10_000, 1), (2_000, 30_000_000, 2_000)])
def test_there_are_as_many_deployments_as_the_graph_server_needs(apps: int, events: int, deployments: int) -> None:
    assert plan(apps=apps, events=events, skew=0.5 if deployments == 1 else 0.0).deployments == deployments


def test_a_demand_that_nothing_keeps_up_with_is_refused_by_what_limits() -> None:
    with pytest.raises(InvalidSettings, match=r"no plan helps: the largest app alone, .* a graph server to 25,150%"):
        plan(apps=1, events=10_000_000)
    with pytest.raises(InvalidSettings, match=r"would use a worker to"):
        Capacity(Demand(apps=1, events=1_000), Figures(worker_event=1e6))


def test_a_million_events_of_ten_thousand_apps_need_no_more_than_the_sum_of_their_parts() -> None:
    tenth, whole = (count(plan(apps=10_000, events=events), "mutation") for events in (100_000, 1_000_000))
    assert tenth < whole <= 10 * tenth


def test_an_app_that_is_larger_than_a_worker_is_named() -> None:
    assert "chat" in plan(apps=1, events=20_000).warnings[0]
    assert not plan(apps=1, events=1_000).warnings

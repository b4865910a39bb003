"""The plan of ``graphweft capacity`` follows the measured figures, up to 10,000 apps and a million events a second."""

from __future__ import annotations

import pytest

from graphweft_workers.reports.capacity import MOST_PARTITIONS, Capacity, Demand, Figures


def plan(**demand: float) -> Capacity:
    return Capacity(Demand(**demand), Figures())  # type: ignore[arg-type]


def count(capacity: Capacity, role: str) -> int:
    return next(need.count for need in capacity.needs if need.role == role)


def test_an_event_costs_by_rules_as_measured() -> None:
    """Row c of the benchmarks: 38 and 89 us."""
    few, many = (plan(apps=1, events=100, rules=rules).event_us([100.0])[0] for rules in (10, 1_000))
    assert many / few == pytest.approx(89 / 38, rel=0.05)


def test_an_event_of_many_apps_costs_a_write_of_its_own() -> None:
    """Row s of the benchmarks: 7 times an event of one app and more, if each app of a batch has about one."""
    capacity = plan(apps=1, events=100)
    one, many = capacity.event_us([100.0])[0], capacity.event_us([0.001] * 100_000)[0]
    assert many - one == pytest.approx(Figures().worker_write, rel=0.05)
    assert many / one > 7


@pytest.mark.parametrize("apps", [1, 10, 500, 10_000])
@pytest.mark.parametrize("events", [10, 20_000, 1_000_000])
def test_no_worker_and_no_server_of_a_plan_is_too_busy(apps: int, events: int) -> None:
    capacity = plan(apps=apps, events=events, requests=events / 400)
    if not any("no plan" in warning for warning in capacity.warnings):
        assert all(use <= capacity.demand.use for use in capacity.uses)
    assert capacity.workers <= capacity.partitions <= MOST_PARTITIONS
    assert count(capacity, "mutation") >= count(capacity, "graph server") == capacity.deployments
    assert count(capacity, "gateway") >= 2


def test_a_million_events_of_ten_thousand_apps_need_no_more_than_the_sum_of_their_parts() -> None:
    tenth, whole = (count(plan(apps=10_000, events=events), "mutation") for events in (100_000, 1_000_000))
    assert tenth < whole <= 10 * tenth


def test_an_app_that_is_larger_than_a_worker_is_named() -> None:
    assert "chat" in plan(apps=1, events=100_000).warnings[0]
    assert not plan(apps=1, events=1_000).warnings

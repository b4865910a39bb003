"""The gateway's quotas: rates, what is kept, the counts of refusals, and the neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.services.virtual_time import VirtualClock

from graphweft.client_messages import encoded_event
from graphweft.outbox import EncodedEvent
from graphweft_contracts import Event
from graphweft_workers.apps import AppPolicies, AppPolicy, Quotas
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.gateway.quotas import QuotaLimiter

HOG, NEIGHBOUR = "hog", "neighbour"


def events(number: int, app_id: str = HOG, **data: Any) -> Sequence[EncodedEvent]:
    made = Event.create("x.y", app_id=app_id, chat_id="c", data=data, source="/s", id="i")
    return [encoded_event(made)] * number


ERASE = encoded_event(Event.create("memory.erase", app_id=HOG, chat_id="c", data={"user_id": "u"}, source="/s", id="e"))


def gate_of(clock: VirtualClock, **quotas: float) -> QuotaLimiter:
    policies = AppPolicies(apps={HOG: AppPolicy(quotas=Quotas.model_validate(quotas))})
    return QuotaLimiter(lambda app_id: policies.of(app_id).quotas, clock=clock)


def refusal(gate: QuotaLimiter, app_id: str = HOG) -> Problem:
    with pytest.raises(Problem) as raised:
        gate.check(app_id)
    return raised.value


def test_events_above_the_rate_wait_and_the_neighbour_does_not() -> None:
    clock = VirtualClock()
    gate = gate_of(clock, events_per_s=100)
    gate.take(HOG, events(250))
    problem = refusal(gate)
    assert (problem.status, problem.code) == (429, "over-quota")
    assert problem.headers == {"Retry-After": "2"}
    assert problem.more == {"quota": "events_per_s", "limit": 100, "used": 250}
    assert problem.detail == (
        "this app has used 250 of its 100 events a second; nothing of this request was taken: send it again after 2 s, "
        "or ask the operator for a larger quota"
    )
    for _ in range(100):
        gate.take(NEIGHBOUR, events(500, NEIGHBOUR))
    clock.advance(1.6)
    gate.take(HOG, events(1))
    assert gate.refused == {HOG: {"events_per_s": 1}}


def test_bytes_are_those_of_the_encoded_events() -> None:
    clock = VirtualClock()
    gate = gate_of(clock, bytes_per_s=10_000)
    gate.take(HOG, events(1, text="x" * 50_000))
    problem = refusal(gate)
    assert problem.more["quota"] == "bytes_per_s"
    assert 50_000 < problem.more["used"] < 50_500
    clock.advance(4.5)
    gate.check(HOG)


def test_a_request_that_was_read_while_others_used_up_the_rate_is_refused() -> None:
    gate = gate_of(VirtualClock(), events_per_s=10)
    gate.check(HOG)
    gate.check(HOG)
    gate.take(HOG, events(10))
    with pytest.raises(Problem):
        gate.take(HOG, events(10))
    assert refusal(gate).more["used"] == 10, "what is refused is not counted as used"


@pytest.mark.parametrize("quota", ["stored_bytes", "dead_letters"])
def test_an_app_that_keeps_too_much_is_refused_until_it_keeps_less(quota: Any) -> None:
    gate = gate_of(VirtualClock(), **{quota: 1_000})
    gate.stored = {HOG: {quota: 1_000}, NEIGHBOUR: {quota: 1_000_000}}
    gate.take(HOG, events(1))
    gate.stored = {HOG: {quota: 1_001}, NEIGHBOUR: {quota: 1_000_000}}
    gate.check(HOG)
    with pytest.raises(Problem) as raised:
        gate.take(HOG, [*events(1), ERASE])
    problem = raised.value
    assert (problem.status, problem.code) == (507, "over-quota")
    assert problem.more == {"quota": quota, "limit": 1_000, "used": 1_001}
    assert problem.headers == {"Retry-After": "60"}
    gate.take(HOG, [ERASE])  # who keeps too much can still erase
    gate.take(NEIGHBOUR, events(1, NEIGHBOUR))
    gate.stored = {}
    gate.take(HOG, events(1))
    assert gate.refused == {HOG: {quota: 1}}


def test_another_quota_takes_effect_at_once_and_none_ends_it() -> None:
    current = Quotas(events_per_s=1)
    gate = QuotaLimiter(lambda app_id: current, clock=VirtualClock())
    gate.take(HOG, events(50))
    refusal(gate)
    current = Quotas(events_per_s=100)
    gate.take(HOG, events(100))
    refusal(gate)
    current = Quotas()
    gate.take(HOG, events(1_000))
    gate.check(HOG)

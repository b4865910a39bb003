"""Rates: what is allowed at once, what is owed, and when it is paid off."""

from __future__ import annotations

import pytest

from graphweft.token_bucket import TokenBucket


def test_a_second_of_the_rate_is_allowed_at_once() -> None:
    bucket = TokenBucket(10, 0.0)
    for _ in range(10):
        assert bucket.wait_s(0.0) == 0
        bucket.take(1)
    assert bucket.wait_s(0.0) == pytest.approx(0.1)
    assert bucket.wait_s(0.1) == 0


def test_a_batch_above_the_rate_is_taken_once_and_then_paid_off() -> None:
    bucket = TokenBucket(10, 0.0)
    assert bucket.wait_s(0.0) == 0
    bucket.take(500)
    assert bucket.used == 500
    assert bucket.wait_s(0.0) == pytest.approx(49.1)
    assert bucket.wait_s(49.0) > 0
    assert bucket.wait_s(49.2) == 0


def test_a_rest_brings_no_more_than_one_second() -> None:
    bucket = TokenBucket(10, 0.0)
    assert bucket.wait_s(1_000.0) == 0
    assert bucket.left == 10


def test_a_rate_below_one_a_second_lets_one_through() -> None:
    bucket = TokenBucket(0.5, 0.0)
    assert bucket.wait_s(0.0) == 0
    bucket.take(1)
    assert bucket.wait_s(0.0) == pytest.approx(2.0)
    assert bucket.wait_s(2.0) == 0


@pytest.mark.parametrize("per_s", [0.5, 3, 1_000])
def test_on_average_no_more_than_the_rate_passes(per_s: float) -> None:
    bucket = TokenBucket(per_s, 0.0)
    now, taken = 0.0, 0
    while now < 100:
        now += bucket.wait_s(now)
        if bucket.wait_s(now) == 0:
            bucket.take(7)
            taken += 7
    assert taken <= per_s * now + max(per_s, 1) + 7
    assert taken >= per_s * 100 - 7

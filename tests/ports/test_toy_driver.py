"""The driver of another package passes the suites of the ports, as its author runs them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.ports.toy import sqlite_url
from tests.ports.toy_kits import ToyBusKit, ToyRequestKit
from tests.services.tiers import repeats

from graphweft_workers.testing import BusKit, BusSuite, RequestKit, RequestSuite

__all__ = ("sqlite_url",)  # a fixture

pytestmark = pytest.mark.integration


@repeats(
    BusSuite, "test_workers_share_the_partitions_evenly", "test_a_partition_has_one_owner",
    "test_a_dead_workers_partition_goes_to_the_next", "test_before_reads_few_large_entries_at_once",
    "test_large_entries_come_in_bounded_reads",
)  # fmt: skip
class TestBus(BusSuite):
    @pytest_asyncio.fixture
    async def kit(self, sqlite_url: str) -> AsyncIterator[BusKit]:
        async with contextlib.aclosing(ToyBusKit(sqlite_url)) as kit:
            yield kit


@repeats(
    RequestSuite, "test_requests_that_take_long_already_count_before_they_are_answered",
    "test_a_bus_that_restarts_under_load_is_survived",
)  # fmt: skip
class TestRequests(RequestSuite):
    @pytest.fixture
    def kit(self, sqlite_url: str) -> RequestKit:
        return ToyRequestKit(sqlite_url)

"""What cannot be undone goes by a time that the host and the bus agree on, and a tick comes whoever owns what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.chaos.memory_bus import MemoryLeases, memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft import Event
from graphweft.transport import Transport
from graphweft_contracts.clock import PastClock
from graphweft_workers.engine.job_worker import JobWorker
from graphweft_workers.engine.log.log_time import ClocksDiffer, log_time
from graphweft_workers.features.memory.consolidation import ConsolidationJob
from graphweft_workers.features.memory.retention import Retention
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import GraphStore, Table
from graphweft_workers.ports.job import Job, JobEvent

NOW = datetime(2026, 6, 1, 10, 0, tzinfo=UTC)
DAY = timedelta(days=1)
SKEW_S = 300.0


class OneMemory:
    """A graph with one memory that was said and recorded at a time."""

    def __init__(self, at: datetime) -> None:
        self.at = at.strftime("%Y-%m-%dT%H:%M:%S.000000Z")

    async def apps(self) -> Sequence[str]:
        return ["shop"]

    async def read(self, app_id: str, statement: str, params: dict[str, Any], *, timeout_s: float) -> Any:
        is_next = (params["timestamp"], params["id"]) < (self.at, "m1")
        is_old = "m.timestamp < $before" in statement and self.at < params["before"]
        return Table(columns=(), rows=((self.at, "m1", "c", self.at),) if is_next and is_old else ())


def bus_at(time: datetime | None, newest: datetime = NOW) -> Bus:
    """Return a bus whose server has a time, or does not tell it, and whose log ends with an entry of a time."""

    async def told() -> datetime:
        assert time is not None
        return time

    bus = memory_bus([[Entry(offset="1", fields={}, received=newest)], []])
    return replace(bus, time=None if time is None else told)


async def forgotten(own: datetime, bus: Bus, *, said: datetime) -> list[str]:
    """Return the events of one run of retention, of a worker whose host has a time."""
    graph = cast("GraphStore", OneMemory(said))
    job = ConsolidationJob(graph, bus, None, retention=Retention(graph, keep_days=30), clock=PastClock(own, VIRTUAL))
    return [one.type async for some in job.tick(0, 2) for one in some if isinstance(one, Event)]


async def test_a_clock_that_is_ahead_forgets_no_memory() -> None:
    assert await forgotten(NOW, bus_at(NOW), said=NOW - 31 * DAY) == ["memory.forget"]
    assert await forgotten(NOW, bus_at(NOW), said=NOW - 29 * DAY) == []
    with pytest.raises(ClocksDiffer, match=r"40 days ahead of the bus .*2026-07-11.*synchronize the clocks by NTP"):
        await forgotten(NOW + 40 * DAY, bus_at(NOW), said=NOW)


async def test_a_bus_whose_clock_is_ahead_forgets_no_memory() -> None:
    with pytest.raises(ClocksDiffer, match="3 hours behind the bus"):
        await forgotten(NOW, bus_at(NOW + 3 * timedelta(hours=1)), said=NOW - 31 * DAY)


async def test_a_bus_that_tells_no_time_counts_age_by_its_newest_entry() -> None:
    assert await forgotten(NOW + 40 * DAY, bus_at(None), said=NOW) == []
    assert await forgotten(NOW + 40 * DAY, bus_at(None), said=NOW - 31 * DAY) == ["memory.forget"]
    with pytest.raises(ClocksDiffer, match="behind the newest entry of the log"):
        await forgotten(NOW - DAY, bus_at(None), said=NOW - 90 * DAY)
    empty = memory_bus([[]])
    assert await log_time(empty, skew_s=SKEW_S, clock=PastClock(NOW, VIRTUAL)) < NOW - 20_000 * DAY


async def test_a_small_difference_counts_age_by_the_clock_that_is_behind() -> None:
    late, early = NOW, NOW + timedelta(seconds=SKEW_S)
    for own, other in ((late, early), (early, late)):
        assert await log_time(bus_at(other), skew_s=SKEW_S, clock=PastClock(own, VIRTUAL)) == late


async def test_retention_by_number_needs_no_clock() -> None:
    graph: Any = OneMemory(NOW)
    job = ConsolidationJob(graph, bus_at(NOW), None, retention=Retention(graph, keep_count=0), clock=VIRTUAL)
    assert [one async for some in job.tick(0, 2) for one in some] == []


class Ticked(Job):
    """Counts its ticks, and fails in them if it is told to."""

    group = "graphweft-ticked"
    types = frozenset({"none"})
    tick_s = 600.0

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.ticks: list[float] = []

    async def handle(self, seen: Sequence[JobEvent]) -> AsyncGenerator[Sequence[Event]]:
        yield []

    async def tick(self, partition: int, partitions: int) -> AsyncGenerator[Sequence[Event]]:
        self.ticks.append(VIRTUAL.monotonic())
        if self.failure is not None:
            raise self.failure
        yield []

    async def aclose(self) -> None:
        pass


class ShortLeases(MemoryLeases):
    """Take the partition back every two minutes."""

    def __init__(self) -> None:
        self.claimed_at = 0.0

    async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
        return True

    def is_revoked(self, partition: int) -> bool:
        if VIRTUAL.monotonic() - self.claimed_at < 120.0:
            return False
        self.claimed_at = VIRTUAL.monotonic()
        return True


async def ticks_in(seconds: float, job: Ticked, bus: Bus) -> list[float]:
    worker = JobWorker(bus, cast("Transport", None), job, name="w", clock=VIRTUAL)
    began = VIRTUAL.monotonic()
    task = asyncio.create_task(worker.run())
    await VIRTUAL.sleep(seconds)
    worker.stop()
    await task
    return [at - began for at in job.ticks]


async def test_a_job_ticks_also_where_its_partition_often_changes_its_owner() -> None:
    job = Ticked()
    found = await ticks_in(3_600.0, job, replace(memory_bus([[]]), leases=ShortLeases()))
    assert len(found) in (6, 7), found
    assert found[0] < 60.0, "another owner may have had it for less than the time between two ticks"


async def test_a_job_whose_clock_differs_waits_and_says_so() -> None:
    bus = memory_bus([[]])
    with capture_logs() as logs:
        await ticks_in(120.0, Ticked(ClocksDiffer("the clock of this host is wrong")), bus)
    waits = [line["error"] for line in logs if line["event"] == "job_waits" and line["log_level"] == "warning"]
    assert waits == ["the clock of this host is wrong"]

"""What a worker does for the partitions that it holds while nothing comes, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs
from tests.chaos.memory_bus import memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import BusUnavailable
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.engine.log.leases import Lease, LeaseHolder
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.support.lazy_logger import get_logger

START = CommittedPosition()
ENTRY = Entry(offset="1", fields={}, received=SYSTEM_CLOCK.now())


class Counting:
    """A bus in memory that counts its calls, and gives its one partition to another worker when it is told to."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        made = memory_bus([self.entries])
        self._read, self._claim = made.log.read, made.leases.claim
        self.reads = self.claims = 0
        self.is_taken = self.fails = False
        made.log.read, made.leases.claim = self.read, self.claim  # type: ignore[method-assign]
        self.bus: Bus = replace(made)

    async def read(self, partition: int, after: CommittedPosition, *, limit: int, wait_s: float | None = None) -> Batch:
        self.reads += 1
        return await self._read(partition, after, limit=limit, wait_s=wait_s)

    async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
        self.claims += 1
        if self.fails:
            raise BusUnavailable("no answer")
        return not self.is_taken and await self._claim(partition, owner, ttl_s)


async def held(counting: Counting, work: Callable[[Lease], Awaitable[None]]) -> list[str]:
    """Run some work on the one partition, once; return what was logged."""
    holder = LeaseHolder(counting.bus, name="w", lease_s=10.0, logger=get_logger("graphweft.mutation"), clock=VIRTUAL)

    async def once(lease: Lease) -> None:
        try:
            await work(lease)
        finally:
            holder.stop()

    with capture_logs() as logs:
        await holder.run(once)
    return [log["event"] for log in logs]


async def test_who_has_nothing_else_to_do_reads_once_in_half_a_minute_and_keeps_the_lease() -> None:
    counting = Counting()

    async def work(lease: Lease) -> None:
        for _ in range(20):
            assert await lease.goes_on()
            await lease.read(START, limit=1, quiet=True)

    began = VIRTUAL.monotonic()
    await held(counting, work)
    assert VIRTUAL.monotonic() - began == pytest.approx(600, abs=5)
    assert counting.reads == 20
    assert counting.claims >= 600 / 2.5, "a quarter of the lease"


async def test_who_has_something_else_to_do_gets_a_turn_soon() -> None:
    counting, turns = Counting(), list[float]()

    async def work(lease: Lease) -> None:
        for _ in range(5):
            began = VIRTUAL.monotonic()
            await lease.read(START, limit=1)
            turns.append(VIRTUAL.monotonic() - began)

    await held(counting, work)
    assert turns == pytest.approx([2.5] * 5)


async def test_an_entry_ends_the_wait() -> None:
    counting, found = Counting(), list[str]()

    async def work(lease: Lease) -> None:
        asyncio.get_running_loop().call_later(7, counting.entries.append, ENTRY)
        began = VIRTUAL.monotonic()
        batch = await lease.read(START, limit=1, quiet=True)
        assert VIRTUAL.monotonic() - began < 10
        found.extend(entry.offset for entry in batch.entries)

    await held(counting, work)
    assert found == ["1"]


@pytest.mark.parametrize("end", ["another has it", "it is broken off", "the bus is away", "stop"])
async def test_a_wait_ends_when_the_lease_is_extended_next(end: str) -> None:
    counting, took = Counting(), list[float]()

    async def work(lease: Lease) -> None:
        counting.is_taken, counting.fails = end == "another has it", end == "the bus is away"
        if end == "stop":
            asyncio.get_running_loop().call_later(1, lease._holder.stop)
        elif end == "it is broken off":
            asyncio.get_running_loop().call_later(1, lease.break_off)
        began = VIRTUAL.monotonic()
        try:
            assert not (await lease.read(START, limit=1, quiet=True)).entries
        finally:
            took.append(VIRTUAL.monotonic() - began)
        assert await lease.goes_on() == (end == "it is broken off")

    said = await held(counting, work)
    assert took[0] <= 2.5
    assert said.count("lease_lost") == (end == "another has it")
    assert said.count("partition_interrupted") == (end == "the bus is away")

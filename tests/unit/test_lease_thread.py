"""Leases of a worker whose event loop is blocked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection

import structlog
from structlog.testing import capture_logs
from tests.services.virtual_time import VirtualClock

from graphweft_contracts import BusUnavailable
from graphweft_workers.engine.log.lease_thread import LeaseThread

LOGGER = structlog.get_logger("test")


class Keeper:
    """Notes what is extended."""

    def __init__(self) -> None:
        self.extended: list[tuple[int, ...]] = []
        self.twice = threading.Event()
        self.closed = False
        self.fails = False

    async def extend(self, partitions: Collection[int], owner: str, ttl_s: float) -> int:
        self.extended.append(tuple(sorted(partitions)))
        if self.fails:
            raise BusUnavailable("gone")
        if len(self.extended) == 2:
            self.twice.set()
        return len(partitions)

    async def aclose(self) -> None:
        self.closed = True


async def test_leases_are_extended_only_while_the_loop_is_silent_and_not_for_ever(clock: VirtualClock) -> None:
    keeper = Keeper()
    began = clock.monotonic()
    kept = LeaseThread(keeper, owner="w", lease_s=10.0, logger=LOGGER, clock=clock)
    kept.held |= {3, 1}

    async def look(*times: float) -> None:
        for at in times:
            clock.advance(began + at - clock.monotonic())
            await kept.look()

    with capture_logs() as logs:
        await look(1.0, 2.4)
        assert keeper.extended == []
        await look(2.6, 30.0, 60.0)
        assert keeper.extended == [(1, 3)] * 3
        await look(60.1, 63.0)
        assert keeper.extended == [(1, 3)] * 3
    assert [log["event"] for log in logs] == ["event_loop_blocked", "event_loop_hangs"]


async def test_a_process_that_stood_still_does_not_say_that_its_leases_were_extended(clock: VirtualClock) -> None:
    keeper = Keeper()
    kept = LeaseThread(keeper, owner="w", lease_s=10.0, logger=LOGGER, clock=clock)
    kept.held.add(0)
    with capture_logs() as logs:
        await kept.look()
        clock.advance(70.0)  # as by SIGSTOP: neither the loop nor the thread runs
        await kept.look()
    [log] = logs
    assert log["event"] == "event_loop_blocked"
    assert "stood still too" in log["next"]
    assert keeper.extended == [(0,)]  # those that nobody has taken over


async def test_a_blocked_worker_without_partitions_extends_nothing(clock: VirtualClock) -> None:
    keeper = Keeper()
    kept = LeaseThread(keeper, owner="w", lease_s=10.0, logger=LOGGER, clock=clock)
    clock.advance(30.0)
    await kept.look()
    assert keeper.extended == []
    kept.held.add(0)
    keeper.fails = True
    await kept.look()  # tried again at the next look
    await kept.look()
    assert keeper.extended == [(0,), (0,)]


async def test_the_thread_goes_on_while_the_loop_is_blocked_and_ends_with_it() -> None:
    keeper = Keeper()
    kept = LeaseThread(keeper, owner="w", lease_s=0.2, logger=LOGGER)
    kept.held.add(0)
    living = asyncio.create_task(kept.live())
    await asyncio.sleep(0)  # it starts
    assert keeper.twice.wait(20)  # blocks the event loop
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    assert keeper.closed

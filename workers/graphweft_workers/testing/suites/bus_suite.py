"""The suite of the port of buses."""

from __future__ import annotations

import asyncio

import pytest

from graphweft_contracts import BusUnavailable
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.event_log import CommittedPosition, Entry
from graphweft_workers.testing.suites.bus_kit import (
    START,
    BusKit,
    behind,
    claimed,
    drained,
    kit_ready,
    letter,
    numbered,
    values,
)
from graphweft_workers.testing.suites.dead_letter_suite import DeadLetterSuite
from graphweft_workers.testing.suites.event_log_suite import EventLogSuite
from graphweft_workers.testing.suites.lease_suite import LeaseSuite
from graphweft_workers.testing.suites.rules_log_suite import RulesLogSuite
from graphweft_workers.testing.waiting import until_answered


async def _read_on(bus: Bus, after: CommittedPosition) -> None:
    async with asyncio.timeout(120):
        while True:
            after = behind(after, await bus.log.read(0, after, limit=5, wait_s=0.5))


class BusSuite(EventLogSuite, LeaseSuite, DeadLetterSuite, RulesLogSuite):
    """What the engine relies on in a bus, against the server of a driver."""

    async def test_an_outage_is_said_and_passes(self, own_kit: BusKit) -> None:
        kit = own_kit
        bus = kit.bus()
        await kit_ready(bus, kit)
        await claimed(bus)
        cursor = behind(START, await bus.log.read(0, START, limit=5, wait_s=0))
        await bus.partitions.commit(0, cursor)
        await kit.stop()
        try:
            stranger = kit.bus()
            for call in (
                stranger.partitions.count,
                lambda: stranger.leases.claim(0, "second", 1.0),
                lambda: bus.partitions.committed(0),
                lambda: bus.log.before(0, cursor.offset, limit=3),
                lambda: bus.partitions.commit(0, CommittedPosition(offset=cursor.offset, count=6)),
                bus.partitions.status,
                lambda: bus.dead_letters.put([letter()]),
                lambda: bus.dead_letters.read(limit=3),
                lambda: bus.dead_letters.requeue(letter(), []),
            ):
                with pytest.raises(BusUnavailable):
                    await call()
            with pytest.raises(BusUnavailable):
                await _read_on(bus, cursor)
        finally:
            await kit.start()
        assert (await until_answered(lambda: bus.partitions.committed(0), BusUnavailable)).count >= 5

        async def rest() -> list[Entry]:
            await claimed(bus)
            found = await drained(bus, cursor)
            if not found:
                raise BusUnavailable("not yet")
            return found

        assert values(await until_answered(rest, BusUnavailable)) == numbered(5, 5)
        await until_answered(lambda: bus.dead_letters.put([letter()]), BusUnavailable)
        assert await until_answered(lambda: letter_count(bus.dead_letters), BusUnavailable) == 1

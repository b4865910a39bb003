"""What every bus promises of its log."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from datetime import timedelta

import pytest

from graphweft_contracts import BusUnavailable
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import PAGE_BYTES
from graphweft_workers.replay.moments import place_at, places_at
from graphweft_workers.testing.suites.bus_kit import (
    PARTITIONS,
    START,
    BusFixtures,
    BusKit,
    behind,
    claimed,
    drained,
    kit_ready,
    numbered,
    values,
)
from graphweft_workers.testing.waiting import looks


class EventLogSuite(BusFixtures):
    """Reads are contiguous, in order and bounded, and count what was trimmed."""

    async def test_a_read_is_contiguous_in_order_and_repeats(self, kit: BusKit) -> None:
        bus = kit.bus()
        assert await bus.partitions.count() == PARTITIONS
        await kit.write(0, numbered(700))
        await kit.write(1, [b"other"])
        await claimed(bus)
        first = await drained(bus, limit=64)
        assert values(first) == numbered(700)
        assert [entry.offset for entry in await drained(bus)] == [entry.offset for entry in first]
        middle = CommittedPosition(offset=first[99].offset, count=100)
        assert values(await drained(bus, middle)) == numbered(600, 100)
        for one, other in itertools.pairwise(first):
            assert is_after(other.offset, one.offset)
            assert not is_after(one.offset, other.offset)
        assert is_after(first[0].offset, "")
        assert not is_after("", "")

    async def test_the_time_of_the_bus_is_that_of_its_entries(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        if bus.time is not None:
            before = await bus.time()
            await kit.write(0, [b"now"])
            [entry] = await bus.log.after(0, "", limit=1)
            assert before <= entry.received <= await bus.time()

    async def test_a_read_keeps_its_limit(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        await kit.write(0, numbered(50))
        await claimed(bus)
        batch = await bus.log.read(0, START, limit=7, wait_s=0)
        assert values(batch.entries) == numbered(7)
        batch = await bus.log.read(0, behind(START, batch), limit=1, wait_s=0)
        assert values(batch.entries) == [b"7"]

    async def test_a_read_waits_for_what_is_not_there_yet(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        await claimed(bus)
        assert await bus.log.read(0, START, limit=10, wait_s=0) == Batch(entries=[])
        reading = asyncio.create_task(bus.log.read(0, START, limit=10, wait_s=5))
        await looks(bus.partitions.status, 3)
        assert not reading.done()
        await kit.write(0, [b"late"])
        assert values((await reading).entries) == [b"late"]

    async def test_a_cancelled_read_loses_nothing(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        await claimed(bus)
        found: list[Entry] = []
        after = START
        writing = asyncio.create_task(kit.write(0, numbered(3000)))
        for patience in itertools.cycle([0.0, 0.001, None, 0.004, 0.01, None]):
            reading = asyncio.create_task(bus.log.read(0, after, limit=100, wait_s=1))
            await asyncio.wait([reading], timeout=patience)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                batch = await reading
                found += batch.entries
                after = behind(after, batch)
            if len(found) >= 3000:
                break
        await writing
        assert values(found) == numbered(3000)

    async def test_partitions_are_read_at_once(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        for partition in range(PARTITIONS):
            await claimed(bus, partition)
        await kit.write(0, numbered(2000))
        waiting = asyncio.create_task(bus.log.read(1, START, limit=10, wait_s=5))
        assert values(await drained(bus, limit=500)) == numbered(2000)
        assert not waiting.done()
        await kit.write(1, [b"x"])
        assert values((await waiting).entries) == [b"x"]

    async def test_large_entries_come_in_bounded_reads(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        large = [b"%d" % number * 500_000 for number in range(10)]
        await kit.write(0, [*numbered(300), *large, *large, *large, *large, *large])
        await claimed(bus)
        after, found = START, 0
        while batch := await bus.log.read(0, after, limit=10_000, wait_s=0):
            if not batch.entries:
                break
            assert sum(map(len, values(batch.entries))) <= 24 * 1024**2
            after, found = behind(after, batch), found + len(batch.entries)
        assert found == 350

    async def test_before_reads_back(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        await kit.write(0, numbered(300))
        await claimed(bus)
        entries = await drained(bus)
        assert values(await bus.log.before(0, entries[199].offset, limit=120)) == numbered(120, 80)
        assert values(await bus.log.before(0, entries[4].offset, limit=120)) == numbered(5)
        assert list(await bus.log.before(0, "", limit=5)) == []

    async def test_before_reads_few_large_entries_at_once(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        large = [str(number).encode() + b"x" * 900_000 for number in range(20)]
        await kit.write(0, [*large, *numbered(300)])  # small ones first, going back: their size tells nothing
        end = (await bus.log.after(0, "", limit=1_000))[-1].offset
        found: deque[bytes] = deque()
        while True:
            page = await bus.log.before(0, end, limit=100)
            assert sum(len(value) for value in values(page)) <= PAGE_BYTES
            assert page[-1].offset == end
            found.extendleft(reversed(values(page[:-1] if found else page)))
            if len(page) == 1:
                break
            end = page[0].offset
        assert list(found) == [*large, *numbered(300)]

    async def test_after_reads_on_without_a_claim(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        assert list(await bus.log.after(0, "", limit=5)) == []
        await kit.write(0, numbered(300))
        await kit.write(1, [b"other"])
        entries = await bus.log.after(0, "", limit=1000)
        assert values(entries) == numbered(300)
        assert list(await bus.log.after(0, "", limit=120)) == list(entries[:120])
        assert list(await bus.log.after(0, entries[119].offset, limit=120)) == list(entries[120:240])
        assert list(await bus.log.after(0, entries[239].offset, limit=120)) == list(entries[240:])
        assert list(await bus.log.after(0, entries[299].offset, limit=120)) == []
        assert list(await bus.log.after(0, kit.beyond, limit=120)) == []
        await kit.trim(0, 100)
        assert list(await bus.log.after(0, "", limit=3)) == list(entries[200:203])
        assert list(await bus.log.after(0, entries[10].offset, limit=3)) == list(entries[200:203])
        assert list(await bus.log.after(0, entries[250].offset, limit=3)) == list(entries[251:254])

    async def test_the_place_of_a_time_is_the_last_entry_until_then(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        assert await place_at(bus, 0, SYSTEM_CLOCK.now()) == ""
        for part in range(4):
            await kit.write(0, numbered(100, 100 * part))
        entries = await bus.log.after(0, "", limit=1000)
        assert len(entries) == 400
        times = [each.received for each in entries]
        moments = sorted({*times[::40], *times[-2:]})
        step = timedelta(microseconds=500)
        for moment in [times[0] - step, *(each + shift for each in moments for shift in (-step, timedelta(), step))]:
            expected = [each.offset for each in entries if each.received <= moment]
            assert await place_at(bus, 0, moment) == (expected[-1] if expected else "")
            assert await places_at(bus, [0, 1], moment) == {0: expected[-1] if expected else "", 1: ""}
        await kit.trim(0, 150)
        assert await place_at(bus, 0, times[0] - step) == ""
        assert await place_at(bus, 0, times[-1] + step) == entries[-1].offset

    async def test_what_was_trimmed_unread_is_counted(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        await kit.write(0, numbered(20))
        await claimed(bus)
        cursor = behind(START, await bus.log.read(0, START, limit=5, wait_s=0))
        await kit.trim(0, 17)  # only what was read
        await kit.forget(bus)
        batch = await bus.log.read(0, cursor, limit=2, wait_s=0)
        assert (batch.lost, values(batch.entries)) == (0, numbered(2, 5))
        cursor = behind(cursor, batch)
        await kit.trim(0, 10)
        await kit.trim(0, 8)
        await kit.forget(bus)
        batch = await bus.log.read(0, cursor, limit=2, wait_s=0)
        assert (batch.lost, values(batch.entries)) == (5, numbered(2, 12))
        cursor = behind(cursor, batch)
        await kit.trim(0, 0)
        await kit.forget(bus)
        batch = await bus.log.read(0, cursor, limit=5, wait_s=0)
        assert (batch.lost, list(batch.entries)) == (6, [])
        cursor = behind(cursor, batch)
        assert (await bus.log.read(0, cursor, limit=5, wait_s=0)).lost == 0
        await bus.partitions.commit(0, cursor)
        assert (await bus.partitions.status())[0].lag == 0
        await kit.write(0, numbered(3, 20))
        batch = await bus.log.read(0, cursor, limit=5, wait_s=1)
        assert (batch.lost, values(batch.entries)) == (0, numbered(3, 20))
        await kit.write(0, numbered(5, 23))
        await kit.trim(0, 2)
        await kit.forget(bus)
        again = await bus.log.read(0, await bus.partitions.committed(0), limit=5, wait_s=0)
        assert (again.lost, values(again.entries)) == (6, numbered(2, 26))

    async def test_a_trim_while_a_read_waits_is_counted(self, kit: BusKit) -> None:
        bus = kit.bus()
        await kit_ready(bus, kit)
        await claimed(bus)
        cursor = behind(START, await bus.log.read(0, START, limit=10, wait_s=0))
        await kit.write(0, numbered(5, 10))
        await kit.trim(0, 1)
        await kit.forget(bus)
        batch = await bus.log.read(0, cursor, limit=5, wait_s=2)
        assert (batch.lost, values(batch.entries)) == (4, [b"14"])

    async def test_a_log_that_was_made_anew_is_said(self, kit: BusKit) -> None:
        bus = kit.bus()
        await bus.partitions.count()
        await claimed(bus)
        with pytest.raises(BusUnavailable, match="recreated"):
            await bus.log.read(0, CommittedPosition(offset=kit.beyond, count=42), limit=5, wait_s=1)

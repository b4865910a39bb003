"""What every bus promises of partitions: owners and positions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from graphweft_contracts import BusUnavailable, channels
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.event_log import Committed
from graphweft_workers.testing.suites.bus_kit import (
    OWNER,
    PARTITIONS,
    SESSION_S,
    START,
    BusFixtures,
    BusKit,
    behind,
    claimed,
    drained,
    kit_ready,
    letter,
    numbered,
    values,
)


async def _extend(bus: Bus) -> None:
    while True:
        for partition in range(PARTITIONS):
            assert await bus.leases.claim(partition, OWNER, SESSION_S)
        await asyncio.sleep(0.1)


async def claim_any(bus: Bus, owner: str) -> int:
    """Become the owner of the first partition that can be had."""
    while True:
        for partition in range(PARTITIONS):
            if await bus.leases.claim(partition, owner, SESSION_S):
                return partition
        await asyncio.sleep(0.02)


class Sharer:
    """Claims, extends and gives back as a worker does."""

    lease_s = SESSION_S

    def __init__(self, bus: Bus, name: str) -> None:
        self.bus = bus
        self.name = name
        self.owned: set[int] = set()
        self.gains = 0
        self._stopping = asyncio.Event()
        self._tasks = [asyncio.create_task(self._own(partition)) for partition in range(4)]

    async def stop(self) -> None:
        """Give all back."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def die(self) -> None:
        """Give nothing back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.owned.clear()

    async def _own(self, partition: int) -> None:
        while not self._stopping.is_set():
            try:
                taken = await self.bus.leases.claim(partition, self.name, self.lease_s)
            except BusUnavailable:  # a member that was put out of the group joins anew
                taken = False
            if not taken or self.bus.leases.is_revoked(partition):
                self.owned.discard(partition)
                if taken:
                    await self.bus.leases.release(partition, self.name)
            elif partition not in self.owned:
                self.owned.add(partition)
                self.gains += 1
            await asyncio.sleep(0.05)
        self.owned.discard(partition)
        await self.bus.leases.release(partition, self.name)


async def shared(*workers: Sharer, shares: Sequence[int]) -> None:
    """Wait until the workers have such shares of all partitions, then see that these stay where they are."""

    def fair() -> bool:
        owned = [partition for worker in workers for partition in worker.owned]
        return sorted(len(worker.owned) for worker in workers) == list(shares) and sorted(owned) == [0, 1, 2, 3]

    async with asyncio.timeout(120):
        while not fair():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    gains = [worker.gains for worker in workers]
    await asyncio.sleep(2.0)
    assert fair()
    assert [worker.gains for worker in workers] == gains


class LeaseSuite(BusFixtures):
    """A partition has one owner, who commits how far it is; owners share evenly."""

    async def test_a_partition_has_one_owner(self, kit: BusKit) -> None:
        """Two workers for some time, who give back what is wanted back and take what they get."""
        lease_s = 10.0  # no owner counts as dead, however busy the machine is
        buses = {name: kit.bus(session_s=lease_s) for name in ("first", "second", "third")}
        owners: dict[int, str] = {}
        seen: set[tuple[int, str]] = set()
        stop = asyncio.Event()

        async def work(name: str, bus: Bus, partition: int) -> None:
            while not stop.is_set():
                if not await bus.leases.claim(partition, name, lease_s):
                    await asyncio.sleep(0.05)
                    continue
                assert owners.setdefault(partition, name) == name
                seen.add((partition, name))
                if bus.leases.is_revoked(partition):
                    del owners[partition]
                    await bus.leases.release(partition, name)
                await asyncio.sleep(0.02)

        await buses["first"].partitions.count()
        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            for name, bus in buses.items():
                for partition in range(PARTITIONS):
                    tasks.create_task(work(name, bus, partition))
                await asyncio.sleep(1.0)
            while len(owners) < PARTITIONS:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            stop.set()
        assert {partition for partition, _ in seen} == set(range(PARTITIONS))

    async def test_a_keeper_extends_leases_and_takes_none(self, kit: BusKit) -> None:
        bus = kit.bus()
        await claimed(bus)
        keeper = bus.lease_keeper and bus.lease_keeper()
        if not kit.features.lease_keeper:
            assert keeper is None
            return
        assert keeper is not None
        assert await keeper.extend([0, 1], "other", 1_000.0) == 0
        assert await keeper.extend([0, PARTITIONS + 1], OWNER, 1_000.0) == 1
        await bus.leases.release(0, OWNER)
        assert await keeper.extend([0], OWNER, 1_000.0) == 0
        await keeper.aclose()

    async def test_a_released_partition_goes_to_the_next(self, kit: BusKit) -> None:
        first, second = kit.bus(), kit.bus()
        await kit_ready(first, kit)
        await claimed(first)
        await first.partitions.commit(0, behind(START, await first.log.read(0, START, limit=3, wait_s=0)))
        await first.leases.release(0, OWNER)
        await claimed(second, owner="second")
        assert (await second.partitions.committed(0)).count == 3
        assert values(await drained(second, await second.partitions.committed(0))) == numbered(7, 3)

    async def test_a_dead_workers_partition_goes_to_the_next(self, kit: BusKit) -> None:
        first, second = kit.bus(session_s=1.0), kit.bus()
        await kit_ready(first, kit)
        await claimed(first)
        await kit.die(first)
        for partition in range(PARTITIONS):
            await claimed(second, partition, "second")
        assert values(await drained(second)) == numbered(10)

    async def test_the_next_owner_waits_until_the_batch_in_hand_is_committed(self, kit: BusKit) -> None:
        """Whoever joins takes partitions away: only when they are given back may the new owner begin."""
        first, second = kit.bus(), kit.bus()
        await first.partitions.count()
        for partition in range(PARTITIONS):
            await kit.write(partition, numbered(10))
            await claimed(first, partition)
        extending = asyncio.create_task(_extend(first))
        number_wanted = PARTITIONS if kit.features.revokes_all else 1
        cursors = dict.fromkeys(range(PARTITIONS), START)
        for partition in cursors:
            cursors[partition] = behind(START, await first.log.read(partition, START, limit=6, wait_s=0))
        joining = asyncio.create_task(claim_any(second, "second"))
        if kit.features.revokes_all:
            waiting = asyncio.create_task(first.log.read(0, Committed(offset="9", count=10), limit=1, wait_s=5))
            async with asyncio.timeout(120):
                assert (await waiting).entries == []  # a read ends early then
        async with asyncio.timeout(120):
            while sum(map(first.leases.is_revoked, range(PARTITIONS))) != number_wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await asyncio.sleep(1.5 * SESSION_S)  # who is at work stays a member
        assert not joining.done()
        extending.cancel()
        for partition, cursor in cursors.items():
            await first.partitions.commit(partition, cursor)
            await first.leases.release(partition, OWNER)
        async with asyncio.timeout(120):
            taken = await joining
        committed = await second.partitions.committed(taken)
        assert committed == cursors[taken]
        assert values(await drained(second, committed, taken)) == numbered(4, 6)

    async def test_workers_share_the_partitions_evenly(self, kit: BusKit) -> None:
        first = Sharer(kit.bus(4), "first")
        await shared(first, shares=[4])
        second = Sharer(kit.bus(4), "second")
        await shared(first, second, shares=[2, 2])
        third = Sharer(kit.bus(4), "a newcomer")
        await shared(first, second, third, shares=[1, 1, 2])
        if kit.features.moves_least:
            assert (first.gains, second.gains, third.gains) == (4, 2, 1)  # no more than has to move
        await second.stop()
        await shared(first, third, shares=[2, 2])
        await first.die()
        await kit.die(first.bus)
        await shared(third, shares=[4])
        await third.stop()
        assert [status.owner for status in await third.bus.partitions.status()] == [None] * 4

    async def test_commits_go_forward_only(self, kit: BusKit) -> None:
        bus = kit.bus()
        await kit_ready(bus, kit)
        await claimed(bus)
        assert await bus.partitions.committed(0) == START
        three = behind(START, await bus.log.read(0, START, limit=3, wait_s=0))
        five = behind(three, await bus.log.read(0, three, limit=2, wait_s=0))
        await bus.partitions.commit(0, five)
        await bus.partitions.commit(0, three)
        assert await bus.partitions.committed(0) == five

    async def test_status_knows_the_lag_and_the_owner(self, kit: BusKit) -> None:
        bus = kit.bus()
        await kit_ready(bus, kit)
        assert [status.lag for status in await bus.partitions.status()] == [10, 0]
        await claimed(bus)
        cursor = behind(START, await bus.log.read(0, START, limit=4, wait_s=0))
        await bus.partitions.commit(0, cursor)
        status = (await bus.partitions.status())[0]
        assert (status.position, status.lag, status.owner) == (cursor.offset, 6, OWNER)
        cursor = behind(cursor, await bus.log.read(0, cursor, limit=10, wait_s=0))
        await bus.partitions.commit(0, cursor)
        status = (await bus.partitions.status())[0]
        assert (status.position, status.end, status.lag) == (cursor.offset, cursor.offset, 0)

    async def test_groups_do_not_touch_each_other(self, kit: BusKit) -> None:
        """Each has positions, owners and shares of its own; the log and the dead letters are everybody's."""
        bus, other = kit.bus(), kit.bus(group=channels.MEMORY_GROUP)
        await kit_ready(bus, kit)
        for partition in range(PARTITIONS):
            await claimed(bus, partition)
            await claimed(other, partition, "other")  # at once: nobody has to give anything back
        assert not any(map(bus.leases.is_revoked, range(PARTITIONS)))
        assert [status.owner for status in await bus.partitions.status()] == [OWNER] * PARTITIONS
        assert [status.owner for status in await other.partitions.status()] == ["other"] * PARTITIONS
        three = behind(START, await bus.log.read(0, START, limit=3, wait_s=0))
        await bus.partitions.commit(0, three)
        assert values(await drained(other, await other.partitions.committed(0))) == numbered(10)
        five = behind(START, await other.log.read(0, START, limit=5, wait_s=0))
        await other.partitions.commit(0, five)
        for one, where, lag in ((bus, three, 7), (other, five, 5)):
            assert await one.partitions.committed(0) == where
            status = (await one.partitions.status())[0]
            assert (status.position, status.lag) == (where.offset, lag)
        for partition in range(PARTITIONS):
            await other.leases.release(partition, "other")
        assert [status.owner for status in await bus.partitions.status()] == [OWNER] * PARTITIONS
        await bus.dead_letters.put([letter()])
        assert await letter_count(other.dead_letters) == 1

"""What every bus promises of partitions: owners and positions."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from graphweft_contracts import BusUnavailable, channels
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.event_log import CommittedPosition
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
from graphweft_workers.testing.waiting import until

LONG_S: Final = 30.0
"""A session in which no owner counts as dead, however busy the machine is."""
_ROUNDS: Final = 50
"""Claims of a worker after which each of them has been the owner's rival often."""
_SETTLED: Final = 10
"""Claims of each partition after which none moves any more: shares settle in fewer."""


async def _extend(bus: Bus) -> None:
    """Extend the leases until cancelled."""
    numbers = itertools.count()

    async def extended() -> int:
        for partition in range(PARTITIONS):
            assert await bus.leases.claim(partition, OWNER, SESSION_S)
        return next(numbers)

    await until(extended, lambda _: False)


async def claim_any(bus: Bus, owner: str) -> int:
    """Become the owner of the first partition that can be had."""

    async def taken() -> list[int]:
        for partition in range(PARTITIONS):
            if await bus.leases.claim(partition, owner, SESSION_S):
                return [partition]
        return []

    [partition] = await until(taken, why=f"{owner} owns a partition")
    return partition


class Sharer:
    """Claims, extends and gives back as a worker does."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.bus = bus
        self.name = name
        self.lease_s = LONG_S
        self.owned: set[int] = set()
        self.gains = 0
        self.claims = [0] * 4
        """By partition."""
        self._stopping = asyncio.Event()
        self._tasks = [asyncio.create_task(self._own(partition)) for partition in range(4)]

    async def stop(self) -> None:
        """Give all back."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def die(self) -> None:
        """Give nothing back: the leases run out."""
        self.lease_s = SESSION_S
        await self.goes_on(2)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.owned.clear()

    async def goes_on(self, count: int) -> None:
        """Wait until each partition was claimed so many times more."""
        enough = [number + count for number in self.claims]
        await until(
            lambda: list(self.claims),
            lambda claims: all(number >= least for number, least in zip(claims, enough, strict=True)),
            why=f"{self.name} claims",
        )

    async def _own(self, partition: int) -> None:
        await until(lambda: self._claim(partition), lambda _: self._stopping.is_set())
        self.owned.discard(partition)
        await self.bus.leases.release(partition, self.name)

    async def _claim(self, partition: int) -> int:
        if self._stopping.is_set():  # a claim after the last release would make it a member again
            return self.claims[partition]
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
        self.claims[partition] += 1
        return self.claims[partition]


async def shared(*workers: Sharer, shares: Sequence[int]) -> None:
    """Wait until the workers have such shares of all partitions, then see that these stay where they are."""

    def fair() -> bool:
        owned = [partition for worker in workers for partition in worker.owned]
        return sorted(len(worker.owned) for worker in workers) == list(shares) and sorted(owned) == [0, 1, 2, 3]

    await until(lambda: [sorted(worker.owned) for worker in workers], lambda _: fair(), why=f"shares of {shares}")
    gains = [worker.gains for worker in workers]
    for worker in workers:
        await worker.goes_on(_SETTLED)
    assert fair()
    assert [worker.gains for worker in workers] == gains


async def session_passes(kit: BusKit) -> None:
    """Wait until the bus has dropped an owner of another group who died at the beginning."""
    dead = kit.bus(group=channels.MEMORY_GROUP)
    await claimed(dead, owner="dead")
    await kit.die(dead)
    await claimed(kit.bus(group=channels.MEMORY_GROUP), owner="heir")


class LeaseSuite(BusFixtures):
    """A partition has one owner, who commits how far it is; owners share evenly."""

    async def test_a_partition_has_one_owner(self, kit: BusKit) -> None:
        """Two workers for some time, who give back what is wanted back and take what they get."""
        buses = {name: kit.bus(session_s=LONG_S) for name in ("first", "second", "third")}
        claims: Counter[str] = Counter()
        owners: dict[int, str] = {}
        seen: set[tuple[int, str]] = set()
        stop = asyncio.Event()

        async def work(name: str, bus: Bus, partition: int) -> None:
            async def claim() -> int:
                if not stop.is_set() and await bus.leases.claim(partition, name, LONG_S):
                    assert owners.setdefault(partition, name) == name
                    seen.add((partition, name))
                    if bus.leases.is_revoked(partition):
                        del owners[partition]
                        await bus.leases.release(partition, name)
                claims[name] += 1
                return claims[name]

            await until(claim, lambda _: stop.is_set())

        await buses["first"].partitions.count()
        async with asyncio.TaskGroup() as tasks:
            for name, bus in buses.items():
                for partition in range(PARTITIONS):
                    tasks.create_task(work(name, bus, partition))

                def made(name: str = name) -> int:
                    return claims[name]

                await until(made, lambda count: count >= _ROUNDS, why=f"{name} claims")
            await until(lambda: dict(owners), lambda owners: len(owners) == PARTITIONS, why="each has an owner")
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
            waiting = asyncio.create_task(
                first.log.read(0, CommittedPosition(offset="9", count=10), limit=1, wait_s=300)
            )
            async with asyncio.timeout(120):
                assert (await waiting).entries == []  # a read ends early then
        await until(
            lambda: sum(map(first.leases.is_revoked, range(PARTITIONS))),
            lambda number: number == number_wanted,
            why="what the second is to have is wanted back",
        )
        await session_passes(kit)  # who is at work stays a member
        assert not joining.done()
        extending.cancel()
        for partition, cursor in cursors.items():
            await first.partitions.commit(partition, cursor)
            await first.leases.release(partition, OWNER)
        taken = await joining
        committed = await second.partitions.committed(taken)
        assert committed == cursors[taken]
        assert values(await drained(second, committed, taken)) == numbered(4, 6)

    async def test_workers_share_the_partitions_evenly(self, kit: BusKit) -> None:
        first = Sharer(kit.bus(4), "first")  # it is to die: the session of its bus is a short one
        await shared(first, shares=[4])
        second = Sharer(kit.bus(4, session_s=LONG_S), "second")
        await shared(first, second, shares=[2, 2])
        third = Sharer(kit.bus(4, session_s=LONG_S), "a newcomer")
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
        await other.partitions.commit(0, replace(five, note="far"))
        await other.partitions.commit(1, CommittedPosition(note="waits"))
        assert {name: (each.offset, each.note) for name, each in (await bus.partitions.positions(0)).items()} == {
            channels.MUTATION_GROUP: (three.offset, ""), channels.MEMORY_GROUP: (five.offset, "far"),
        }  # fmt: skip
        assert [each.note for each in (await bus.partitions.positions(1)).values()] == ["waits"]
        await other.partitions.commit(0, five)
        for one, where, lag in ((bus, three, 7), (other, five, 5)):
            assert await one.partitions.committed(0) == where
            status = (await one.partitions.status())[0]
            assert (status.position, status.lag) == (where.offset, lag)
        assert await bus.partitions.status(group=channels.MEMORY_GROUP) == await other.partitions.status()
        for partition in range(PARTITIONS):
            await other.leases.release(partition, "other")
        assert [status.owner for status in await bus.partitions.status()] == [OWNER] * PARTITIONS
        await bus.dead_letters.put([letter()])
        assert await letter_count(other.dead_letters) == 1

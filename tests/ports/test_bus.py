"""What the engine relies on in a bus, held by each driver against its real server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio
import redis as sync_redis
import redis.asyncio as redis
import structlog
from tests.ports import toy
from tests.ports.toy import sqlite_url
from tests.services.layouts import spread

from graphweft_contracts import BusUnavailable, DeadLetter, InvalidSettings, channels, wire
from graphweft_contracts.rules_log import StoredRules, announced
from graphweft_workers.drivers import bus_driver
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.kafka.bus import kafka_bus
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.leases import Lease, LeaseHolder
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count, letter_with, retry_entry
from graphweft_workers.ports.driver import BusOptions
from graphweft_workers.ports.event_log import Batch, Committed, Entry
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import PAGE_BYTES
from graphweft_workers.replay.moments import place_at, places_at

__all__ = ("sqlite_url",)  # a fixture

pytestmark = pytest.mark.integration

PARTITIONS = 2
OWNER = "first"
SESSION_S = 3.0
"""So long that a machine which is busy for a second costs no owner its partition."""
START = Committed()


class Kit(Protocol):
    """One server and what a test does to it behind the driver's back."""

    def bus(
        self, partitions: int = PARTITIONS, group: str = channels.MUTATION_GROUP, *, session_s: float = SESSION_S
    ) -> Bus: ...
    async def write(self, partition: int, values: Sequence[bytes]) -> None: ...
    async def trim(self, partition: int, keep: int) -> None: ...
    async def forget(self, bus: Bus) -> None: ...
    async def stop(self) -> None: ...
    async def start(self) -> None: ...
    async def die(self, bus: Bus) -> None: ...
    async def aclose(self) -> None: ...


class RedisKit:
    lease_s = 1.0

    def __init__(self, url: str, server: EmbeddedServer) -> None:
        self.url = url
        self.server = server
        self.redis: Any = redis.Redis.from_url(url)
        self.buses: list[Bus] = []

    def bus(
        self, partitions: int = PARTITIONS, group: str = channels.MUTATION_GROUP, *, session_s: float = SESSION_S
    ) -> Bus:
        self.buses.append(redis_bus(self.url, new=spread(partitions), group=group))
        return self.buses[-1]

    async def write(self, partition: int, values: Sequence[bytes]) -> None:
        pipeline = self.redis.pipeline(transaction=False)
        for value in values:
            pipeline.xadd(channels.events_stream(partition), {wire.DATA: value})
        await pipeline.execute()

    async def trim(self, partition: int, keep: int) -> None:
        await self.redis.xtrim(channels.events_stream(partition), maxlen=keep, approximate=False)

    async def forget(self, bus: Bus) -> None:
        """Nothing is read ahead."""

    async def stop(self) -> None:
        await self.server.stop()

    async def start(self) -> None:
        await self.server.start()

    async def die(self, bus: Bus) -> None:
        """A Redis worker that dies says nothing; its lease runs out."""

    async def aclose(self) -> None:
        for bus in self.buses:
            await bus.aclose()
        await self.redis.aclose()


class KafkaKit:
    def __init__(self, server: Any) -> None:
        self.server = server
        self.buses: list[Any] = []

    def bus(
        self, partitions: int = PARTITIONS, group: str = channels.MUTATION_GROUP, *, session_s: float = SESSION_S
    ) -> Bus:

        self.buses.append(
            kafka_bus(self.server.url, new=spread(partitions), session_s=session_s, barrier_s=20.0, group=group)
        )
        return self.buses[-1]

    async def write(self, partition: int, values: Sequence[bytes]) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=self.server.bootstrap, enable_idempotence=True)
        await producer.start()
        try:
            for value in values:
                await producer.send(channels.EVENTS_TOPIC, value, partition=partition)
            await producer.flush()
        finally:
            await producer.stop()

    async def trim(self, partition: int, keep: int) -> None:
        from aiokafka import AIOKafkaConsumer, TopicPartition
        from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

        topic_partition = TopicPartition(channels.EVENTS_TOPIC, partition)
        consumer = AIOKafkaConsumer(bootstrap_servers=self.server.bootstrap)
        admin = AIOKafkaAdminClient(bootstrap_servers=self.server.bootstrap)
        await consumer.start()
        await admin.start()
        try:
            end = (await consumer.end_offsets([topic_partition]))[topic_partition]
            await admin.delete_records({topic_partition: RecordsToDelete(end - keep)})
        finally:
            await consumer.stop()
            await admin.close()

    async def forget(self, bus: Bus) -> None:
        """Drop what was read ahead: it is not lost when it is trimmed."""
        await bus.leases.release(0, OWNER)
        await claimed(bus)

    async def stop(self) -> None:
        await asyncio.to_thread(self.server.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)

    async def die(self, bus: Any) -> None:
        """End the member without a word to the group, as ``kill -9`` does."""
        bus.leases._group._consumer._coordinator._maybe_leave_group = _nothing
        bus.leases._group._all_released.set()
        await bus.leases._group._consumer.stop()

    async def aclose(self) -> None:
        for bus in self.buses:
            await bus.aclose()


async def _nothing() -> None:
    return None


class SqliteKit:
    """A bus of another package, which is known by its URL alone."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.buses: list[Bus] = []

    def bus(
        self, partitions: int = PARTITIONS, group: str = channels.MUTATION_GROUP, *, session_s: float = SESSION_S
    ) -> Bus:
        options = BusOptions(group=group, new=spread(partitions), lease_s=session_s)
        self.buses.append(bus_driver(self.url).make_bus(self.url, options))
        return self.buses[-1]

    async def write(self, partition: int, values: Sequence[bytes]) -> None:
        from toy_driver.file import append  # type: ignore[import-not-found]

        entries = [{wire.DATA: value} for value in values]
        await asyncio.to_thread(toy.execute, self.url, lambda db: append(db, partition, entries, time.time()))

    async def trim(self, partition: int, keep: int) -> None:
        newest = "SELECT last - ? FROM ends WHERE partition = ?"
        delete = f"DELETE FROM events WHERE partition = ? AND number <= ({newest})"
        toy.execute(self.url, lambda db: db.execute(delete, (partition, keep, partition)))

    async def forget(self, bus: Bus) -> None:
        """Nothing is read ahead."""

    async def stop(self) -> None:
        toy.stop(self.url)

    async def start(self) -> None:
        toy.start(self.url)

    async def die(self, bus: Bus) -> None:
        """Its lease runs out."""

    async def aclose(self) -> None:
        for bus in self.buses:
            await bus.aclose()


@pytest.fixture(params=["redis", "kafka", "sqlite"])
def made(request: pytest.FixtureRequest) -> Kit:
    if request.param == "sqlite":
        return SqliteKit(request.getfixturevalue("sqlite_url"))
    if request.param == "redis":
        return RedisKit(request.getfixturevalue("url"), request.getfixturevalue("server"))
    request.getfixturevalue("kafka_url")
    return KafkaKit(request.getfixturevalue("kafka"))


@pytest_asyncio.fixture
async def kit(made: Kit) -> AsyncIterator[Kit]:
    yield made
    await made.aclose()


async def claimed(bus: Bus, partition: int = 0, owner: str = OWNER, within_s: float = 60.0) -> None:
    """Become the owner and ask where to begin, as a worker does."""
    async with asyncio.timeout(within_s):
        while not await bus.leases.claim(partition, owner, SESSION_S):  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.02)
    await bus.partitions.committed(partition)


async def drained(bus: Bus, after: Committed = START, partition: int = 0, limit: int = 1000) -> list[Entry]:
    """Read all there is."""
    found: list[Entry] = []
    while True:
        stretch = await bus.log.read(partition, after, limit=limit, wait_s=0)
        if not stretch.entries:
            assert not stretch.lost
            return found
        found += stretch.entries
        after = behind(after, stretch)


def behind(after: Committed, stretch: Batch) -> Committed:
    offset = stretch.entries[-1].offset if stretch.entries else after.offset
    return Committed(offset=offset, count=after.count + stretch.lost + len(stretch.entries))


def values(entries: Sequence[Entry]) -> list[bytes]:
    return [entry.fields[wire.DATA] for entry in entries]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def letter(name: str = "one", **fields: Any) -> DeadLetter:
    given: dict[str, Any] = {"reason": "query_error", "message": "no", "position": "0:1", "time": datetime.now(UTC)}
    return DeadLetter(id=name, fields=wire.pack({wire.DATA: b"payload"}), **{**given, **fields})


async def test_a_read_is_contiguous_in_order_and_repeats(kit: Kit) -> None:
    bus = kit.bus()
    assert await bus.partitions.count() == PARTITIONS
    await kit.write(0, numbered(700))
    await kit.write(1, [b"other"])
    await claimed(bus)
    first = await drained(bus, limit=64)
    assert values(first) == numbered(700)
    assert [entry.offset for entry in await drained(bus)] == [entry.offset for entry in first]
    middle = Committed(offset=first[99].offset, count=100)
    assert values(await drained(bus, middle)) == numbered(600, 100)
    for one, other in itertools.pairwise(first):
        assert is_after(other.offset, one.offset)
        assert not is_after(one.offset, other.offset)
    assert is_after(first[0].offset, "")
    assert not is_after("", "")


async def test_a_read_keeps_its_limit(kit: Kit) -> None:
    bus = kit.bus()
    await bus.partitions.count()
    await kit.write(0, numbered(50))
    await claimed(bus)
    stretch = await bus.log.read(0, START, limit=7, wait_s=0)
    assert values(stretch.entries) == numbered(7)
    stretch = await bus.log.read(0, behind(START, stretch), limit=1, wait_s=0)
    assert values(stretch.entries) == [b"7"]


async def test_a_read_waits_for_what_is_not_there_yet(kit: Kit) -> None:
    bus = kit.bus()
    await bus.partitions.count()
    await claimed(bus)
    assert await bus.log.read(0, START, limit=10, wait_s=0) == Batch(entries=[])
    reading = asyncio.create_task(bus.log.read(0, START, limit=10, wait_s=5))
    await asyncio.sleep(0.3)
    assert not reading.done()
    await kit.write(0, [b"late"])
    assert values((await reading).entries) == [b"late"]


async def test_a_cancelled_read_takes_nothing_away(kit: Kit) -> None:
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
            stretch = await reading
            found += stretch.entries
            after = behind(after, stretch)
        if len(found) >= 3000:
            break
    await writing
    assert values(found) == numbered(3000)


async def test_partitions_are_read_at_once(kit: Kit) -> None:
    bus = kit.bus()
    await bus.partitions.count()
    for partition in range(PARTITIONS):
        await claimed(bus, partition)
    waiting = asyncio.create_task(bus.log.read(1, START, limit=10, wait_s=5))
    await kit.write(0, numbered(2000))
    assert values(await drained(bus, limit=100)) == numbered(2000)
    assert not waiting.done()
    await kit.write(1, [b"x"])
    assert values((await waiting).entries) == [b"x"]


async def test_large_entries_come_in_bounded_reads(kit: Kit) -> None:
    bus = kit.bus()
    await bus.partitions.count()
    large = [b"%d" % number * 500_000 for number in range(10)]
    await kit.write(0, [*numbered(300), *large, *large, *large, *large, *large])
    await claimed(bus)
    after, found = START, 0
    while stretch := await bus.log.read(0, after, limit=10_000, wait_s=0):
        if not stretch.entries:
            break
        assert sum(map(len, values(stretch.entries))) <= 24 * 1024**2
        after, found = behind(after, stretch), found + len(stretch.entries)
    assert found == 350


async def test_before_reads_back(kit: Kit) -> None:
    bus = kit.bus()
    await bus.partitions.count()
    await kit.write(0, numbered(300))
    await claimed(bus)
    entries = await drained(bus)
    assert values(await bus.log.before(0, entries[199].offset, limit=120)) == numbered(120, 80)
    assert values(await bus.log.before(0, entries[4].offset, limit=120)) == numbered(5)
    assert list(await bus.log.before(0, "", limit=5)) == []


async def test_before_reads_few_large_entries_at_once(kit: Kit) -> None:
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


async def test_before_reads_two_entries_of_any_size(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphweft_workers.drivers.redis.event_log.PAGE_BYTES", 1_000)
    kit = RedisKit(url, None)  # type: ignore[arg-type]  # the server is not touched
    bus = kit.bus()
    await kit.write(0, [letter * 2_000 for letter in (b"a", b"b", b"c", b"d")])
    [*_, last] = await bus.log.after(0, "", limit=10)
    assert [value[:1] for value in values(await bus.log.before(0, last.offset, limit=10))] == [b"c", b"d"]
    await kit.aclose()


async def test_after_reads_on_without_a_claim(kit: Kit) -> None:
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
    beyond = "99999999999999-0" if isinstance(kit, RedisKit) else "99999"
    assert list(await bus.log.after(0, beyond, limit=120)) == []
    await kit.trim(0, 100)
    assert list(await bus.log.after(0, "", limit=3)) == list(entries[200:203])
    assert list(await bus.log.after(0, entries[10].offset, limit=3)) == list(entries[200:203])
    assert list(await bus.log.after(0, entries[250].offset, limit=3)) == list(entries[251:254])


async def test_the_place_of_a_time_is_the_last_entry_until_then(kit: Kit) -> None:
    bus = kit.bus()
    await bus.partitions.count()
    assert await place_at(bus, 0, datetime.now(UTC)) == ""
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


async def test_a_place_in_years_of_entries_is_found_by_few_reads(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(3)
    stamps = sorted(dice.randrange(1_500_000_000_000, 1_800_000_000_000) for _ in range(3_000))
    async with redis.Redis.from_url(url) as raw, contextlib.aclosing(redis_bus(url, new=spread(2))) as bus:
        await bus.partitions.count()
        pipeline = raw.pipeline(transaction=False)
        for number, stamp in enumerate(stamps):
            pipeline.xadd(channels.events_stream(0), {wire.DATA: b"x"}, id=f"{stamp}-{number}")
        await pipeline.execute()
        reads = 0
        before = bus.log.before

        async def counted(partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
            nonlocal reads
            reads += 1
            return await before(partition, offset, limit=limit)

        monkeypatch.setattr(bus.log, "before", counted)
        for at in (0, 1, 1_234, 2_999):
            moment = datetime.fromtimestamp(stamps[at] / 1000, UTC)
            assert await place_at(bus, 0, moment) == f"{stamps[at]}-{at}"
        assert reads < 4 * 50


async def test_a_partition_has_one_owner(kit: Kit) -> None:
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
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for name, bus in buses.items():
            for partition in range(PARTITIONS):
                tasks.create_task(work(name, bus, partition))
            await asyncio.sleep(1.0)
        while len(owners) < PARTITIONS:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        stop.set()
    assert {partition for partition, _ in seen} == set(range(PARTITIONS))


async def test_a_keeper_extends_leases_and_takes_none(kit: Kit) -> None:
    bus = kit.bus()
    await claimed(bus)
    keeper = bus.lease_keeper and bus.lease_keeper()
    if not isinstance(kit, RedisKit):
        assert keeper is None
        return
    assert keeper is not None
    lease, group = channels.lease(0, channels.MUTATION_GROUP), channels.workers(channels.MUTATION_GROUP)
    assert await keeper.extend([0, 1], "other", 1_000.0) == 0
    assert await kit.redis.pttl(lease) < 100_000
    assert await keeper.extend([0, PARTITIONS + 1], OWNER, 1_000.0) == 1
    assert await kit.redis.pttl(lease) > 100_000
    assert [name for name, _ in await kit.redis.zrange(group, 0, -1, withscores=True)] == [OWNER.encode()]
    await bus.leases.release(0, OWNER)
    assert await keeper.extend([0], OWNER, 1_000.0) == 0
    assert not await kit.redis.exists(lease, group)
    await keeper.aclose()


async def test_a_blocked_event_loop_keeps_its_leases(url: str) -> None:
    bus = redis_bus(url, new=spread(1))
    watcher = sync_redis.Redis.from_url(url)
    holder = LeaseHolder(bus, name=OWNER, lease_s=SESSION_S, logger=structlog.get_logger("test"))
    lease = channels.lease(0, channels.MUTATION_GROUP)
    extended = 0

    async def work(_: Lease) -> None:
        nonlocal extended
        left = watcher.pttl(lease)
        while extended < 5 and left > 0:  # blocks the event loop until the lease is extended or gone
            now = int(watcher.pttl(lease))
            extended += now > left
            left = now
        holder.stop()

    await holder.run(work)
    assert extended == 5
    assert watcher.get(lease) is None  # released
    watcher.close()
    await bus.aclose()


async def test_a_released_partition_goes_to_the_next(kit: Kit) -> None:
    first, second = kit.bus(), kit.bus()
    await kit_ready(first, kit)
    await claimed(first)
    await first.partitions.commit(0, behind(START, await first.log.read(0, START, limit=3, wait_s=0)))
    await first.leases.release(0, OWNER)
    await claimed(second, owner="second")
    assert (await second.partitions.committed(0)).count == 3
    assert values(await drained(second, await second.partitions.committed(0))) == numbered(7, 3)


async def kit_ready(bus: Bus, kit: Kit) -> None:
    await bus.partitions.count()
    await kit.write(0, numbered(10))


async def test_a_dead_workers_partition_goes_to_the_next(kit: Kit) -> None:
    first, second = kit.bus(session_s=1.0), kit.bus()
    await kit_ready(first, kit)
    await claimed(first)
    await kit.die(first)
    for partition in range(PARTITIONS):
        await claimed(second, partition, "second")
    assert values(await drained(second)) == numbered(10)


async def test_the_next_owner_waits_until_the_batch_in_hand_is_committed(kit: Kit) -> None:
    """Whoever joins takes partitions away: only when they are given back may the new owner begin."""
    first, second = kit.bus(), kit.bus()
    await first.partitions.count()
    for partition in range(PARTITIONS):
        await kit.write(partition, numbered(10))
        await claimed(first, partition)
    extending = asyncio.create_task(_extend(first))
    number_wanted = PARTITIONS if isinstance(kit, KafkaKit) else 1  # a group of Kafka's gives all back
    cursors = dict.fromkeys(range(PARTITIONS), START)
    for partition in cursors:
        cursors[partition] = behind(START, await first.log.read(partition, START, limit=6, wait_s=0))
    joining = asyncio.create_task(_claim_any(second, "second"))
    if isinstance(kit, KafkaKit):
        waiting = asyncio.create_task(first.log.read(0, Committed(offset="9", count=10), limit=1, wait_s=5))
        async with asyncio.timeout(60):
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


async def _extend(bus: Bus) -> None:
    while True:
        for partition in range(PARTITIONS):
            assert await bus.leases.claim(partition, OWNER, SESSION_S)
        await asyncio.sleep(0.1)


async def _claim_any(bus: Bus, owner: str) -> int:
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
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def die(self) -> None:
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


async def test_workers_share_the_partitions_evenly(kit: Kit) -> None:
    first = Sharer(kit.bus(4), "first")
    await shared(first, shares=[4])
    second = Sharer(kit.bus(4), "second")
    await shared(first, second, shares=[2, 2])
    third = Sharer(kit.bus(4), "a newcomer")
    await shared(first, second, third, shares=[1, 1, 2])
    if isinstance(kit, RedisKit):
        assert (first.gains, second.gains, third.gains) == (4, 2, 1)  # no more than has to move
    await second.stop()
    await shared(first, third, shares=[2, 2])
    await first.die()
    await kit.die(first.bus)
    await shared(third, shares=[4])
    await third.stop()
    assert [status.owner for status in await third.bus.partitions.status()] == [None] * 4


@pytest.mark.parametrize("seed", range(8))
async def test_redis_leases_settle_whoever_comes_and_goes(url: str, seed: int) -> None:
    """The same without time: rounds in which each worker claims, and gives back what is wanted back."""
    dice = random.Random(seed)
    async with contextlib.aclosing(RedisKit(url, None)) as kit:  # type: ignore[arg-type]
        partitions = dice.randint(1, 9)
        workers: dict[str, Bus] = {}
        owners: dict[int, str] = {}
        names = [f"w{number}" for number in range(7)]

        async def work(name: str, bus: Bus) -> int:
            moves = 0
            for partition in dice.sample(range(partitions), partitions):
                taken = await bus.leases.claim(partition, name, 60.0)
                assert taken == (owners.get(partition) == name) or partition not in owners
                if taken and partition not in owners:
                    owners[partition], moves = name, moves + 1
                if bus.leases.is_revoked(partition):
                    assert owners.pop(partition) == name
                    moves += 1
                    await bus.leases.release(partition, name)
                    assert not await bus.leases.claim(partition, name, 60.0)  # it is for somebody else
            return moves

        async def round_() -> int:
            return sum([await work(name, workers[name]) for name in dice.sample(sorted(workers), len(workers))])

        for _ in range(12):
            if name := dice.choice([name for name in names if name not in workers] or [""]):
                workers[name] = kit.bus(partitions)
            while len(workers) > 1 and dice.random() < 0.4:
                name = dice.choice(sorted(workers))
                for partition in range(partitions):
                    await workers[name].leases.release(partition, name)
                del workers[name]
                owners = {partition: owner for partition, owner in owners.items() if owner != name}
            await round_()  # from now on all know of one another
            rounds = 0
            while await round_():
                rounds += 1
                assert rounds < 10
            held = sorted(list(owners.values()).count(name) for name in workers)
            assert sum(held) == partitions
            assert held[-1] - held[0] <= 1
            assert not await round_()


async def test_redis_counts_a_worker_that_gives_some_back(url: str) -> None:
    async with contextlib.aclosing(RedisKit(url, None)) as kit:  # type: ignore[arg-type]
        first, second = kit.bus(4), kit.bus(4)
        assert [await first.leases.claim(partition, OWNER, 60.0) for partition in range(4)] == [True] * 4
        for partition in (1, 2, 3):
            await first.leases.release(partition, OWNER)
        assert [await second.leases.claim(partition, "second", 60.0) for partition in range(4)] == [
            False,
            True,
            True,
            False,
        ]
        await first.leases.release(0, OWNER)
        assert await second.leases.claim(0, "second", 60.0)


async def test_redis_one_name_is_one_worker(url: str) -> None:
    async with contextlib.aclosing(RedisKit(url, None)) as kit:  # type: ignore[arg-type]
        one, twin = kit.bus(), kit.bus()
        for _ in range(2):
            for bus in (one, twin):
                for partition in range(PARTITIONS):
                    assert await bus.leases.claim(partition, "twin", 60.0)
                    assert not bus.leases.is_revoked(partition)


async def test_commits_go_forward_only(kit: Kit) -> None:
    bus = kit.bus()
    await kit_ready(bus, kit)
    await claimed(bus)
    assert await bus.partitions.committed(0) == START
    three = behind(START, await bus.log.read(0, START, limit=3, wait_s=0))
    five = behind(three, await bus.log.read(0, three, limit=2, wait_s=0))
    await bus.partitions.commit(0, five)
    await bus.partitions.commit(0, three)
    assert await bus.partitions.committed(0) == five


async def test_status_knows_the_lag_and_the_owner(kit: Kit) -> None:
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


async def test_groups_do_not_touch_each_other(kit: Kit) -> None:
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


async def test_what_was_trimmed_unread_is_counted(kit: Kit) -> None:
    bus = kit.bus()
    await bus.partitions.count()
    await kit.write(0, numbered(20))
    await claimed(bus)
    cursor = behind(START, await bus.log.read(0, START, limit=5, wait_s=0))
    await kit.trim(0, 17)  # only what was read
    await kit.forget(bus)
    stretch = await bus.log.read(0, cursor, limit=2, wait_s=0)
    assert (stretch.lost, values(stretch.entries)) == (0, numbered(2, 5))
    cursor = behind(cursor, stretch)
    await kit.trim(0, 10)
    await kit.trim(0, 8)
    await kit.forget(bus)
    stretch = await bus.log.read(0, cursor, limit=2, wait_s=0)
    assert (stretch.lost, values(stretch.entries)) == (5, numbered(2, 12))
    cursor = behind(cursor, stretch)
    await kit.trim(0, 0)
    await kit.forget(bus)
    stretch = await bus.log.read(0, cursor, limit=5, wait_s=0)
    assert (stretch.lost, list(stretch.entries)) == (6, [])
    cursor = behind(cursor, stretch)
    assert (await bus.log.read(0, cursor, limit=5, wait_s=0)).lost == 0
    await bus.partitions.commit(0, cursor)
    assert (await bus.partitions.status())[0].lag == 0
    await kit.write(0, numbered(3, 20))
    stretch = await bus.log.read(0, cursor, limit=5, wait_s=1)
    assert (stretch.lost, values(stretch.entries)) == (0, numbered(3, 20))
    await kit.write(0, numbered(5, 23))
    await kit.trim(0, 2)
    await kit.forget(bus)
    again = await bus.log.read(0, await bus.partitions.committed(0), limit=5, wait_s=0)
    assert (again.lost, values(again.entries)) == (6, numbered(2, 26))


async def test_a_trim_while_a_read_waits_is_counted(kit: Kit) -> None:
    bus = kit.bus()
    await kit_ready(bus, kit)
    await claimed(bus)
    cursor = behind(START, await bus.log.read(0, START, limit=10, wait_s=0))
    await kit.write(0, numbered(5, 10))
    await kit.trim(0, 1)
    await kit.forget(bus)
    stretch = await bus.log.read(0, cursor, limit=5, wait_s=2)
    assert (stretch.lost, values(stretch.entries)) == (4, [b"14"])


async def test_redis_counts_exactly_however_a_stream_is_trimmed(url: str) -> None:
    """Also roughly, by whole nodes of the stream, and by id."""
    async with contextlib.aclosing(RedisKit(url, None)) as kit:  # type: ignore[arg-type]
        bus = kit.bus()
        stream = channels.events_stream(0)
        await bus.partitions.committed(0)
        await kit.write(0, numbered(1000))
        cursor = behind(START, await bus.log.read(0, START, limit=130, wait_s=0))
        read = 130
        for how in (("MAXLEN", "~", 700), ("MINID", "=", None), ("MAXLEN", "=", 300), ("MINID", "~", None)):
            kind, sign, bound = how
            if bound is None:
                ids = [found for found, _ in await kit.redis.xrange(stream)]
                bound = ids[len(ids) // 3]
            await kit.redis.execute_command("XTRIM", stream, kind, sign, bound)
            stretch = await bus.log.read(0, cursor, limit=20, wait_s=0)
            first = int(values(stretch.entries)[0])
            assert stretch.lost == first - read
            cursor, read = behind(cursor, stretch), first + 20
        assert read > 150


async def test_a_log_that_was_made_anew_is_said(kit: Kit) -> None:
    bus = kit.bus()
    await bus.partitions.count()
    await claimed(bus)
    offset = "99999999999999-0" if isinstance(kit, RedisKit) else "41"
    with pytest.raises(BusUnavailable, match="recreated"):
        await bus.log.read(0, Committed(offset=offset, count=42), limit=5, wait_s=1)


async def test_redis_says_when_a_stream_was_made_anew(url: str) -> None:
    async with contextlib.aclosing(RedisKit(url, None)) as kit:  # type: ignore[arg-type]
        bus = kit.bus()
        await bus.partitions.committed(0)
        await kit.write(0, numbered(10))
        cursor = behind(START, await bus.log.read(0, START, limit=10, wait_s=0))
        await kit.redis.delete(channels.events_stream(0))
        await kit.write(0, numbered(2))
        with pytest.raises(BusUnavailable, match="recreated"):
            await bus.log.read(0, cursor, limit=10, wait_s=0)
        assert values(
            (await bus.log.read(0, await bus.partitions.committed(0), limit=10, wait_s=0)).entries
        ) == numbered(2)


async def test_dead_letters_are_kept_by_id_oldest_first(kit: Kit) -> None:
    bus, other = kit.bus(), kit.bus()
    assert await letter_count(bus.dead_letters) == 0
    assert list(await bus.dead_letters.read(limit=5)) == []
    assert await letter_with(bus.dead_letters, "one") is None
    letters = [letter(str(number)) for number in range(5)]
    await bus.dead_letters.put(letters[:2])
    await bus.dead_letters.put(letters[2:])
    assert await letter_count(bus.dead_letters) == 5
    assert list(await bus.dead_letters.read(limit=3)) == letters[:3]
    longer = letters[1].model_copy(update={"until": "0:9", "count": 8, "time": datetime.now(UTC)})
    await bus.dead_letters.put([longer])
    assert await letter_with(bus.dead_letters, "1") == longer
    assert await letter_count(other.dead_letters) == 5
    assert list(await other.dead_letters.read(limit=9)) == [letters[0], *letters[2:], longer]


async def test_dead_letters_are_read_by_app_and_by_size(kit: Kit) -> None:
    bus = kit.bus()
    text = "x" * 10_000
    letters = [letter(f"{app}{number}", app_id=app, message=text) for number in range(3) for app in ("x", "y")]
    await bus.dead_letters.put(letters)
    assert [each.id for each in await bus.dead_letters.read(limit=9, app_id="y")] == ["y0", "y1", "y2"]
    assert [each.id for each in await bus.dead_letters.read(limit=2, app_id="y")] == ["y0", "y1"]
    assert [each.id for each in await bus.dead_letters.read(limit=9, app_id="z")] == []
    assert [each.id for each in await bus.dead_letters.read(limit=9, size=1)] == ["x0"], "at least one"
    assert [each.id for each in await bus.dead_letters.read(limit=9, app_id="x", size=25_000)] == ["x0", "x1"]
    assert len(await bus.dead_letters.read(limit=9, size=100_000)) == 6
    among = ("y2", "x0", "y0", "z0")
    assert list(await bus.dead_letters.read(limit=9, ids=among)) == [letters[0], letters[1], letters[5]]
    assert list(await bus.dead_letters.read(limit=1, app_id="y", ids=among)) == [letters[1]]
    assert [each.id for each in await bus.dead_letters.read(limit=9, size=1, ids=among)] == ["x0"]


async def test_dead_letters_are_read_without_their_entries(kit: Kit) -> None:
    bus = kit.bus()
    message = ',"fields":{"x":"y"}} \\",\\"fields\\":{ \u20ac'
    letters = [
        letter(f"{number:03}", app_id="xy"[number % 2], message=message, offsets=("1", "2"), count=2)
        for number in range(105)
    ]
    large = letter("large", app_id="x", rule="r", mutation="m", place="f:1").model_copy(
        update={"fields": wire.pack({wire.DATA: b"a" * 600_000})}
    )
    await bus.dead_letters.put([*letters, large])
    bare = [each.model_copy(update={"fields": {}}) for each in (*letters, large)]
    before = None
    if isinstance(kit, RedisKit):
        before = (await kit.redis.info("stats"))["total_net_output_bytes"]
    assert list(await bus.dead_letters.read(limit=200, whole=False)) == bare
    if isinstance(kit, RedisKit):
        assert (await kit.redis.info("stats"))["total_net_output_bytes"] - before < 100_000, "the server cuts them"
    assert list(await bus.dead_letters.read(limit=103, whole=False)) == bare[:103]
    assert list(await bus.dead_letters.read(limit=2, app_id="y", whole=False)) == [bare[1], bare[3]]
    assert list(await bus.dead_letters.read(limit=9, size=1, whole=False)) == bare[:1]
    assert list(await bus.dead_letters.read(limit=200)) == [*letters, large]


async def test_letters_are_counted_by_app_whoever_writes_and_removes_them(kit: Kit) -> None:
    bus, other = kit.bus(), kit.bus(group=channels.MEMORY_GROUP)
    await bus.partitions.count()
    await claimed(bus)
    assert await bus.dead_letters.by_app() == {}
    mine = [letter(f"m{number}", app_id="hog", message="x" * 1_000) for number in range(3)]
    await bus.dead_letters.put([*mine, letter("n", app_id="neighbour"), letter("none")])
    await other.dead_letters.put(mine[:1])  # again
    found = await other.dead_letters.by_app()
    assert {app_id: each.count for app_id, each in found.items()} == {"hog": 3, "neighbour": 1, "": 1}
    assert 3_000 < found["hog"].size < 4_000
    assert 100 < found["neighbour"].size < 500
    longer = mine[0].of_entries(("1", "2"))
    assert await bus.dead_letters.extend(mine[0], longer)
    assert await bus.dead_letters.extend(None, letter("new", app_id="hog"))
    assert not await bus.dead_letters.extend(None, letter("new", app_id="hog"))
    assert (await bus.dead_letters.by_app())["hog"].count == 4
    rest = longer.of_entries(("2",)).model_copy(update={"id": "rest", "app_id": "neighbour"})
    assert await bus.dead_letters.requeue(longer, [{wire.DATA: b"1"}], rest)
    assert await other.dead_letters.requeue(mine[1], [{wire.DATA: b"1"}])
    found = await bus.dead_letters.by_app()
    assert {app_id: each.count for app_id, each in found.items()} == {"hog": 2, "neighbour": 2, "": 1}
    for each in await bus.dead_letters.read(limit=9):
        assert await bus.dead_letters.requeue(each, [{wire.DATA: b"1"}])
    assert await bus.dead_letters.by_app() == await other.dead_letters.by_app() == {}


async def test_records_of_usage_are_replaced_and_removed(kit: Kit) -> None:
    bus, other = kit.bus(), kit.bus(group=channels.MEMORY_GROUP)
    await bus.partitions.count()
    assert (await bus.usage.after(None)).found == {}
    await bus.usage.put("partition:0", b"1")
    await other.usage.put("gateway:a b", b"{}")
    assert (await bus.usage.after(None)).found == {"partition:0": b"1", "gateway:a b": b"{}"}
    await bus.usage.put("partition:0", b"x" * 900_000)
    await bus.usage.put("gateway:a b", None)
    await bus.usage.put("unknown", None)
    assert (
        (await bus.usage.after(None)).found == (await other.usage.after(None)).found == {"partition:0": b"x" * 900_000}
    )


async def test_a_letter_is_put_back_once(kit: Kit) -> None:
    bus = kit.bus()
    await kit_ready(bus, kit)
    await claimed(bus)
    cursor = behind(START, await bus.log.read(0, START, limit=50, wait_s=0))
    buried = letter(rule="r", mutation="m")
    await bus.dead_letters.put([buried, letter("kept")])
    assert await bus.dead_letters.requeue(buried, [retry_entry(buried), {wire.DATA: b"second"}])
    assert not await bus.dead_letters.requeue(buried, [retry_entry(buried)])
    assert [found.id for found in await bus.dead_letters.read(limit=5)] == ["kept"]
    stretch = await bus.log.read(0, cursor, limit=50, wait_s=2)
    assert values(stretch.entries) == [b"payload", b"second"]
    assert wire.retry_of(stretch.entries[0].fields) == wire.Retry("one", "r", "m")
    await bus.partitions.commit(0, behind(cursor, stretch))
    assert (await bus.partitions.status())[0].lag == 0
    assert (await bus.partitions.status())[1].lag == 0


async def test_a_letter_that_changed_is_not_put_back(kit: Kit) -> None:
    bus, other = kit.bus(), kit.bus()
    await bus.partitions.count()
    await claimed(bus)
    old = letter(count=3, until="0:4")
    await bus.dead_letters.put([old])
    new = old.model_copy(update={"count": 4})
    await other.dead_letters.put([new])
    assert not await bus.dead_letters.requeue(old, [retry_entry(old)])
    assert list(await bus.dead_letters.read(limit=5)) == [new]
    assert await drained(bus) == []


async def test_a_letter_is_put_back_in_parts(kit: Kit) -> None:
    bus = kit.bus()
    await bus.partitions.count()
    await claimed(bus)
    whole = letter(count=3, until="0:4")
    await bus.dead_letters.put([whole])
    rest = whole.model_copy(update={"position": "0:2", "count": 2})
    assert await bus.dead_letters.requeue(whole, [{wire.DATA: b"1"}], rest)
    assert list(await bus.dead_letters.read(limit=5)) == [rest]
    last = letter("other name", count=1)
    assert await bus.dead_letters.requeue(rest, [{wire.DATA: b"2"}], last)
    assert list(await bus.dead_letters.read(limit=5)) == [last]
    assert await bus.dead_letters.requeue(last, [{b"no": b"data"}])
    assert await letter_count(bus.dead_letters) == 0
    assert [dict(entry.fields) for entry in await drained(bus)] == [
        {wire.DATA: b"1"},
        {wire.DATA: b"2"},
        {b"no": b"data"},
    ]
    await bus.dead_letters.put([last])
    assert await bus.dead_letters.requeue(last, [])
    assert await letter_count(bus.dead_letters) == 0


async def test_two_that_put_a_letter_back_at_once_do_it_once(kit: Kit) -> None:
    bus, others = kit.bus(), [kit.bus() for _ in range(3)]
    await bus.partitions.count()
    await claimed(bus)
    buried = letter()
    await bus.dead_letters.put([buried])
    outcomes = await asyncio.gather(
        *(other.dead_letters.requeue(buried, [retry_entry(buried)]) for other in others), return_exceptions=True
    )
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(failure, BusUnavailable) for failure in failures), failures
    done = outcomes.count(True)
    if not done:  # they fenced each other off; whoever repeats it succeeds
        assert await bus.dead_letters.requeue(buried, [retry_entry(buried)])
    assert done <= 1
    assert await letter_count(bus.dead_letters) == 0
    assert len((await bus.log.read(0, START, limit=9, wait_s=5)).entries) == 1
    assert len(await drained(bus)) == 1


async def eventually(call: Callable[[], Awaitable[Any]], within_s: float = 90.0) -> Any:
    async with asyncio.timeout(within_s):
        while True:
            try:
                return await call()
            except BusUnavailable:
                await asyncio.sleep(0.1)


async def _read_on(bus: Bus, after: Committed) -> None:
    async with asyncio.timeout(60):
        while True:
            after = behind(after, await bus.log.read(0, after, limit=5, wait_s=0.5))


async def test_an_outage_is_said_and_passes(kit: Kit) -> None:
    if isinstance(kit, RedisKit):
        folder = tempfile.mkdtemp(prefix="graphweft-bus-")
        server = EmbeddedServer(Path(folder))
        await server.start()
        kit = RedisKit(f"unix://{server.socket}", server)
    try:
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
                lambda: bus.log.before(0, "5-0" if isinstance(kit, RedisKit) else "4", limit=3),
                lambda: bus.partitions.commit(0, Committed(offset=cursor.offset, count=6)),
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
        assert (await eventually(lambda: bus.partitions.committed(0))).count >= 5

        async def rest() -> list[Entry]:
            await claimed(bus)
            found = await drained(bus, cursor)
            if not found:
                raise BusUnavailable("not yet")
            return found

        assert values(await eventually(rest)) == numbered(5, 5)
        await eventually(lambda: bus.dead_letters.put([letter()]))
        assert await eventually(lambda: letter_count(bus.dead_letters)) == 1
    finally:
        if isinstance(kit, RedisKit):
            await kit.aclose()
            await kit.stop()


def quick_kafka_bus(url: str, **options: Any) -> Any:
    return kafka_bus(url, **{"new": spread(PARTITIONS), "session_s": SESSION_S, "barrier_s": 20.0, **options})


@contextlib.asynccontextmanager
async def kafka_producer(url: str, **options: Any) -> AsyncIterator[Any]:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=url.removeprefix("kafka://"), **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def test_kafka_records_of_others_do_not_stop_a_partition(kafka_url: str) -> None:
    async with contextlib.aclosing(quick_kafka_bus(kafka_url)) as bus:
        await bus.partitions.count()
        async with kafka_producer(kafka_url) as producer:
            for value, headers in (
                (None, [("ce_id", b"1")]),
                (b"x", [("h", b"one"), ("h", b"two")]),
                (b"x", [("h", b"\xff\xfe"), ("empty", None), ("data", b"not the event")]),
                (b"\xff", []),
                (b"last", []),
            ):
                await producer.send_and_wait(channels.EVENTS_TOPIC, value, key=b"k", partition=0, headers=headers)
            await producer.send_and_wait(channels.EVENTS_TOPIC, b"old", partition=0, timestamp_ms=1)
        await claimed(bus)
        entries = await drained(bus)
    assert [dict(entry.fields) for entry in entries[:4]] == [
        {b"ce_id": b"1"},
        {b"h": b"two", wire.DATA: b"x"},
        {b"h": b"\xff\xfe", b"empty": b"", wire.DATA: b"x"},
        {wire.DATA: b"\xff"},
    ]
    assert values(entries[4:]) == [b"last", b"old"]
    assert all(abs((datetime.now(UTC) - entry.received).total_seconds()) < 300 for entry in entries)  # the log's time


class BadName(str):
    """A header name that is no UTF-8 on the wire."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xfe"


async def test_kafka_header_names_that_are_no_text_do_not_stop_a_partition(kafka_url: str) -> None:
    from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

    async with contextlib.aclosing(quick_kafka_bus(kafka_url)) as bus:
        await bus.partitions.count()
        async with kafka_producer(kafka_url) as producer:
            batch = producer.create_batch()
            batch._builder = _DefaultRecordBatchBuilderPy(
                magic=2, compression_type=1, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
                batch_size=10_000,
            )  # fmt: skip
            for number in range(6):
                name = BadName("x") if number in {2, 4} else "good"
                batch.append(key=None, value=b"%d" % number, timestamp=None, headers=[(name, b"h")])
            await (await producer.send_batch(batch, channels.EVENTS_TOPIC, partition=0))
            await producer.send_and_wait(channels.EVENTS_TOPIC, b"6", partition=0)
        await claimed(bus)
        for limit in (1, 4, 100):
            entries = await drained(bus, limit=limit)
            assert values(entries) == numbered(7)
            assert set(entries[2].fields) == {"\ufffd\ufffd".encode(), wire.DATA}
        assert values(await bus.log.before(0, "5", limit=4)) == numbered(4, 2)


async def test_kafka_hands_out_committed_records_only(kafka_url: str) -> None:
    async with contextlib.aclosing(quick_kafka_bus(kafka_url)) as bus:
        await bus.partitions.count()
        await claimed(bus)
        async with kafka_producer(kafka_url, transactional_id="foreign") as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(channels.EVENTS_TOPIC, b"never", partition=0)
            assert await drained(bus) == []
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait(channels.EVENTS_TOPIC, b"done", partition=0)
        stretch = await bus.log.read(0, START, limit=5, wait_s=5)
        assert (values(stretch.entries), stretch.lost) == ([b"done"], 0)
        cursor = behind(START, stretch)
        assert (await bus.log.read(0, cursor, limit=5, wait_s=0)).entries == []
        await bus.partitions.commit(0, cursor)
        assert (await bus.partitions.status())[0].lag == 0  # the marks of the transactions are behind us, too
        assert values(await bus.log.before(0, cursor.offset, limit=5)) == [b"done"]
        assert values(await bus.log.after(0, "", limit=5)) == [b"done"]
        assert list(await bus.log.after(0, cursor.offset, limit=5)) == []
        async with kafka_producer(kafka_url, transactional_id="foreign") as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(channels.EVENTS_TOPIC, b"open", partition=0)
            assert list(await bus.log.after(0, cursor.offset, limit=5)) == []
            await producer.commit_transaction()
        assert values(await bus.log.after(0, cursor.offset, limit=1)) == [b"open"]


async def test_kafka_gives_a_partition_back_whatever_its_consumer_says(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka lets the cancellation of its own fetch out of ``stop``."""
    from aiokafka import AIOKafkaConsumer

    async with (
        contextlib.aclosing(quick_kafka_bus(kafka_url)) as bus,
        contextlib.aclosing(quick_kafka_bus(kafka_url)) as other,
    ):
        await bus.partitions.count()
        for number in range(PARTITIONS):
            await claimed(bus, number)
        await bus.log.read(0, START, limit=1, wait_s=0)
        plain = AIOKafkaConsumer.stop

        async def stop(consumer: Any) -> None:
            await plain(consumer)
            raise asyncio.CancelledError

        with monkeypatch.context() as patch:
            patch.setattr(AIOKafkaConsumer, "stop", stop)
            await bus.leases.release(0, OWNER)
        for number in range(1, PARTITIONS):
            await bus.leases.release(number, OWNER)
        await claimed(other, owner="other")


async def test_kafka_a_static_member_comes_back_to_its_partitions(kafka_url: str) -> None:
    other = quick_kafka_bus(kafka_url, session_s=6.0, instance="two")
    first = quick_kafka_bus(kafka_url, session_s=6.0, instance="one")
    async with contextlib.aclosing(other), contextlib.aclosing(first):
        async with asyncio.timeout(60):
            mine = await _claim_any(first, OWNER)
            waiting = asyncio.create_task(_claim_any(other, "second"))
            while not first.leases.is_revoked(mine):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await first.leases.release(mine, OWNER)
            theirs = await waiting
            mine = await _claim_any(first, OWNER)
        await first.aclose()
        async with contextlib.aclosing(quick_kafka_bus(kafka_url, session_s=6.0, instance="one")) as again:
            await claimed(again, mine)
            assert not other.leases.is_revoked(theirs)


async def test_kafka_goes_on_when_a_worker_does_not_give_back_in_time(kafka_url: str) -> None:
    # The session is long: on a busy machine a short one ends by itself, and then nobody waits for anybody.
    first, second = (quick_kafka_bus(kafka_url, session_s=6.0, barrier_s=1.0) for _ in range(2))
    async with contextlib.aclosing(first), contextlib.aclosing(second):
        for partition in range(PARTITIONS):
            await claimed(first, partition)
        async with asyncio.timeout(60):
            taken = await _claim_any(second, "second")
        # Also of what it was assigned again: it has not claimed that since, and another may have been there.
        for partition in range(PARTITIONS):
            assert first.leases.is_revoked(partition)
            with pytest.raises(BusUnavailable, match="does not own"):
                await first.partitions.commit(partition, Committed(offset="0", count=1))
        assert (await second.partitions.committed(taken)) == START


async def test_kafka_a_partition_that_comes_back_must_be_claimed_again(kafka_url: str) -> None:
    first, second = (quick_kafka_bus(kafka_url, session_s=6.0, barrier_s=1.0) for _ in range(2))
    async with contextlib.aclosing(first), contextlib.aclosing(second):
        for partition in range(PARTITIONS):
            await claimed(first, partition)
        async with asyncio.timeout(60):
            taken = await _claim_any(second, "second")
        await second.aclose()
        async with asyncio.timeout(60):
            # Both are assigned to the first again, which one that nobody had meanwhile tells.
            while not await first.leases.claim(1 - taken, "other", 1.0):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        with pytest.raises(BusUnavailable, match="does not own"):
            await first.partitions.commit(taken, Committed(offset="0", count=1))
        await claimed(first, taken)
        await first.partitions.commit(taken, Committed(offset="0", count=1))
        assert (await first.partitions.committed(taken)).count == 1


@pytest.mark.parametrize(
    "url", ["kafka://", "redis://localhost", "kafka://user:secret@host:9092?x=1", "localhost:9092"]
)
async def test_kafka_refuses_what_is_no_address(url: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        quick_kafka_bus(url)
    assert "secret" not in str(refused.value)


async def test_rules_are_stored_once_and_activated_in_every_partition_of_their_scope(kit: Kit) -> None:
    bus, other = kit.bus(), kit.bus()
    await bus.partitions.count()
    assert list(await bus.rules.activations()) == []
    assert await bus.rules.stored("d1") is None
    first = StoredRules(files={"W/graph_injection.yaml": b"version: '1.0'\xff", "_shared/b.yaml": b""})
    await bus.rules.store("d1", first)
    await other.rules.store("d1", StoredRules(files={"W/other.yaml": b""}))
    assert await other.rules.stored("d1") == first
    for summary in ({"format": 1}, {"format": 2}):
        await other.rules.store("d1", StoredRules(files=first.files, summary=summary))
        for reader in (bus, other, kit.bus()):
            assert await reader.rules.stored("d1") == replace(first, summary=summary)
    await bus.rules.store("d1", first)  # an earlier version, which knows no summaries
    assert await other.rules.stored("d1") == replace(first, summary={"format": 2})
    await kit.write(0, [b"before"])
    everywhere = await bus.rules.activate("*", "d1")
    await kit.write(0, [b"after"])
    second = await other.rules.activate("acme", "d1")
    assert (everywhere.number, everywhere.scope, everywhere.digest) == (1, "*", "d1")
    assert set(everywhere.positions) == set(range(PARTITIONS))
    assert second.number == 2
    assert set(second.positions) == set((await bus.partitions.layout()).partitions_of("acme"))
    for reader in (bus, other, kit.bus()):
        assert list(await reader.rules.activations()) == [everywhere, second]
        assert list(await reader.rules.activations(after=1)) == [second]
        assert list(await reader.rules.activations(after=2)) == []
    found = [entry for entry in await bus.log.after(0, "", limit=10) if announced(entry.fields) != 2]
    assert [entry.fields.get(wire.DATA) for entry in found] == [b"before", None, b"after"]
    assert found[1].offset == everywhere.positions[0]
    assert announced(found[1].fields) == 1
    assert found[1].fields.keys() == everywhere.entry().keys()


async def test_activations_of_two_processes_at_once_are_in_one_order(kit: Kit) -> None:
    buses = [kit.bus(), kit.bus()]
    await buses[0].partitions.count()
    await buses[0].rules.store("d1", StoredRules(files={}))

    async def activate(bus: Bus, scope: str) -> None:
        for _ in range(3):
            while True:
                with contextlib.suppress(BusUnavailable):  # the other one was first
                    await bus.rules.activate(scope, "d1")
                    break
                await asyncio.sleep(random.random() / 20)

    await asyncio.gather(activate(buses[0], "acme"), activate(buses[1], "*"))
    found = await buses[0].rules.activations()
    assert [each.number for each in found] == list(range(1, len(found) + 1))
    assert sum(each.scope == "acme" for each in found) == 3
    for partition in range(PARTITIONS):
        places = [each.positions[partition] for each in found if partition in each.positions]
        assert all(is_after(later, earlier) for earlier, later in itertools.pairwise(places))
        entries = await buses[0].log.after(partition, "", limit=100)
        assert [entry.offset for entry in entries if announced(entry.fields)] == places

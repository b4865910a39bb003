"""The suite of buses, against the real servers, and what is special to each of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
import redis as sync_redis
import redis.asyncio as redis
import structlog
from tests.services.bus_kits import KafkaBusKit, RedisBusKit, redis_bus_kit
from tests.services.kafka import KafkaServer
from tests.services.layouts import spread
from tests.services.tiers import repeats
from tests.services.waiting import until

from graphweft_contracts import BusUnavailable, InvalidSettings, channels, wire
from graphweft_workers.drivers.kafka.bus import kafka_bus
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.drivers.redis.timing import RedisBusTiming
from graphweft_workers.engine.log.leases import Lease, LeaseHolder
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.replay.moments import place_at
from graphweft_workers.testing.suites.bus_kit import (
    OWNER,
    PARTITIONS,
    SESSION_S,
    START,
    BusKit,
    behind,
    claimed,
    drained,
    numbered,
    values,
)
from graphweft_workers.testing.suites.bus_suite import BusSuite
from graphweft_workers.testing.suites.lease_suite import claim_any

pytestmark = pytest.mark.integration


class TestRedis(BusSuite):
    @pytest_asyncio.fixture
    async def kit(self, url: str) -> AsyncIterator[BusKit]:
        async with contextlib.aclosing(RedisBusKit(url)) as kit:
            yield kit

    @pytest_asyncio.fixture
    async def own_kit(self) -> AsyncIterator[BusKit]:
        async with redis_bus_kit() as kit:
            yield kit

    async def test_a_keeper_extends_leases_and_takes_none(self, kit: BusKit) -> None:
        bus = kit.bus()
        await claimed(bus)
        keeper = bus.lease_keeper and bus.lease_keeper()
        assert isinstance(kit, RedisBusKit)
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


@repeats(BusSuite, "test_an_outage_is_said_and_passes")
class TestKafka(BusSuite):
    @pytest_asyncio.fixture
    async def kit(self, kafka_url: str, kafka: KafkaServer) -> AsyncIterator[BusKit]:
        async with contextlib.aclosing(KafkaBusKit(kafka)) as kit:
            yield kit


async def test_before_reads_two_entries_of_any_size(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphweft_workers.drivers.redis.event_log.PAGE_BYTES", 1_000)
    kit = RedisBusKit(url)
    bus = kit.bus()
    await kit.write(0, [letter * 2_000 for letter in (b"a", b"b", b"c", b"d")])
    [*_, last] = await bus.log.after(0, "", limit=10)
    assert [value[:1] for value in values(await bus.log.before(0, last.offset, limit=10))] == [b"c", b"d"]
    await kit.aclose()


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


async def test_a_read_waits_for_longer_than_the_server_does_at_once() -> None:
    """The partitions of a worker wait together, so a wait of half a minute costs the server some commands in all."""
    timing = RedisBusTiming(longest_wait_s=0.02)
    async with (
        redis_bus_kit() as kit,
        redis.Redis.from_url(kit.url) as raw,
        contextlib.aclosing(redis_bus(kit.url, new=spread(8), timing=timing)) as bus,
    ):
        await bus.partitions.count()
        began = [asyncio.create_task(bus.log.read(number, START, limit=1, wait_s=600)) for number in range(8)]

        async def waits() -> int:
            return int((await raw.info("commandstats")).get("cmdstat_xread", {}).get("calls", 0))

        await until(waits, lambda count: count > 10, why="the server has ended ten waits")
        assert (await raw.info("commandstats"))["cmdstat_xrange"]["calls"] == 8, "each has looked once"
        await raw.xadd(channels.events_stream(3), {wire.DATA: b"x"})
        assert [entry.fields for entry in (await began[3]).entries] == [{wire.DATA: b"x"}]
        for reading in began:
            reading.cancel()
        await asyncio.gather(*began, return_exceptions=True)


async def test_a_kafka_broker_keeps_a_fetch_for_longer_while_nothing_comes(kafka_url: str, kafka: KafkaServer) -> None:
    async with contextlib.aclosing(KafkaBusKit(kafka)) as kit:
        bus = kit.bus()
        await claimed(bus)
        log: Any = bus.log
        position, waits, set_wait = START, list[int](), log._follower._wait_at_broker

        def wait_at_broker(wait_ms: int) -> None:
            set_wait(wait_ms)
            waits.append(int(log._follower._consumer._fetcher._fetch_max_wait_ms))

        log._follower._wait_at_broker = wait_at_broker
        for value in (b"a", b"b"):
            waits.clear()
            reading = asyncio.create_task(read_on(bus, position))
            await until(lambda: waits[-1:] == [500], why="no record has come for a second")
            await kit.write(0, [value])
            batch = await reading
            assert values(batch.entries) == [value]
            assert 50 in waits[waits.index(500) :], "who has taken records is missing from the next fetch"
            position = behind(position, batch)


async def read_on(bus: Bus, position: CommittedPosition) -> Batch:
    return await until(lambda: bus.log.read(0, position, limit=1, wait_s=5), lambda batch: bool(batch.entries))


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


@pytest.mark.parametrize("seed", range(8))
async def test_redis_leases_settle_whoever_comes_and_goes(url: str, seed: int) -> None:
    """The same without time: rounds in which each worker claims, and gives back what is wanted back."""
    dice = random.Random(seed)
    async with contextlib.aclosing(RedisBusKit(url)) as kit:
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
    async with contextlib.aclosing(RedisBusKit(url)) as kit:
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
    async with contextlib.aclosing(RedisBusKit(url)) as kit:
        one, twin = kit.bus(), kit.bus()
        for _ in range(2):
            for bus in (one, twin):
                for partition in range(PARTITIONS):
                    assert await bus.leases.claim(partition, "twin", 60.0)
                    assert not bus.leases.is_revoked(partition)


async def test_redis_counts_exactly_however_a_stream_is_trimmed(url: str) -> None:
    """Also roughly, by whole nodes of the stream, and by id."""
    async with contextlib.aclosing(RedisBusKit(url)) as kit:
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
            batch = await bus.log.read(0, cursor, limit=20, wait_s=0)
            first = int(values(batch.entries)[0])
            assert batch.lost == first - read
            cursor, read = behind(cursor, batch), first + 20
        assert read > 150


async def test_redis_says_when_a_stream_was_made_anew(url: str) -> None:
    async with contextlib.aclosing(RedisBusKit(url)) as kit:
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
        batch = await bus.log.read(0, START, limit=5, wait_s=5)
        assert (values(batch.entries), batch.lost) == ([b"done"], 0)
        cursor = behind(START, batch)
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
        mine = await claim_any(first, OWNER)
        waiting = asyncio.create_task(claim_any(other, "second"))
        await until(lambda: first.leases.is_revoked(mine))
        await first.leases.release(mine, OWNER)
        theirs = await waiting
        mine = await claim_any(first, OWNER)
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
        taken = await claim_any(second, "second")
        # Also of what it was assigned again: it has not claimed that since, and another may have been there.
        for partition in range(PARTITIONS):
            assert first.leases.is_revoked(partition)
            with pytest.raises(BusUnavailable, match="does not own"):
                await first.partitions.commit(partition, CommittedPosition(offset="0", count=1))
        assert (await second.partitions.committed(taken)) == START


async def test_kafka_a_partition_that_comes_back_must_be_claimed_again(kafka_url: str) -> None:
    first, second = (quick_kafka_bus(kafka_url, session_s=6.0, barrier_s=1.0) for _ in range(2))
    async with contextlib.aclosing(first), contextlib.aclosing(second):
        for partition in range(PARTITIONS):
            await claimed(first, partition)
        taken = await claim_any(second, "second")
        await second.aclose()
        # Both are assigned to the first again, which one that nobody had meanwhile tells.
        await until(lambda: first.leases.claim(1 - taken, "other", 1.0))
        with pytest.raises(BusUnavailable, match="does not own"):
            await first.partitions.commit(taken, CommittedPosition(offset="0", count=1))
        await claimed(first, taken)
        await first.partitions.commit(taken, CommittedPosition(offset="0", count=1))
        assert (await first.partitions.status())[taken].position == "0"


@pytest.mark.parametrize(
    "url", ["kafka://", "redis://localhost", "kafka://user:secret@host:9092?x=1", "localhost:9092"]
)
async def test_kafka_refuses_what_is_no_address(url: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        quick_kafka_bus(url)
    assert "secret" not in str(refused.value)

"""A topic that is compacted loses records from between others: they are counted as lost, and nothing else is."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from tests.services.kafka_admin import administrator
from tests.services.layouts import spread
from tests.services.waiting import until

from graphweft_contracts import channels
from graphweft_workers.archive.archived_bus import archived
from graphweft_workers.archive.archiver import archive_now
from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.drivers.kafka.bus import kafka_bus
from graphweft_workers.ports.bus import Bus
from graphweft_workers.testing.suites.bus_kit import SESSION_S, START, behind, claimed, values

pytestmark = pytest.mark.integration

_SETTINGS: Final = {
    "message.timestamp.type": "CreateTime",  # so that a record's time begins a segment at once
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "1000",
    "message.timestamp.after.max.ms": "9223372036854775807",
}
_TIME_MS: Final = 1_700_000_000_000
_LATER_MS: Final = 4_000_000_000_000  # after the ends of transactions, which have the time of the broker


@contextlib.asynccontextmanager
async def producer(url: str, transaction: str | None) -> AsyncIterator[Any]:
    made = AIOKafkaProducer(bootstrap_servers=url.removeprefix("kafka://"), transactional_id=transaction)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def write(url: str, keys: Sequence[str], *, at_ms: int = _TIME_MS, transaction: str | None = None) -> None:
    """Append a batch of one record for each key."""
    async with producer(url, transaction) as made, made.transaction() if transaction else contextlib.nullcontext():
        batch = made.create_batch()
        for number, key in enumerate(keys):
            batch.append(key=key.encode(), value=f"{key}{number}".encode(), timestamp=at_ms)
        await (await made.send_batch(batch, channels.EVENTS_TOPIC, partition=0))


async def abort(url: str) -> None:
    """Append a record that has no effect."""
    async with producer(url, "aborted") as made:
        await made.begin_transaction()
        await made.send_and_wait(channels.EVENTS_TOPIC, b"never", key=b"a", partition=0, timestamp_ms=_LATER_MS)
        await made.abort_transaction()


async def reads(bus: Bus, *, limit: int, wait_s: float | None) -> tuple[list[bytes | int], int]:
    """Return what reads from the start give, values and the numbers of lost entries, and the count at the end."""
    found: list[bytes | int] = []
    after = START
    while found[-1:] != [b"end0"]:
        batch = await bus.log.read(0, after, limit=limit, wait_s=wait_s)
        found += [batch.lost] if batch.lost else []
        found += values(batch.entries)
        after = behind(after, batch)
    return found, after.count


async def test_what_compaction_removed_is_lost_and_read_from_the_archive(kafka_url: str, tmp_path: Path) -> None:
    everything = [b"a0", b"b1", b"a2", b"c3", b"b4", b"a5", b"d0", b"c1", b"d2", b"next0", b"end0"]
    async with administrator(kafka_url) as admin:
        await admin.create_topics([NewTopic(channels.EVENTS_TOPIC, 1, 1, topic_configs=_SETTINGS)])
        async with contextlib.aclosing(kafka_bus(kafka_url, new=spread(1), session_s=SESSION_S, barrier_s=20.0)) as bus:
            await bus.partitions.count()
            await write(kafka_url, ["a", "b", "a", "c", "b", "a"], transaction="one")  # its end is the offset 6
            await write(kafka_url, ["d", "c", "d"])
            await write(kafka_url, ["next"], at_ms=_LATER_MS)  # begins a segment, which is not compacted
            await abort(kafka_url)
            await write(kafka_url, ["end"], at_ms=_LATER_MS)
            await claimed(bus)
            for wait_s in (0, None):
                for limit in (3, 100):  # the ends of transactions, and what was aborted, are not lost
                    assert await reads(bus, limit=limit, wait_s=wait_s) == (everything, 11)
            blobs = open_blobs(str(tmp_path))
            assert await archive_now(bus, blobs) == (11, 0)

            settings = _SETTINGS | {"cleanup.policy": "compact"}
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, channels.EVENTS_TOPIC, settings)])

            async def held() -> list[bytes]:
                return values(await bus.log.after(0, "", limit=100))

            left = [b"b4", b"a5", b"c1", b"d2", b"next0", b"end0"]
            await until(held, lambda found: found == left, why="the topic is compacted")
            for wait_s in (0, None):
                assert await reads(bus, limit=100, wait_s=wait_s) == ([4, *left[:2], 1, *left[2:]], 11)
            behind_archive = archived(bus, blobs)
            for wait_s in (0, None):
                assert await reads(behind_archive, limit=100, wait_s=wait_s) == (everything, 11)
            assert values(await behind_archive.log.after(0, "", limit=100)) == everything

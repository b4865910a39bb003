"""Records that cannot be unpacked: they cost nothing but themselves, and nobody takes them for an outage."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiokafka.codec
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.record.util import calc_crc32c
from tests.services.fixtures import Logs, events_of
from tests.services.kafka import KafkaServer
from tests.services.layouts import spread
from tests.services.rules import rule_set

from graphweft_contracts import DeadLetter, Event, channels, wire
from graphweft_contracts.layout import NEW_LAYOUT
from graphweft_workers.drivers.kafka import doctor
from graphweft_workers.drivers.kafka.bus import kafka_bus
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import read_range
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.check import Check
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.rule_sets.active_rules import FixedRules
from graphweft_workers.testing.suites.bus_kit import PARTITIONS, SESSION_S, START, claimed, drained, numbered, values

pytestmark = pytest.mark.integration

_CRC_AT, _ATTRIBUTES_AT, _RECORDS_AT = 17, 21, 61


@contextlib.asynccontextmanager
async def bus_of(url: str) -> AsyncIterator[Bus]:
    async with contextlib.aclosing(kafka_bus(url, new=spread(PARTITIONS), session_s=SESSION_S, barrier_s=20.0)) as bus:
        await bus.partitions.count()
        yield bus


@contextlib.asynccontextmanager
async def producer(url: str, codec: str | None = None, **options: Any) -> AsyncIterator[Any]:
    made = AIOKafkaProducer(bootstrap_servers=url.removeprefix("kafka://"), compression_type=codec, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def sent(
    url: str, contents: Sequence[bytes], codec: str | None = None, topic: str = channels.EVENTS_TOPIC
) -> None:
    """Append contents to partition 0 as one batch."""
    async with producer(url, codec) as made:
        batch = made.create_batch()
        for content in contents:
            batch.append(key=None, value=content, timestamp=None)
        await (await made.send_batch(batch, topic, partition=0))


def seen(entries: Sequence[Entry]) -> list[bytes | None]:
    """Return the values of entries, None for one that cannot be read."""
    return [entry.fields.get(wire.DATA) for entry in entries]


def damage(server: KafkaServer, offset: int, *, checksum: bool) -> None:
    """Change a byte of the records in the batch that begins at an offset, on the broker's disk."""
    log = Path(server.folder, "data", f"{channels.EVENTS_TOPIC}-0", f"{0:020}.log")
    content = bytearray(log.read_bytes())
    at = 0
    while struct.unpack_from(">q", content, at)[0] != offset:
        at += 12 + struct.unpack_from(">i", content, at + 8)[0]
    end = at + 12 + struct.unpack_from(">i", content, at + 8)[0]
    content[at + _RECORDS_AT + 3] ^= 0xFF
    if checksum:  # as if its producer had written it so
        struct.pack_into(">I", content, at + _CRC_AT, calc_crc32c(bytes(content[at + _ATTRIBUTES_AT : end])))
    with log.open("r+b") as file:
        file.write(content)


async def codec_check(url: str) -> Check:
    checks = await doctor.examine(url, "", new=NEW_LAYOUT)
    return next(check for check in checks if check.name == "bus codecs")


def letters_of(entries: Sequence[Entry]) -> list[DeadLetter]:
    return read_range(0, entries, FixedRules(rule_set()), RecentEvents()).letters


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_events_of_every_codec_are_read(kafka_url: str, codec: str) -> None:
    async with bus_of(kafka_url) as bus:
        await sent(kafka_url, numbered(3), codec)
        await claimed(bus)
        assert values(await drained(bus)) == numbered(3)
        assert values(await bus.log.after(0, "", limit=9)) == numbered(3)


async def test_a_topic_that_compresses_is_read(kafka_url: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_url.removeprefix("kafka://"))
    await admin.start()
    settings = {"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"}
    await admin.create_topics([NewTopic(channels.EVENTS_TOPIC, PARTITIONS, 1, topic_configs=settings)])
    await admin.close()
    async with bus_of(kafka_url) as bus:
        await sent(kafka_url, numbered(3))
        await claimed(bus)
        assert values(await drained(bus)) == numbered(3)
        codecs = await codec_check(kafka_url)
    assert (codecs.state, "graphweft.events has compression.type zstd" in codecs.found) == ("ok", True)


async def test_a_codec_that_is_missing_costs_only_its_own_records(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    async with bus_of(kafka_url) as bus:
        await sent(kafka_url, numbered(2))
        await sent(kafka_url, numbered(3, 2), "zstd")
        await sent(kafka_url, numbered(2, 5))
        monkeypatch.setattr(aiokafka.codec, "cramjam", None)
        await claimed(bus)
        expected = [b"0", b"1", None, None, None, b"5", b"6"]
        for limit in (1, 3, 100):
            entries = await drained(bus, limit=limit)
            assert seen(entries) == expected
            assert [entry.offset for entry in entries] == [str(number) for number in range(7)]
        assert seen(await bus.log.after(0, "", limit=100)) == expected
        assert seen(await bus.log.before(0, "6", limit=4)) == expected[3:]
        assert seen(await bus.log.entries(0, ["1", "3", "6"])) == [b"1", None, b"6"]
        assert "zstd" in entries[3].fields[wire.UNREADABLE].decode()
        codecs = await codec_check(kafka_url)
    assert "records_unreadable" in events_of(logs)
    assert (codecs.state, codecs.advice) == ("fail", "pip install 'graphweft[kafka]'")
    assert "zstd" in codecs.found


@pytest.mark.parametrize("codec", [None, "gzip", "zstd"])
@pytest.mark.parametrize("checksum", [False, True])
async def test_a_damaged_batch_costs_only_its_own_records(
    kafka: KafkaServer, kafka_url: str, codec: str | None, checksum: bool
) -> None:
    async with bus_of(kafka_url) as bus:
        await sent(kafka_url, numbered(2))
        await sent(kafka_url, numbered(3, 2), codec)
        await sent(kafka_url, numbered(2, 5))
        damage(kafka, 2, checksum=checksum)
        await claimed(bus)
        entries = await drained(bus)
        assert seen(entries)[:2] + seen(entries)[5:] == [b"0", b"1", b"5", b"6"]
        assert [wire.UNREADABLE in entry.fields for entry in entries] == [False, False, True, True, True, False, False]
        assert seen(await bus.log.after(0, "", limit=100)) == seen(entries)


async def test_a_damaged_last_batch_ends_where_the_partition_ends(kafka: KafkaServer, kafka_url: str) -> None:
    async with bus_of(kafka_url) as bus:
        await sent(kafka_url, numbered(2))
        damage(kafka, 0, checksum=False)
        await claimed(bus)
        assert seen(await drained(bus)) == [None, None]
        await sent(kafka_url, [b"next"])
        assert seen(await drained(bus)) == [None, None, b"next"]


async def test_what_an_aborted_transaction_wrote_in_a_missing_codec_is_no_record(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bus_of(kafka_url) as bus:
        async with producer(kafka_url, "zstd", transactional_id="foreign") as made:
            await made.begin_transaction()
            await made.send_and_wait(channels.EVENTS_TOPIC, b"never", partition=0)
            await made.abort_transaction()
            async with made.transaction():
                await made.send_and_wait(channels.EVENTS_TOPIC, b"done", partition=0)
        await sent(kafka_url, [b"last"])
        monkeypatch.setattr(aiokafka.codec, "cramjam", None)
        await claimed(bus)
        batch = await bus.log.read(0, START, limit=9, wait_s=0)
        assert seen(batch.entries) == [None, b"last"]


async def test_an_unreadable_event_is_a_dead_letter_that_is_retried_when_it_can_be_read(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = Event.create("a.one", app_id="acme", chat_id="c", source="test", data={})
    fields = wire.encode(event)
    async with bus_of(kafka_url) as bus:
        async with producer(kafka_url, "lz4") as made:
            headers = [(name.decode(), value) for name, value in fields.items() if name != wire.DATA]
            await made.send_and_wait(channels.EVENTS_TOPIC, fields[wire.DATA], partition=0, headers=headers)
        with monkeypatch.context() as without:
            without.setattr(aiokafka.codec, "cramjam", None)
            (letter,) = letters_of(await bus.log.after(0, "", limit=9))
            assert (letter.reason, letter.position) == ("unreadable", "0:0")
            assert "lz4" in letter.message
            await bus.dead_letters.put([letter])
            done = await retry(bus, letter)
            assert (done.events, "still cannot" in (done.kept or "")) == (0, True)
        assert (await retry(bus, letter)).events == 1
        assert await bus.dead_letters.read(limit=9) == []
        _, again = await bus.log.after(0, "", limit=9)
        assert (again.event().id, wire.RETRY in again.fields) == (event.id, True)


async def test_an_unreadable_request_costs_no_other(kafka_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphweft_workers.drivers.kafka.requests import KafkaRequestQueue

    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_url.removeprefix("kafka://"))
    await admin.start()
    await admin.create_topics([NewTopic(channels.CONTEXT_REQUESTS_TOPIC, 1, 1)])
    await admin.close()
    for content, codec in ((b"a", None), (b"b", "snappy"), (b"c", None)):
        await sent(kafka_url, [content], codec, channels.CONTEXT_REQUESTS_TOPIC)
    monkeypatch.setattr(aiokafka.codec, "cramjam", None)  # before anything is read: a consumer unpacks ahead
    bodies: list[bytes] = []
    async with contextlib.aclosing(KafkaRequestQueue(kafka_url, name="one", partitions=1, session_s=60.0)) as queue:
        while len(bodies) < 3:
            bodies += [pending.body for pending in await queue.next(1)]
    assert bodies == [b"a", b"", b"c"]

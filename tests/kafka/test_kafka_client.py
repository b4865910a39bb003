"""Events through Kafka from the client's side: where they come to stand, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from datetime import UTC, datetime

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from tests.services.fixtures import empty_kafka
from tests.services.kafka import KafkaServer
from tests.services.layouts import spread
from tests.services.waiting import turns, until

from graphweft import Client, Event, SyncClient
from graphweft.transport import MAX_CONTEXT_BYTES, MAX_EVENT_BYTES, Outgoing
from graphweft.transports.kafka.transport import KafkaTransport
from graphweft_contracts import BusUnavailable, ContextReply, InvalidEvent, InvalidSettings, channels, wire
from graphweft_workers.drivers.kafka.bus import kafka_bus
from graphweft_workers.ports.event_log import CommittedPosition

pytestmark = pytest.mark.integration

PARTITIONS = 3


def outgoing(key: str, data: bytes) -> Outgoing:
    return Outgoing(key=key, fields={wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: data})


async def contents(url: str) -> list[list[bytes]]:
    """Return the values of each partition."""
    found: list[list[bytes]] = []
    async with contextlib.aclosing(kafka_bus(url)) as bus:
        for partition in range(await bus.partitions.count()):
            found.append([entry.fields[wire.DATA] for entry in await bus.log.after(partition, "", limit=100_000)])
    return found


async def test_events_keep_their_order_in_the_partition_of_their_key(kafka_url: str) -> None:
    async with contextlib.aclosing(KafkaTransport(kafka_url, new=spread(PARTITIONS))) as transport:
        events = [outgoing(f"app/chat-{number % 7}", b"%d" % number) for number in range(3000)]
        positions = await transport.append(events[:1000])
        positions += await transport.append(events[1000:])
    kept = await contents(kafka_url)
    assert len(kept) == PARTITIONS
    for event, position in zip(events, positions, strict=True):
        partition, _, offset = position.partition(":")
        assert int(partition) == channels.partition_of(event.key, PARTITIONS)
        assert kept[int(partition)][int(offset)] == event.fields[wire.DATA]
    assert sum(map(len, kept)) == 3000
    assert all(values == sorted(values, key=int) for values in kept)


async def test_who_comes_second_follows_the_topic(kafka_url: str) -> None:
    async with (
        contextlib.aclosing(KafkaTransport(kafka_url, new=spread(PARTITIONS))) as first,
        contextlib.aclosing(KafkaTransport(kafka_url, new=spread(8))) as second,
        contextlib.aclosing(kafka_bus(kafka_url, new=spread(5))) as bus,
    ):
        one, two, count = await asyncio.gather(
            first.append([outgoing("k", b"1")]), second.append([outgoing("k", b"2")]), bus.partitions.count()
        )
        assert one[0].partition(":")[0] == two[0].partition(":")[0]
        assert count == len(await contents(kafka_url))


async def test_many_large_events_go_through_in_order(kafka_url: str) -> None:
    events = [outgoing("k", b"%03d" % number + b"x" * 300_000) for number in range(12)]
    async with contextlib.aclosing(KafkaTransport(kafka_url, new=spread(1))) as transport:
        await transport.append(events)
        await transport.append([outgoing("k", b"y" * (MAX_EVENT_BYTES - 200))])
    (kept,) = await contents(kafka_url)
    assert kept[:12] == [event.fields[wire.DATA] for event in events]
    assert len(kept) == 13


async def test_an_event_that_is_too_large_is_refused_and_none_is_written(kafka_url: str) -> None:
    async with contextlib.aclosing(KafkaTransport(kafka_url, new=spread(1))) as transport:
        with pytest.raises(InvalidEvent, match="dataref"):
            await transport.append([outgoing("k", b"small"), outgoing("k", b"x" * (MAX_EVENT_BYTES + 1))])
        assert await transport.append([outgoing("k", b"next")]) == ["0:0"]


async def test_a_client_goes_on_behind_an_event_that_is_too_large(
    kafka_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {3: MAX_EVENT_BYTES, 4: 2 * MAX_EVENT_BYTES, 8: MAX_EVENT_BYTES - 1000}
    async with Client(kafka_url) as client:
        asking = [
            asyncio.create_task(client.emit(event(number, "x" * sizes.get(number, 1)), wait_s=120))
            for number in range(10)
        ]
        positions = await asyncio.gather(*asking)
        assert [number for number, position in enumerate(positions) if position is None] == [3, 4]
        assert (client.stats.sent, client.stats.rejected, client.stats.retries) == (8, 2, 0)
        assert await client.flush(30)
        assert await client.emit(event(10), wait_s=120)
    assert await identities(kafka_url) == ["0", "1", "2", "5", "6", "7", "8", "9", "10"]
    refused = [record.getMessage() for record in caplog.records if "is not sent" in record.getMessage()]
    assert [message.split()[1] for message in refused] == ["3", "4"]
    assert all("dataref" in message for message in refused)


async def test_a_topic_with_a_smaller_limit_refuses_what_is_larger_only(kafka: KafkaServer, kafka_url: str) -> None:
    async with contextlib.aclosing(kafka_bus(kafka_url, new=spread(1))) as bus:
        await bus.partitions.count()
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        limit = {"max.message.bytes": "20000"}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, channels.EVENTS_TOPIC, limit)])
    finally:
        await admin.close()
    async with Client(kafka_url) as client:
        for number in range(10):
            await client.emit(event(number, "x" * (30_000 if number == 5 else 5_000)), wait_s=0)
        assert await client.flush(30)
        assert (client.stats.sent, client.stats.rejected) == (9, 1)
    assert await identities(kafka_url) == [str(number) for number in range(10) if number != 5]


async def test_the_environment_may_name_kafka(kafka_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEFT_BUS_URL", kafka_url)

    def use() -> None:
        with SyncClient() as client:
            assert client.emit(event(1), wait_s=120)
            reply = client.context(app_id="a", workflow="w", agent="g", chat_id="c", budget_ms=200)
            assert reply.reason == "timeout"  # nobody answers here

    await asyncio.to_thread(use)
    assert await identities(kafka_url) == ["1"]


def test_a_missing_driver_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("graphweft.transports.kafka.transport", "graphweft.transports.kafka.connection"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    with pytest.raises(InvalidSettings, match=r"graphweft\[kafka\]"):
        Client("kafka://127.0.0.1:9092")
    with pytest.raises(InvalidSettings, match=r"graphweft\[kafka\]"):
        SyncClient("kafka://127.0.0.1:9092")


def test_a_client_refuses_what_is_no_kafka_address() -> None:
    with pytest.raises(InvalidSettings) as refused:
        Client("kafka://user:secret@host:9092/topic")
    assert "secret" not in str(refused.value)


async def test_who_asks_where_there_is_no_broker_is_told_so() -> None:
    async with Client("kafka://127.0.0.1:1", app_id="a", workflow="w") as client:
        for _ in range(2):
            reply = await client.context(agent="g", chat_id="c", budget_ms=20_000)
            assert (reply.reason, reply.text) == ("bus_unavailable", "")


async def test_closing_while_it_connects_ends_the_calls() -> None:
    """The broker takes connections and says nothing, as one behind a firewall may."""
    reached, over = asyncio.Event(), asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await over.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = Client(f"kafka://127.0.0.1:{port}", app_id="a", workflow="w")

        def ask() -> asyncio.Task[ContextReply]:
            return asyncio.create_task(client.context(agent="g", chat_id="c", budget_ms=120_000))

        first, calls = ask(), [ask() for _ in range(3)]
        await reached.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not any(call.done() for call in calls), "one that is cancelled leaves the others connecting"
        try:
            await client.aclose()
            replies = await asyncio.gather(*calls)
        finally:
            over.set()
    closed = "the client is closed: make a new one"
    assert [(reply.reason, reply.detail) for reply in replies] == [("bus_unavailable", closed)] * 3


async def test_closing_at_any_moment_of_connecting_leaves_no_connection(kafka_url: str) -> None:
    """aiokafka forgets a connection if it is cancelled while it reads the metadata of a cluster."""
    for number in range(25):
        client = Client(kafka_url, app_id="a", workflow="w")
        asking = asyncio.create_task(client.context(agent="g", chat_id="c", budget_ms=5_000))
        await turns(20 * number**2)
        await client.aclose()
        # Whether it had been sent in this moment, and waits for an answer, is not known.
        assert (await asking).reason in ("bus_unavailable", "timeout")
    gc.collect()  # what is left over warns now, which fails this test and not a later one


async def test_a_request_that_is_too_large_is_refused(kafka_url: str) -> None:
    async with Client(kafka_url, app_id="a", workflow="w") as client:
        reply = await client.context(agent="g", chat_id="c", context={"x": "y" * MAX_CONTEXT_BYTES}, budget_ms=120_000)
        assert (reply.reason, "bytes" in reply.detail) == ("invalid_request", True)


async def test_the_topics_of_context_follow_the_events_and_forget_soon(kafka: KafkaServer, kafka_url: str) -> None:
    async with contextlib.aclosing(KafkaTransport(kafka_url, new=spread(PARTITIONS))) as transport:
        await transport.append([outgoing("k", b"1")])
    async with Client(kafka_url, app_id="a", workflow="w") as client:
        # Not before the topics are there is it known that nobody answers.
        assert (await client.context(agent="g", chat_id="c", budget_ms=3_000)).reason == "timeout"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        topics = {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}
        for name in (channels.CONTEXT_REQUESTS_TOPIC, channels.CONTEXT_REPLIES_TOPIC):
            assert topics[name] == PARTITIONS
            [found] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
            settings = {entry[0]: entry[1] for entry in found.resources[0][4]}
            assert (settings["retention.ms"], settings["cleanup.policy"]) == ("60000", "delete")
    finally:
        await admin.close()


async def test_no_broker_is_an_outage() -> None:
    async with contextlib.aclosing(KafkaTransport("kafka://127.0.0.1:1")) as transport:
        with pytest.raises(BusUnavailable):
            await transport.append([outgoing("k", b"1")])


@pytest.mark.long
async def test_a_client_outlives_a_broker_that_is_killed(kafka: KafkaServer, kafka_url: str) -> None:
    async with Client(transport=KafkaTransport(kafka_url, new=spread(1))) as client:
        for number in range(20):
            assert await client.emit(event(number), wait_s=120) == f"0:{number}"
        await asyncio.to_thread(kafka.kill)
        for number in range(20, 60):
            await client.emit(event(number), wait_s=0)
        await asyncio.to_thread(kafka.start)
        assert await client.flush(60)
    assert await identities(kafka_url) == [str(number) for number in range(60)]


@pytest.mark.long
async def test_a_client_closes_while_the_broker_is_away(kafka: KafkaServer, kafka_url: str) -> None:
    before = asyncio.all_tasks()
    async with Client(kafka_url) as client:
        assert await client.emit(event(1), wait_s=120)
        await asyncio.to_thread(kafka.kill)
        try:
            assert await client.emit(event(2), wait_s=0.2) is None
            async with asyncio.timeout(120):
                await client.aclose(drain_s=0.2)
            assert client.stats.dropped == 1
            assert asyncio.all_tasks() == before
        finally:
            await asyncio.to_thread(kafka.start)


async def identities(url: str) -> list[str]:
    """Return the ids of one chat's events in the order in which they take effect."""
    kept = [value for partition in await contents(url) for value in partition]
    found = [wire.decode({wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: value}).id for value in kept]
    return list(dict.fromkeys(found))


def event(number: int, text: str = "") -> Event:
    return Event(
        id=str(number), source="/test", type="custom.thing", time=datetime(2026, 1, 1, tzinfo=UTC), appid="app",
        chatid="chat", workflow="W", data={"text": text},
    )  # fmt: skip


async def test_the_bus_reads_what_the_client_writes(kafka_url: str) -> None:
    async with Client(transport=KafkaTransport(kafka_url, new=spread(1))) as client:
        assert await client.emit(event(1), wait_s=120) == "0:0"
    async with contextlib.aclosing(kafka_bus(kafka_url)) as bus:
        await until(lambda: bus.leases.claim(0, "one", 10.0))
        (entry,) = (await bus.log.read(0, CommittedPosition(), limit=5, wait_s=5)).entries
    assert wire.decode(entry.fields, received=entry.received) == event(1)


async def test_an_emptied_broker_has_no_owners(kafka: KafkaServer, kafka_url: str) -> None:
    """A killed process is in its group until its session ends; the next test must not see what it owned."""
    async with contextlib.aclosing(kafka_bus(kafka_url, new=spread(1), session_s=60.0)) as killed:
        await until(lambda: killed.leases.claim(0, "killed", 60.0))
        killed.leases._group._consumer._coordinator._maybe_leave_group = _nothing  # pyright: ignore[reportPrivateUsage]
        await killed.leases.release(0, "killed")
    async with contextlib.aclosing(kafka_bus(kafka_url, new=spread(1))) as bus:
        assert [part.owner for part in await bus.partitions.status()] == ["killed"]
        await empty_kafka(kafka)
    async with contextlib.aclosing(kafka_bus(kafka_url, new=spread(1))) as bus:
        assert [part.owner for part in await bus.partitions.status()] == [None]


async def _nothing() -> None:
    pass

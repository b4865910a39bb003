"""The suite of request queues, against the real buses, and what is special to each of them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio as redis
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from pydantic import SecretStr
from structlog.testing import capture_logs
from tests.ports.toy import sqlite_url
from tests.ports.toy_kits import ToyRequestKit
from tests.services.environment import clean_environment
from tests.services.fixtures import empty_kafka
from tests.services.kafka import KafkaServer
from tests.services.neo4j import Neo4jServer
from tests.services.request_kits import KafkaRequestKit, RedisRequestKit, redis_request_kit
from tests.services.tiers import repeats
from tests.services.waiting import turns, until

from graphweft.transport import MAX_CONTEXT_BYTES, read_reply
from graphweft.transports.registry import make_transport
from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest, channels
from graphweft_workers.drivers import bus_driver
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.kafka.requests import KafkaRequestQueue
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.drivers.redis.timing import RedisBusTiming
from graphweft_workers.ports.request_queue import MAX_REPLY_BYTES, encode
from graphweft_workers.settings.settings import Settings
from graphweft_workers.testing.suites.request_kit import (
    LateAnswers,
    RequestKit,
    ask_all,
    asked,
    at_once,
    echo,
    request,
    responding,
    take,
)
from graphweft_workers.testing.suites.request_suite import RequestSuite
from graphweft_workers.wiring.connections import make_graph

__all__ = ("sqlite_url",)  # a fixture

pytestmark = pytest.mark.integration

PRODUCTS = ["redis", "kafka"]


@pytest_asyncio.fixture(params=[*PRODUCTS, "sqlite"])
async def kit(request: pytest.FixtureRequest) -> AsyncIterator[RequestKit]:
    if request.param == "kafka":
        server: KafkaServer = request.getfixturevalue("kafka")
        await empty_kafka(server)
        yield KafkaRequestKit(server.url, server)
    elif request.param == "sqlite":
        yield ToyRequestKit(request.getfixturevalue("sqlite_url"))
    else:
        async with redis_request_kit() as own:
            yield own


class TestRedis(RequestSuite):
    @pytest_asyncio.fixture
    async def kit(self) -> AsyncIterator[RequestKit]:
        async with redis_request_kit() as own:
            yield own


@repeats(RequestSuite, "test_a_bus_that_restarts_under_load_is_survived")
class TestKafka(RequestSuite):
    @pytest.fixture
    def kit(self, kafka: KafkaServer, kafka_url: str) -> RequestKit:
        return KafkaRequestKit(kafka_url, kafka)


RULES = """
version: "1.0"
injection_rules:
  - name: one
    agents: [One]
    queries:
      - {id: one, cypher: "RETURN $n AS n", params: {n: $context.n}, inject_as: one, format: single}
  - name: slow
    agents: [Slow]
    queries:
      - id: slow
        cypher: "UNWIND range(1, 60000) AS x WITH sum(x * $n) AS s RETURN $n AS n"
        params: {n: $context.n}
        inject_as: one
        format: single
"""


async def test_a_slow_replica_keeps_what_it_has() -> None:
    answers = LateAnswers()
    async with redis_request_kit() as kit, kit.client() as client, redis.Redis.from_url(kit.url) as raw:
        async with responding(kit, answers, "slow") as slow:
            asking = asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 1}))
            await until(lambda: answers.waiting == 1)
            async with responding(kit, at_once, "other") as other:
                # Far older than what is taken from the dead.
                async def old() -> bool:
                    [entry] = await raw.xpending_range(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP, "-", "+", 10)
                    assert entry["consumer"] == b"slow"
                    return bool(entry["time_since_delivered"] > 1_500)

                await until(old)
                answers.open.set()
                assert (await asking).text == "1"
        assert (slow.answered, other.answered) == (1, 0)

        async def gone() -> bool:
            return not await raw.xinfo_consumers(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP)

        await until(gone)
        assert await raw.xlen(channels.CONTEXT_REQUESTS) == 0


async def test_a_dead_replicas_requests_are_taken_over_and_it_is_forgotten() -> None:
    async with redis_request_kit() as kit, kit.client() as client, redis.Redis.from_url(kit.url) as raw:
        await raw.xgroup_create(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP, id="0", mkstream=True)
        asking = asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 1}))
        # Somebody who has read, and then gave no sign of life any more.
        assert await raw.xreadgroup(
            channels.CONTEXT_GROUP, "dead", {channels.CONTEXT_REQUESTS: ">"}, count=1, block=10_000
        )
        async with responding(kit, at_once) as responder:
            assert (await asking).text == "1"
            await until(lambda: (responder.taken_over, responder.won), lambda found: found == (1, 1))
            names = [
                consumer["name"]
                for consumer in await raw.xinfo_consumers(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP)
            ]
            assert names == [b"r"]


async def test_a_request_is_handed_on_once() -> None:
    async with redis_request_kit() as kit, AsyncExitStack() as opened:
        raw = await opened.enter_async_context(redis.Redis.from_url(kit.url))
        first, second, third = [
            await opened.enter_async_context(contextlib.aclosing(RedisRequestQueue(kit.url, consumer=name)))
            for name in ("first", "second", "third")
        ]
        transport = await opened.enter_async_context(contextlib.aclosing(make_transport(kit.url)))
        asking = asyncio.create_task(transport.request(request(context={"n": 1})))
        [waiting] = await take(first, 1)
        for _ in range(3):  # as after an outage; this hands nothing on
            await first._read_own()
        await stand_still(first)
        [again] = await take(second, 1)
        assert again == waiting
        await third.next(1, wait=False)
        with capture_logs() as logs:
            await stand_still(second)

            async def given_up() -> bool:
                return await raw.xlen(channels.CONTEXT_REQUESTS) == 0

            await until(given_up)
            await until(lambda: any(log["event"] == "requests_given_up" for log in logs))
        assert list(await third.next(1, wait=False)) == []
        # It may still be answered by one that only stood still for a while.
        assert await second.reply(asked(again).reply_to, echo(asked(again)))
        assert (await asking).text == "1"


async def test_a_silent_replicas_request_goes_on_after_a_share_of_its_budget() -> None:
    # Nobody is dead for ten minutes: only the share of the budget counts, a tenth of a second.
    timing = RedisBusTiming(alive_ms=600_000, again=1 / 1_200)
    async with redis_request_kit() as kit, AsyncExitStack() as opened:
        first, second = [
            await opened.enter_async_context(
                contextlib.aclosing(RedisRequestQueue(kit.url, consumer=name, timing=timing))
            )
            for name in ("first", "second")
        ]
        transport = await opened.enter_async_context(contextlib.aclosing(make_transport(kit.url)))
        asking = asyncio.create_task(transport.request(request(120_000, context={"n": 1})))
        [waiting] = await take(first, 1)
        await stand_still(first)
        [again] = await take(second, 1)
        assert (again.token, waiting.taken_over, again.taken_over) == (waiting.token, False, True)
        assert await second.reply(asked(again).reply_to, echo(asked(again)))
        assert (await asking).text == "1"


async def test_replicas_without_requests_wait_at_the_server_and_take_over_the_next_one() -> None:
    """They look twenty-five times a second only while one of them has a request."""
    async with redis_request_kit() as kit, AsyncExitStack() as opened:
        first, second = [
            await opened.enter_async_context(contextlib.aclosing(RedisRequestQueue(kit.url, consumer=name)))
            for name in ("first", "second")
        ]
        raw = await opened.enter_async_context(redis.Redis.from_url(kit.url))
        transport = await opened.enter_async_context(contextlib.aclosing(make_transport(kit.url)))
        for queue in (first, second):
            assert list(await queue.next(1)) == []
        before = await calls(raw)
        for _ in range(3):
            assert list(await second.next(1)) == []
        looks, waits = [now - then for now, then in zip(await calls(raw), before, strict=True)]
        assert waits >= 3, "of the second alone"
        assert looks <= 2 * waits + 2
        asking = asyncio.create_task(transport.request(request(120_000, context={"n": 1})))
        [held] = await take(first, 1)
        await until(lambda: is_alive(raw, "first"))
        await stand_still(first)
        [again] = await take(second, 1)
        assert (again.token, again.taken_over) == (held.token, True)
        assert await second.reply(asked(again).reply_to, echo(asked(again)))
        assert (await asking).text == "1"
        second.done(again.token)
        await until(lambda: raw.xlen(channels.CONTEXT_REQUESTS), lambda found: found == 0)
        before = await calls(raw)
        for _ in range(3):
            assert list(await second.next(1)) == []
        looks, waits = [now - then for now, then in zip(await calls(raw), before, strict=True)]
        assert looks <= 2 * waits + 2, "and they wait again"


async def calls(raw: Any) -> tuple[int, int]:
    """Return how often replicas have looked for requests of others, and have waited for one."""
    stats = await raw.info("commandstats")
    return tuple(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "xreadgroup"))


async def is_alive(raw: Any, name: str) -> bool:
    return await raw.zscore(channels.RESPONDERS, name) is not None


async def stand_still(queue: RedisRequestQueue) -> None:
    """Let a replica give no sign of life any more, as if its event loop did not turn."""
    assert queue._keeper is not None
    queue._keeper.cancel()
    await asyncio.gather(queue._keeper, return_exceptions=True)


def test_an_answer_behind_the_deadline_is_none() -> None:
    body = ContextReply(id="1").model_dump_json().encode()
    assert read_reply(request(30_000), body).id == "1"
    with pytest.raises(TimeoutError):
        read_reply(request(-1), body)
    with pytest.raises(BusUnavailable):
        read_reply(request(30_000), b"{}")


async def test_thirty_of_the_largest_answers_wait_for_a_process_that_does_not_read(url: str) -> None:
    """Redis ends the subscription of who leaves too much unread, and then all is lost."""
    channel = channels.context_replies("slow")
    large = echo(request(), "x" * (MAX_REPLY_BYTES - 1_000))
    async with (
        contextlib.aclosing(RedisRequestQueue(url, consumer="r")) as queue,
        redis.Redis.from_url(url) as raw,
        raw.pubsub() as subscriber,
    ):
        await subscriber.subscribe(channel)
        await subscriber.get_message(timeout=120)
        for _ in range(30):
            assert await queue.reply(channel, large)
        for _ in range(30):
            message = await subscriber.get_message(timeout=120)
            assert message is not None
            assert message["data"] == encode(large)


@pytest.mark.parametrize("kit", PRODUCTS, indirect=True)
async def test_a_defect_in_what_looks_after_the_queue_does_not_end_it(kit: RequestKit) -> None:
    async with kit.client() as client, responding(kit, at_once) as responder:
        assert (await client.context(agent="One", chat_id="c", context={"n": 1})).text == "1"
        queue: Any = responder._queue
        part, name = (queue, "_look") if isinstance(kit, RedisRequestKit) else (queue._group, "getmany")
        real = getattr(part, name)

        async def fail_once(*_: Any, **__: Any) -> None:
            setattr(part, name, real)
            raise ValueError("a defect")

        with capture_logs() as logs:
            setattr(part, name, fail_once)
            await until(lambda: ("requests_not_kept", "error") in {(log["event"], log["log_level"]) for log in logs})
            await until(lambda: queue._keeper is not None and not queue._keeper.done())
            assert (await client.context(agent="One", chat_id="c", context={"n": 2})).text == "2"


async def test_a_defect_in_reading_a_partition_does_not_end_it(kafka_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = 0
    real = KafkaRequestQueue._follow

    async def fail(self: KafkaRequestQueue, consumer: Any) -> None:
        nonlocal failed
        failed += 1
        if failed <= 3:
            raise ValueError("a defect")
        await real(self, consumer)

    monkeypatch.setattr(KafkaRequestQueue, "_follow", fail)
    kit = KafkaRequestKit(kafka_url)
    async with kit.client() as client:
        with capture_logs() as logs:
            async with responding(kit, at_once):
                for n in range(6):
                    assert (await client.context(agent="One", chat_id="c", context={"n": n})).text == str(n)
                await until(
                    lambda: {log["event"] for log in logs if log["log_level"] == "error"},
                    lambda said: "requests_interrupted" in said,
                )


class BadName(str):
    """A header name that is no UTF-8 on the wire."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xfe"


async def test_a_queue_that_closes_while_it_changes_partitions_leaves_no_consumer_open(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    real_opened, real_stop = KafkaRequestQueue._opened, KafkaRequestQueue._stop_reading
    stopping = asyncio.Event()

    async def noted(queue: KafkaRequestQueue) -> Any:
        opened.append(await real_opened(queue))
        return opened[-1]

    async def slow_at_first(queue: KafkaRequestQueue) -> None:
        if not stopping.is_set():
            stopping.set()
            await asyncio.Event().wait()
        await real_stop(queue)

    monkeypatch.setattr(KafkaRequestQueue, "_opened", noted)
    monkeypatch.setattr(KafkaRequestQueue, "_stop_reading", slow_at_first)
    async with contextlib.aclosing(KafkaRequestQueue(kafka_url, name="one", partitions=3, session_s=60.0)) as queue:
        asking = asyncio.create_task(queue.next(1))
        await stopping.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert [consumer._closed for consumer in opened] == [True]


async def test_kafka_header_names_that_are_no_text_cost_no_request(kafka_url: str) -> None:
    """The one consumer of all partitions gets them as an error: what it had read of others is read again, once."""
    from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

    kit = KafkaRequestKit(kafka_url)
    answered: list[int] = []

    async def count(request: ContextRequest) -> ContextReply:
        answered.append(request.context["n"])
        return await at_once(request)

    async with kit.client() as client, responding(kit, count):
        assert (await client.context(agent="One", chat_id="c", context={"n": 0})).text == "0"
        producer = AIOKafkaProducer(bootstrap_servers=kafka_url.removeprefix("kafka://"))
        await producer.start()
        asking: list[asyncio.Task[ContextReply]] = []
        for partition in range(3):
            batch = producer.create_batch()
            batch._builder = _DefaultRecordBatchBuilderPy(
                magic=2, compression_type=1, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
                batch_size=10_000,
            )  # fmt: skip
            batch.append(key=None, value=b"{}", timestamp=None, headers=[(BadName("x"), b"h")])
            for n in range(1 + 4 * partition, 5 + 4 * partition):
                asking.append(
                    asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": n}, budget_ms=120_000))
                )
                await turns()
            await (await producer.send_batch(batch, channels.CONTEXT_REQUESTS_TOPIC, partition=partition))
        await producer.stop()
        replies = await asyncio.gather(*asking)
    assert [reply.text for reply in replies] == [str(n) for n in range(1, 13)]
    assert sorted(answered) == list(range(13))


async def test_a_request_that_no_responder_could_take_is_not_sent(url: str) -> None:
    async with RedisRequestKit(url).client() as client, redis.Redis.from_url(url) as raw:
        reply = await client.context(agent="One", chat_id="c", context={"v": "y" * MAX_CONTEXT_BYTES})
        assert (reply.reason, "bytes" in reply.detail) == ("invalid_request", True)
        assert await raw.xlen(channels.CONTEXT_REQUESTS) == 0


async def test_requests_that_nobody_takes_are_forgotten_with_time(url: str) -> None:
    async with RedisRequestKit(url).client(100) as client, redis.Redis.from_url(url) as raw:
        for number in range(1, 4):
            await raw.xadd(channels.CONTEXT_REQUESTS, {b"data": b"{}"}, id=f"{number}-0")

        async def forgotten() -> bool:
            await client.context(agent="One", chat_id="c")
            entries = await raw.xrange(channels.CONTEXT_REQUESTS)
            return bool(entries) and len(entries[0][0]) > len("1-0")

        await until(forgotten)
        assert await raw.xlen(channels.CONTEXT_REQUESTS) >= 2  # the new ones are there


@asynccontextmanager
async def replica(kit: RequestKit, graph_url: str, rules: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a responder as a process of its own; it may be killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "graphweft_workers.cli", "run", "injection"),
        env={
            **clean_environment(),
            "GRAPHWEFT_BUS_URL": kit.url,
            "GRAPHWEFT_GRAPH_URL": graph_url,
            "GRAPHWEFT_RULES": str(rules),
        },
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


@pytest.fixture(params=["falkordb", "neo4j"])
def graph_url(request: pytest.FixtureRequest) -> str:
    if request.param == "neo4j":
        neo4j_server: Neo4jServer = request.getfixturevalue("neo4j_server")
        neo4j_server.empty()  # Community has one graph, and another test's app may own it
        return neo4j_server.uri
    server: EmbeddedServer = request.getfixturevalue("server")
    return f"unix://{server.socket}"


async def members(kit: RequestKit) -> int:
    """Return how many replicas share the requests."""
    if isinstance(kit, RedisRequestKit):
        async with redis.Redis.from_url(kit.url) as raw:
            with contextlib.suppress(redis.ResponseError):
                return len(await raw.xinfo_consumers(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP))
        return 0
    if isinstance(kit, ToyRequestKit):
        return len(await bus_driver(kit.url).responders(kit.url))
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(bootstrap_servers=kit.url.removeprefix("kafka://"))
    await admin.start()
    try:
        [response] = await admin.describe_consumer_groups([channels.CONTEXT_GROUP])
        [(_, _, state, _, _, found, *_)] = response.groups
        return len(found) if state == "Stable" else 0
    finally:
        await admin.close()


@pytest.mark.soak("kafka-falkordb", "neo4j", "sqlite")
@pytest.mark.slow
async def test_one_of_two_replicas_is_killed_under_load(kit: RequestKit, graph_url: str, tmp_path: Path) -> None:
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop" / "graph_injection.yaml").write_text(RULES)
    async with contextlib.aclosing(make_graph(Settings(graph_url=SecretStr(graph_url)))) as graph:
        await graph.progress("shop", 0)  # an app without a graph has no rows
    async with kit.client(60_000) as client, AsyncExitStack() as opened:
        first = await opened.enter_async_context(replica(kit, graph_url, tmp_path))
        await opened.enter_async_context(replica(kit, graph_url, tmp_path))

        async def both() -> bool:
            # Kafka makes the topics, and so the group, with the first question.
            await client.context(agent="One", chat_id="c", context={"n": 1}, budget_ms=200)
            try:
                return await members(kit) == 2
            except KafkaError:
                return False

        await until(both)
        assert {reply.reason for reply in await ask_all(client, range(16), agent="Slow", budget_ms=120_000)} == {None}
        replies: dict[int, ContextReply] = {}
        asking = asyncio.create_task(ask_all(client, range(300), agent="Slow", into=replies))
        await until(lambda: len(replies) > 50)
        first.kill()
        await asking
        for n, reply in replies.items():
            assert (reply.reason, reply.injected) == (None, {"one": {"n": n}})
        assert {reply.reason for reply in await ask_all(client, range(50))} == {None}

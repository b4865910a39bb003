"""What every ``RequestQueue`` promises, and with it the whole way from a client's question to its answer."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis.asyncio as redis
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from pydantic import SecretStr
from structlog.testing import capture_logs
from tests.ports import toy
from tests.ports.toy import sqlite_url
from tests.services.environment import clean_environment
from tests.services.fixtures import empty_kafka
from tests.services.kafka import KafkaServer
from tests.services.memories import empty_neo4j
from tests.services.waiting import turns, until

from graphweft import Client
from graphweft.transport import MAX_CONTEXT_BYTES, Transport, read_reply
from graphweft.transports.registry import make_transport
from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest, channels
from graphweft_workers.drivers import bus_driver
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.kafka.requests import KafkaRequestQueue
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.drivers.redis.timing import REDIS_BUS_TIMING, RedisBusTiming
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.ports.request_queue import MAX_REPLY_BYTES, PendingRequest, RequestQueue, encode
from graphweft_workers.roles.connections import make_graph
from graphweft_workers.roles.settings import Settings

__all__ = ("sqlite_url",)  # a fixture

pytestmark = pytest.mark.integration

PRODUCTS = ["redis", "kafka"]
BUSES = [*PRODUCTS, "sqlite"]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus:
    """A real bus that can be restarted."""

    name: str
    url: str
    restart: Callable[[], Awaitable[None]]

    def queue(self, name: str, timing: RedisBusTiming = REDIS_BUS_TIMING) -> RequestQueue:
        """``timing`` is for Redis."""
        if self.name == "kafka":
            return KafkaRequestQueue(self.url, name=name, partitions=3, session_s=3.0)
        if self.name == "sqlite":
            return bus_driver(self.url).make_request_queue(self.url, name=name, partitions=3)
        return RedisRequestQueue(self.url, consumer=name, timing=timing)

    def client(self, budget_ms: int = 30_000, app_id: str = "shop") -> Client:
        return Client(self.url, app_id=app_id, workflow="Shop", budget_ms=budget_ms)


@asynccontextmanager
async def redis_bus() -> AsyncIterator[Bus]:
    """A bus on a server of its own, which is ended with the block."""
    with tempfile.TemporaryDirectory(prefix="graphweft-test-") as folder:
        server = EmbeddedServer(Path(folder))
        await server.start()

        async def restart_redis() -> None:
            assert server.process is not None
            server.process.kill()
            await server.process.wait()
            await server.start()

        try:
            yield Bus(name="redis", url=f"unix://{server.socket}", restart=restart_redis)
        finally:
            await server.stop()


@pytest.fixture(params=BUSES)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    if request.param == "kafka":
        kafka: KafkaServer = request.getfixturevalue("kafka")
        await empty_kafka(kafka)

        async def restart_kafka() -> None:
            await asyncio.to_thread(kafka.kill)
            await asyncio.to_thread(kafka.start)

        yield Bus(name="kafka", url=kafka.url, restart=restart_kafka)
        return
    if request.param == "sqlite":
        url: str = request.getfixturevalue("sqlite_url")

        async def restart_sqlite() -> None:
            toy.stop(url)
            await turns(100)  # clients meet the gap
            toy.start(url)

        yield Bus(name="sqlite", url=url, restart=restart_sqlite)
        return
    async with redis_bus() as own:
        yield own


def request(budget_ms: int = 30_000, **fields: Any) -> ContextRequest:
    values: dict[str, Any] = {
        "id": uuid4().hex, "app_id": "shop", "workflow": "Shop", "agent": "One", "chat_id": "c1",
        "deadline_ms": int(time.time() * 1000) + budget_ms,
    }  # fmt: skip
    return ContextRequest(**values | fields)


def asked(waiting: PendingRequest) -> ContextRequest:
    return ContextRequest.model_validate_json(waiting.body)


def echo(request: ContextRequest, text: str | None = None) -> ContextReply:
    return ContextReply(id=request.id, text=text if text is not None else str(request.context.get("n")))


async def take(queue: RequestQueue, count: int, within_s: float = 90) -> list[PendingRequest]:
    """Take exactly ``count`` requests."""
    taken: list[PendingRequest] = []
    async with asyncio.timeout(within_s):
        while len(taken) < count:
            taken += await queue.next(count - len(taken))
    return taken


async def joined(bus: Bus, transport: Transport, queue: RequestQueue) -> None:
    """Wait until ``queue`` gets requests, by a first one."""
    first = asyncio.create_task(transport.request(request()))
    [waiting] = await take(queue, 1)
    await queue.reply(asked(waiting).reply_to, echo(asked(waiting)))
    queue.done(waiting.token)
    await first


@asynccontextmanager
async def responding(
    bus: Bus, answer: Callable[[ContextRequest], Awaitable[ContextReply]], name: str = "r", **options: Any
) -> AsyncIterator[InjectionResponder]:
    queue = bus.queue(name)
    responder = InjectionResponder(queue, answer, **options)
    task = asyncio.create_task(responder.run())
    try:
        yield responder
    finally:
        responder.stop()
        await task
        await queue.aclose()


async def at_once(request: ContextRequest) -> ContextReply:
    return echo(request)


class Gate:
    """Answers when it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = 0

    async def __call__(self, request: ContextRequest) -> ContextReply:
        self.waiting += 1
        await self.open.wait()
        return echo(request)


async def ask_all(
    client: Client, numbers: Sequence[int], into: dict[int, ContextReply] | None = None, **fields: Any
) -> list[ContextReply]:
    """Ask for each number; sixteen callers share them."""
    left = list(reversed(numbers))
    replies = into if into is not None else {}

    async def ask() -> None:
        while left:
            n = left.pop()
            values: dict[str, Any] = {"agent": "One", "chat_id": "c", "context": {"n": n}}
            replies[n] = await client.context(**values | fields)

    await asyncio.gather(*(ask() for _ in range(16)))
    return [replies[n] for n in numbers]


async def test_each_request_goes_to_one_replica(bus: Bus) -> None:
    patient = RedisBusTiming(alive_ms=60_000)  # no replica counts as dead
    async with AsyncExitStack() as opened:
        queues = [
            await opened.enter_async_context(contextlib.aclosing(bus.queue(name, patient))) for name in ("one", "two")
        ]
        transport = await opened.enter_async_context(contextlib.aclosing(make_transport(bus.url)))
        requests = [request(context={"n": n}) for n in range(60)]
        seen: list[str] = []

        async def serve(queue: RequestQueue) -> None:
            while True:
                for waiting in await queue.next(4):
                    seen.append(asked(waiting).id)
                    assert await queue.reply(asked(waiting).reply_to, echo(asked(waiting)))
                    queue.done(waiting.token)

        serving = [asyncio.create_task(serve(queue)) for queue in queues]
        replies = await asyncio.gather(*(transport.request(each) for each in requests))
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        assert [(reply.id, reply.text) for reply in replies] == [(each.id, str(each.context["n"])) for each in requests]
        # Kafka's partitions change hands while the second one joins; what is read twice is answered twice.
        assert set(seen) == {each.id for each in requests}
        if bus.name != "kafka":
            assert len(seen) == 60


async def test_what_is_done_does_not_come_again_and_what_is_not_does(bus: Bus) -> None:
    async with contextlib.aclosing(make_transport(bus.url)) as transport:
        first = bus.queue("first")
        asking = [asyncio.create_task(transport.request(request(context={"n": n}))) for n in range(6)]
        taken = await take(first, 6)
        for waiting in taken:
            if asked(waiting).context["n"] != 5:
                await first.reply(asked(waiting).reply_to, echo(asked(waiting), "first"))
                first.done(waiting.token)
        await asyncio.wait(asking[:5])
        # It goes without finishing what it has: as a process that is killed, but for what is done.
        first.leave = nothing_left  # type: ignore[method-assign]
        await first.aclose()
        async with contextlib.aclosing(bus.queue("second")) as second:
            again = await take(second, 1)
            while asked(again[-1]).context["n"] != 5:  # Kafka's position stands in front of what is not done
                assert bus.name == "kafka"
                again += await take(second, 1)
            assert await second.reply(asked(again[-1]).reply_to, echo(asked(again[-1]), "second"))
            second.done(again[-1].token)
            assert (await asking[5]).text == "second"
            assert [task.result().text for task in asking[:5]] == ["first"] * 5
            assert second.taken_over >= 1


async def nothing_left() -> list[PendingRequest]:
    return []


async def test_a_slow_replica_keeps_what_it_has() -> None:
    gate = Gate()
    async with redis_bus() as bus, bus.client() as client, redis.Redis.from_url(bus.url) as raw:
        async with responding(bus, gate, "slow") as slow:
            asking = asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 1}))
            await until(lambda: gate.waiting == 1)
            async with responding(bus, at_once, "other") as other:
                # Far older than what is taken from the dead.
                async def old() -> bool:
                    [entry] = await raw.xpending_range(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP, "-", "+", 10)
                    assert entry["consumer"] == b"slow"
                    return bool(entry["time_since_delivered"] > 1_500)

                await until(old)
                gate.open.set()
                assert (await asking).text == "1"
        assert (slow.answered, other.answered) == (1, 0)

        async def gone() -> bool:
            return not await raw.xinfo_consumers(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP)

        await until(gone)
        assert await raw.xlen(channels.CONTEXT_REQUESTS) == 0


async def test_a_dead_replicas_requests_are_taken_over_and_it_is_forgotten() -> None:
    async with redis_bus() as bus, bus.client() as client, redis.Redis.from_url(bus.url) as raw:
        await raw.xgroup_create(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP, id="0", mkstream=True)
        asking = asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 1}))
        # Somebody who has read, and then gave no sign of life any more.
        assert await raw.xreadgroup(
            channels.CONTEXT_GROUP, "dead", {channels.CONTEXT_REQUESTS: ">"}, count=1, block=10_000
        )
        async with responding(bus, at_once) as responder:
            assert (await asking).text == "1"
            assert responder.counts()["taken_over"] == 1
            names = [
                consumer["name"]
                for consumer in await raw.xinfo_consumers(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP)
            ]
            assert names == [b"r"]


async def test_a_request_is_handed_on_once() -> None:
    async with redis_bus() as bus, AsyncExitStack() as opened:
        raw = await opened.enter_async_context(redis.Redis.from_url(bus.url))
        first, second, third = [
            await opened.enter_async_context(contextlib.aclosing(RedisRequestQueue(bus.url, consumer=name)))
            for name in ("first", "second", "third")
        ]
        transport = await opened.enter_async_context(contextlib.aclosing(make_transport(bus.url)))
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
        assert (third.taken_over, list(await third.next(1, wait=False))) == (0, [])
        # It may still be answered by one that only stood still for a while.
        assert await second.reply(asked(again).reply_to, echo(asked(again)))
        assert (await asking).text == "1"


async def stand_still(queue: RedisRequestQueue) -> None:
    """Let a replica give no sign of life any more, as if its event loop did not turn."""
    assert queue._keeper is not None
    queue._keeper.cancel()
    await asyncio.gather(queue._keeper, return_exceptions=True)


async def test_a_responder_that_is_cancelled_leaves_what_it_has_to_others(bus: Bus) -> None:
    gate = Gate()
    async with bus.client() as client:
        queue = bus.queue("cancelled")
        responder = InjectionResponder(queue, gate, max_requests=1)
        running = asyncio.create_task(responder.run())
        asking = [asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": n})) for n in range(3)]
        await until(lambda: gate.waiting == 1 and len(responder._waiting) == 2)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        await queue.aclose()
        async with responding(bus, at_once, "other") as other:
            assert [(await task).text for task in asking] == ["0", "1", "2"]
            await until(lambda: other.answered >= 3)


async def test_a_replica_that_leaves_hands_over_what_it_has_read(bus: Bus) -> None:
    gate = Gate()
    async with bus.client() as client:
        async with responding(bus, gate) as responder:
            asking = [
                asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": n})) for n in range(20)
            ]
            await until(lambda: gate.waiting == 20)
            responder.stop()
            gate.open.set()
        assert [(reply.reason, reply.text) for reply in await asyncio.gather(*asking)] == [
            (None, str(n)) for n in range(20)
        ]
        assert responder.counts() == {"answered": 20, "expired": 0, "refused": 0, "shed": 0, "taken_over": 0}
        async with responding(bus, at_once, "next") as after:
            assert (await client.context(agent="One", chat_id="c", context={"n": 7})).text == "7"
        assert after.answered == 1


async def test_an_answer_that_is_late_is_given_to_nobody(bus: Bus) -> None:
    async with contextlib.aclosing(bus.queue("r")) as queue, bus.client() as client:
        transport = client._transport
        await joined(bus, transport, queue)
        with pytest.raises(TimeoutError):
            await transport.request(request(200))
        [late] = await take(queue, 1)
        await until(lambda: time.time() * 1000, lambda now: now >= asked(late).deadline_ms)
        again = asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 2}))
        [second] = await take(queue, 1)
        await queue.reply(asked(late).reply_to, echo(asked(late), "late"))
        for text in ("first", "second"):  # and of two answers the first counts
            await queue.reply(asked(second).reply_to, echo(asked(second), text))
        assert (await again).text == "first"
        queue.done(late.token)
        queue.done(second.token)


def test_an_answer_behind_the_deadline_is_none() -> None:
    body = ContextReply(id="1").model_dump_json().encode()
    assert read_reply(request(30_000), body).id == "1"
    with pytest.raises(TimeoutError):
        read_reply(request(-1), body)
    with pytest.raises(BusUnavailable):
        read_reply(request(30_000), b"{}")


async def test_a_late_request_is_dropped_and_counted(bus: Bus) -> None:
    late = request(-1, reply_to="graphweft.context.replies:0")
    async with bus.client() as client:
        async with responding(bus, at_once) as responder:
            assert (await client.context(agent="One", chat_id="c", context={"n": 1})).text == "1"
            await put(bus, late)
            await until(lambda: responder.expired == 1)
            assert (await client.context(agent="One", chat_id="c", context={"n": 2})).text == "2"
        assert responder.counts() == {"answered": 2, "expired": 1, "refused": 0, "shed": 0, "taken_over": 0}


class Newer(ContextRequest):
    """As a client of a later version may send it."""

    mood: str = "good"


def newer(budget_ms: int = 30_000, **fields: Any) -> Newer:
    return Newer(**request(budget_ms, **fields).model_dump())


async def test_a_request_that_breaks_the_contract_is_answered_so(bus: Bus) -> None:
    no_app = request().model_copy(update={"app_id": "../other"})
    async with contextlib.aclosing(make_transport(bus.url)) as transport, responding(bus, at_once) as responder:
        for broken, word in ((newer(), "mood"), (no_app, "app_id"), (newer(deadline_ms=10**30), "mood")):
            async with asyncio.timeout(30):
                reply = await transport.request(broken)
            assert (reply.id, reply.reason, reply.partial) == (broken.id, "invalid_request", True)
            assert word in reply.detail
            assert "../other" not in reply.detail
        await put(bus, newer(-1, reply_to="graphweft.context.replies:0"))
        await until(lambda: responder.expired == 1)
        assert responder.answered == 0


async def test_a_refusal_that_fails_ends_nothing(bus: Bus) -> None:
    async with contextlib.aclosing(make_transport(bus.url)) as transport, responding(bus, at_once) as responder:
        queue, send = responder._queue, responder._queue.reply

        async def reply(channel: str, reply: ContextReply) -> bool:
            if reply.reason == "invalid_request":
                raise ValueError("a defect")
            return await send(channel, reply)

        assert (await transport.request(request(context={"n": 0}))).text == "0"
        queue.reply = reply  # type: ignore[method-assign]
        with capture_logs() as logs, pytest.raises(TimeoutError):
            await transport.request(newer(1_000))
        assert "request_failed" in {log["event"] for log in logs}
        assert (await transport.request(request(context={"n": 1}))).text == "1"


async def test_answers_go_to_clients_only(bus: Bus) -> None:
    forged = ["", "x", "graphweft:context:requests", "graphweft.context.replies", "graphweft.context.requests:0"]
    forged += [f"graphweft.context.replies:{number}" for number in ("9" * 9, "1" * 5_000, "-1", "\u0663", "0\n")]
    async with AsyncExitStack() as opened:
        if bus.name == "redis":  # so that somebody listens
            subscriber = (await opened.enter_async_context(redis.Redis.from_url(bus.url))).pubsub()
            opened.push_async_callback(subscriber.aclose)
            await subscriber.subscribe(*forged)
            for _ in forged:
                await subscriber.get_message(timeout=5)
        queue = await opened.enter_async_context(contextlib.aclosing(bus.queue("r")))
        transport = await opened.enter_async_context(contextlib.aclosing(make_transport(bus.url)))
        await joined(bus, transport, queue)
        for channel in forged:
            assert not await queue.reply(channel, echo(request(context={"n": 1})))


async def test_an_answer_that_is_too_large_says_so(bus: Bus) -> None:
    async def answer(request: ContextRequest) -> ContextReply:
        return echo(request, "x" * request.context["n"])

    async with bus.client() as client, responding(bus, answer):
        room = MAX_REPLY_BYTES - len(encode(ContextReply(id=uuid4().hex)))
        for size in (room - 100, room + 1, 10 * room):
            reply = await client.context(agent="One", chat_id="c", context={"n": size})
            if size < room:
                assert (reply.reason, len(reply.text)) == (None, size)
            else:
                assert (reply.reason, reply.text, reply.partial) == ("internal_error", "", True)
                assert str(MAX_REPLY_BYTES) in reply.detail


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
        await subscriber.get_message(timeout=5)
        for _ in range(30):
            assert await queue.reply(channel, large)
        for _ in range(30):
            message = await subscriber.get_message(timeout=5)
            assert message is not None
            assert message["data"] == encode(large)


async def test_clocks_that_differ_are_told_of_once(bus: Bus) -> None:
    tells_age = bus.name != "kafka"
    async with contextlib.aclosing(make_transport(bus.url)) as transport:
        with capture_logs() as logs:
            soon = request(300, reply_to="graphweft.context.replies:0")
            await put(bus, soon) if tells_age else None
            await until(lambda: time.time() * 1000, lambda now: now >= soon.deadline_ms + 200)
            async with responding(bus, at_once) as responder:
                expired = 1 if tells_age else 0
                await until(lambda: responder.expired == expired)
                assert (await transport.request(request(context={"n": 1}))).text == "1"
                assert "clock_skew" not in {log["event"] for log in logs}
                for number in range(1, 4):  # a clock that is ten seconds behind
                    await put(bus, request(-10_000, reply_to="graphweft.context.replies:0"))
                    await until(lambda number=number: responder.expired == expired + number)
                    assert (await transport.request(request(context={"n": 1}))).text == "1"
        skews = [log for log in logs if log["event"] == "clock_skew"]
        # Kafka does not tell when it got a request.
        assert [(log["log_level"], 9_000 < log["late_ms"] < 60_000) for log in skews] == [("warning", True)] * expired


@pytest.mark.parametrize("bus", PRODUCTS, indirect=True)
async def test_a_defect_in_what_looks_after_the_queue_does_not_end_it(bus: Bus) -> None:
    async with bus.client() as client, responding(bus, at_once) as responder:
        assert (await client.context(agent="One", chat_id="c", context={"n": 1})).text == "1"
        queue: Any = responder._queue
        part, name = (queue, "_look") if bus.name == "redis" else (queue._group, "getmany")
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
    bus = Bus(name="kafka", url=kafka_url, restart=nowhere)
    async with bus.client() as client:
        with capture_logs() as logs:
            async with responding(bus, at_once):
                for n in range(6):
                    assert (await client.context(agent="One", chat_id="c", context={"n": n})).text == str(n)
        assert "requests_interrupted" in {log["event"] for log in logs if log["log_level"] == "error"}


class BadName(str):
    """A header name that is no UTF-8 on the wire."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xfe"


async def test_kafka_header_names_that_are_no_text_cost_no_request(kafka_url: str) -> None:
    """The one consumer of all partitions gets them as an error: what it had read of others is read again, once."""
    from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

    bus = Bus(name="kafka", url=kafka_url, restart=nowhere)
    answered: list[int] = []

    async def count(request: ContextRequest) -> ContextReply:
        answered.append(request.context["n"])
        return await at_once(request)

    async with bus.client() as client, responding(bus, count):
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
                    asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": n}, budget_ms=60_000))
                )
                await turns()
            await (await producer.send_batch(batch, channels.CONTEXT_REQUESTS_TOPIC, partition=partition))
        await producer.stop()
        replies = await asyncio.gather(*asking)
    assert [reply.text for reply in replies] == [str(n) for n in range(1, 13)]
    assert sorted(answered) == list(range(13))


async def put(bus: Bus, each: ContextRequest) -> None:
    body = each.model_dump_json().encode()
    if bus.name == "redis":
        async with redis.Redis.from_url(bus.url) as raw:
            await raw.xadd(channels.CONTEXT_REQUESTS, {b"data": body})
        return
    if bus.name == "sqlite":
        toy.put_request(bus.url, body)
        return
    producer = AIOKafkaProducer(bootstrap_servers=bus.url.removeprefix("kafka://"))
    await producer.start()
    await producer.send_and_wait(channels.CONTEXT_REQUESTS_TOPIC, body, headers=[("odd", b"\xff")])
    await producer.stop()


async def test_overload_is_said_at_once(bus: Bus) -> None:
    gate = Gate()
    async with bus.client() as client, responding(bus, gate, max_requests=2) as responder:
        asking = {asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": n})) for n in range(38)}
        # Two are worked on, 32 wait.
        done = await until(lambda: {task for task in asking if task.done()}, lambda found: len(found) >= 4)
        assert {task.result().reason for task in done} == {"overloaded"}
        assert "GRAPHWEFT_MAX_REQUESTS" in next(iter(done)).result().detail
        gate.open.set()
        replies = await asyncio.gather(*asking)
        assert sorted(str(reply.reason) for reply in replies) == ["None"] * 34 + ["overloaded"] * 4
        await until(lambda: responder.answered >= 34)  # counted behind the reply
        assert (responder.answered, responder.shed) == (34, 4)


async def test_who_cannot_be_met_is_told_so_and_the_others_wait(bus: Bus) -> None:
    served = asyncio.Semaphore(0)

    async def answer(request: ContextRequest) -> ContextReply:
        await served.acquire()
        return echo(request)

    async with bus.client() as client, responding(bus, answer, max_requests=1) as responder:
        asking = [asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 0}))]
        await until(lambda: responder._free == 0)
        responder._apps["shop"].service_s = 5.0  # as requests took of late
        asking.append(asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 1})))
        await until(lambda: len(responder._waiting) == 1)
        short = await client.context(agent="One", chat_id="c", context={"n": 2}, budget_ms=12_000)
        assert short.reason == "overloaded"
        assert short.elapsed_ms < 6_000  # not when its time is nearly over, which would be after seven seconds
        served.release()
        served.release()
        assert [(await task).text for task in asking] == ["0", "1"]


async def test_requests_that_take_long_already_count_before_they_are_answered(bus: Bus) -> None:
    gate = Gate()
    async with bus.client() as client, responding(bus, gate, max_requests=1) as responder:
        asking = [asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 0}))]
        await until(lambda: responder._free == 0)
        asking.append(asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 1})))
        await until(lambda: len(responder._waiting) == 1)
        [first] = responder._begun
        responder._begun[first] = first.app.begun[first] = time.perf_counter() - 10
        short = await client.context(agent="One", chat_id="c", context={"n": 2}, budget_ms=15_000)
        assert short.reason == "overloaded"
        assert not asking[1].done()
        responder._begun[first] = first.app.begun[first] = time.perf_counter() - 40
        assert (await asking[1]).reason == "overloaded"
        assert not asking[0].done()
        gate.open.set()
        assert (await asking[0]).text == "0"


async def test_an_app_leaves_half_of_the_places_to_the_others(bus: Bus) -> None:
    gate = Gate()

    async def answer(request: ContextRequest) -> ContextReply:
        return await gate(request) if request.app_id == "shop" else echo(request)

    async with (
        bus.client() as shop,
        bus.client(app_id="bank") as bank,
        responding(bus, answer, max_requests=8) as responder,
    ):
        asking = [asyncio.create_task(shop.context(agent="One", chat_id="c", context={"n": n})) for n in range(104)]
        await until(lambda: responder.shed == 4)
        assert (gate.waiting, len(responder._waiting)) == (4, 96)
        for n in range(10):
            reply = await bank.context(agent="One", chat_id="c", context={"n": n}, budget_ms=60_000)
            assert (reply.reason, reply.text) == (None, str(n))
        gate.open.set()
        replies = await asyncio.gather(*asking)
        assert sorted(str(reply.reason) for reply in replies) == ["None"] * 100 + ["overloaded"] * 4


async def test_a_full_room_makes_room_for_an_app_that_has_less(bus: Bus) -> None:
    served = asyncio.Semaphore(0)

    async def answer(request: ContextRequest) -> ContextReply:
        if request.app_id != "small":
            await served.acquire()
        return echo(request)

    budget_ms = 300_000
    async with (
        bus.client(budget_ms) as shop,
        bus.client(budget_ms, app_id="bank") as bank,
        bus.client(budget_ms, app_id="small") as small,
        responding(bus, answer, max_requests=8) as responder,
    ):
        asking = [asyncio.create_task(shop.context(agent="One", chat_id="c", context={"n": n})) for n in range(100)]
        await until(lambda: len(responder._waiting) == 96)
        asking += [asyncio.create_task(bank.context(agent="One", chat_id="c", context={"n": n})) for n in range(36)]
        await until(lambda: len(responder._waiting) == 128)
        responder._service_s = 40.0  # as requests took of late: behind all who wait it would be too late
        asked = asyncio.create_task(small.context(agent="One", chat_id="c", context={"n": 1}))
        await until(lambda: responder.shed == 1)
        assert not asked.done()
        served.release()
        assert (await asked).text == "1"
        assert sum(task.done() for task in asking) <= 2  # the one that made room, and the one that gave its place
        for _ in asking:
            served.release()
        replies = await asyncio.gather(*asking)
        assert sorted(str(reply.reason) for reply in replies) == ["None"] * 135 + ["overloaded"]
        assert "overloaded" in {reply.reason for reply in replies[:100]}


async def test_a_request_that_no_responder_could_take_is_not_sent(url: str) -> None:
    deep: Any = 1
    for _ in range(210):
        deep = [deep]
    async with Bus(name="redis", url=url, restart=nowhere).client() as client, redis.Redis.from_url(url) as raw:
        for value, word in (("y" * MAX_CONTEXT_BYTES, "bytes"), (deep, "nested")):
            reply = await client.context(agent="One", chat_id="c", context={"v": value})
            assert (reply.reason, word in reply.detail) == ("invalid_request", True)
        assert await raw.xlen(channels.CONTEXT_REQUESTS) == 0


async def nowhere() -> None:
    raise AssertionError


async def test_requests_that_nobody_takes_are_forgotten_with_time(url: str) -> None:
    async with Bus(name="redis", url=url, restart=nowhere).client(100) as client, redis.Redis.from_url(url) as raw:
        for number in range(1, 4):
            await raw.xadd(channels.CONTEXT_REQUESTS, {b"data": b"{}"}, id=f"{number}-0")

        async def forgotten() -> bool:
            await client.context(agent="One", chat_id="c")
            entries = await raw.xrange(channels.CONTEXT_REQUESTS)
            return bool(entries) and len(entries[0][0]) > len("1-0")

        await until(forgotten)
        assert await raw.xlen(channels.CONTEXT_REQUESTS) >= 2  # the new ones are there


async def test_a_bus_that_restarts_under_load_is_survived(bus: Bus) -> None:
    async with bus.client(8_000) as client, AsyncExitStack() as opened:
        one = await opened.enter_async_context(responding(bus, at_once, "one"))
        two = await opened.enter_async_context(responding(bus, at_once, "two"))
        assert (await client.context(agent="One", chat_id="c", context={"n": 0}, budget_ms=30_000)).reason is None
        asking = asyncio.create_task(ask_all(client, range(3_000), budget_ms=1_000))
        await until(lambda: one.answered + two.answered > 500)
        await bus.restart()
        replies = await asking
        for n, reply in enumerate(replies):
            assert reply.text == str(n) or reply.reason in ("bus_unavailable", "timeout"), reply

        async def back() -> bool:
            return (await client.context(agent="One", chat_id="c", context={"n": 0})).reason is None

        await until(back)
        assert {reply.reason for reply in await ask_all(client, range(200), budget_ms=30_000)} == {None}


@asynccontextmanager
async def replica(bus: Bus, graph_url: str, rules: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a responder as a process of its own; it may be killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "graphweft_workers.cli", "run", "injection"),
        env={
            **clean_environment(),
            "GRAPHWEFT_BUS_URL": bus.url,
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
        uri = str(request.getfixturevalue("neo4j_server").uri)
        empty_neo4j(uri)  # Community has one graph, and another test's app may own it
        return uri
    server: EmbeddedServer = request.getfixturevalue("server")
    return f"unix://{server.socket}"


async def members(bus: Bus) -> int:
    """Return how many replicas share the requests."""
    if bus.name == "redis":
        async with redis.Redis.from_url(bus.url) as raw:
            with contextlib.suppress(redis.ResponseError):
                return len(await raw.xinfo_consumers(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP))
        return 0
    if bus.name == "sqlite":
        return len(await bus_driver(bus.url).responders(bus.url))
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(bootstrap_servers=bus.url.removeprefix("kafka://"))
    await admin.start()
    try:
        [response] = await admin.describe_consumer_groups([channels.CONTEXT_GROUP])
        [(_, _, state, _, _, found, *_)] = response.groups
        return len(found) if state == "Stable" else 0
    finally:
        await admin.close()


@pytest.mark.soak("redis-neo4j", "kafka-falkordb", "sqlite-neo4j")
@pytest.mark.slow
async def test_one_of_two_replicas_is_killed_under_load(bus: Bus, graph_url: str, tmp_path: Path) -> None:
    (tmp_path / "Shop").mkdir()
    (tmp_path / "Shop" / "graph_injection.yaml").write_text(RULES)
    async with contextlib.aclosing(make_graph(Settings(graph_url=SecretStr(graph_url)))) as graph:
        await graph.progress("shop", 0)  # an app without a graph has no rows
    # Kafka notices a death after six seconds only: its partitions wait, so requests are late at any budget below that.
    budget_ms = 4_000 if bus.name == "kafka" else 60_000
    async with bus.client(budget_ms) as client, AsyncExitStack() as opened:
        first = await opened.enter_async_context(replica(bus, graph_url, tmp_path))
        await opened.enter_async_context(replica(bus, graph_url, tmp_path))

        async def both() -> bool:
            # Kafka makes the topics, and so the group, with the first question.
            await client.context(agent="One", chat_id="c", context={"n": 1}, budget_ms=200)
            try:
                return await members(bus) == 2
            except KafkaError:
                return False

        await until(both)
        assert {reply.reason for reply in await ask_all(client, range(16), agent="Slow", budget_ms=60_000)} == {None}
        replies: dict[int, ContextReply] = {}
        asking = asyncio.create_task(ask_all(client, range(300), agent="Slow", into=replies))
        await until(lambda: len(replies) > 50)
        first.kill()
        await asking
        for n, reply in replies.items():
            if reply.reason is None:
                assert reply.injected == {"one": {"n": n}}
            else:
                assert (bus.name, reply.reason) == ("kafka", "timeout"), reply
        assert sum(reply.reason is None for reply in replies.values()) > 100

        async def all_answered() -> bool:
            return {reply.reason for reply in await ask_all(client, range(50))} == {None}

        await until(all_answered)

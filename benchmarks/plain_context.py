"""Context as one would write it by hand: a request on a stream or topic, one query with the driver, the rows back.

``python -m benchmarks.plain_context`` answers; ``Requester`` asks. It is built as anybody would who knows the servers:
one connection for each direction, one inbox of a process, futures by id, several requests at a time. It has no
deadline, no budget, no rules, no reason for what is missing, and loses the requests of a process that dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol
from uuid import uuid4

import redis.asyncio as redis
from tests.services.rules import load_rules

from benchmarks.workload import APP, CALLS
from graphweft_contracts import channels
from graphweft_workers.settings.settings import Settings

REQUESTS: Final = "plain-requests"
REPLIES: Final = "plain-replies"
_PARTITIONS: Final = 4
_AT_ONCE: Final = 64

type Rows = list[list[Any]]
type Query = Callable[[str, dict[str, Any]], Awaitable[Rows]]


class Requester(Protocol):
    """One process's side."""

    async def ask(self, chat: str, nonce: int) -> Rows: ...


def statement() -> str:
    """Return the query of the rule that the engine is asked for."""
    [rule, *_] = load_rules(CALLS.rules).workflows["Calls"].injection_rules
    cypher = rule.parts[0].cypher
    assert cypher is not None
    return cypher.statement


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Query]:
    """Lend what reads FalkorDB by its own driver."""
    from falkordb.asyncio.graph import AsyncGraph

    client: Any = redis.Redis.from_url(url, decode_responses=True, protocol=2)
    graph: Any = AsyncGraph(client, channels.graph_name(APP))

    async def query(text: str, params: dict[str, Any]) -> Rows:
        rows: Rows = (await graph.ro_query(text, params)).result_set
        return rows

    try:
        yield query
    finally:
        await client.aclose()


@asynccontextmanager
async def asker(bus_url: str) -> AsyncGenerator[Requester]:
    """Lend who asks over Redis or Kafka."""
    kind = _KafkaAsker if bus_url.startswith("kafka://") else _RedisAsker
    made = kind(bus_url)
    await made.start()
    try:
        yield made
    finally:
        await made.aclose()


async def main() -> None:
    """Answer until the process is ended."""
    settings = Settings.load()
    text, room = statement(), asyncio.Semaphore(_AT_ONCE)
    async with connected(settings.graph) as query, asyncio.TaskGroup() as tasks:

        async def answer(data: bytes, send: Callable[[str, bytes], Awaitable[Any]]) -> None:
            try:
                request = json.loads(data)
                rows = await query(text, {"chat": request["chat"], "nonce": request["nonce"]})
                await send(request["reply_to"], f"{request['id']}\n{json.dumps(rows)}".encode())
            finally:
                room.release()

        serve = _serve_kafka if settings.bus.startswith("kafka://") else _serve_redis
        async for data, send in serve(settings.bus):
            await room.acquire()
            tasks.create_task(answer(data, send))


type _Delivery = tuple[bytes, Callable[[str, bytes], Awaitable[Any]]]


async def _serve_redis(url: str) -> AsyncGenerator[_Delivery]:
    reading: Any = redis.Redis.from_url(url, protocol=2)
    sending: Any = redis.Redis.from_url(url)
    with contextlib.suppress(redis.ResponseError):
        await reading.xgroup_create(REQUESTS, REQUESTS, id="$", mkstream=True)
    while True:
        found = await reading.xreadgroup(REQUESTS, "one", {REQUESTS: ">"}, count=_AT_ONCE, block=1_000, noack=True)
        for _, entries in found:
            for _, fields in entries:
                yield fields[b"data"], sending.publish


async def _serve_kafka(url: str) -> AsyncGenerator[_Delivery]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    servers = url.removeprefix("kafka://")
    await _make_topics(servers)
    consumer = AIOKafkaConsumer(REQUESTS, bootstrap_servers=servers, group_id=REQUESTS, auto_offset_reset="latest")
    producer = AIOKafkaProducer(bootstrap_servers=servers, linger_ms=0, acks=1)
    await consumer.start()
    await producer.start()

    async def send(topic: str, data: bytes) -> None:
        await producer.send(topic, data, partition=0)

    async for message in consumer:
        yield message.value, send


class _Waiting:
    """Futures by id."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[bytes]] = {}

    async def reply(self, send: Callable[[str], Awaitable[Any]]) -> Rows:
        request_id = uuid4().hex
        future = asyncio.get_running_loop().create_future()
        self._futures[request_id] = future
        try:
            await send(request_id)
            async with asyncio.timeout(30):
                rows: Rows = json.loads(await future)
            return rows
        finally:
            del self._futures[request_id]

    def deliver(self, data: bytes) -> None:
        request_id, _, body = data.partition(b"\n")
        future = self._futures.get(request_id.decode())
        if future is not None and not future.done():
            future.set_result(body)


class _RedisAsker:
    def __init__(self, url: str) -> None:
        self._redis: Any = redis.Redis.from_url(url)
        self._reply_to = f"{REPLIES}:{uuid4().hex}"
        self._waiting = _Waiting()

    async def start(self) -> None:
        self._inbox = self._redis.pubsub()
        await self._inbox.subscribe(self._reply_to)
        self._task = asyncio.create_task(self._listen())

    async def ask(self, chat: str, nonce: int) -> Rows:
        async def send(request_id: str) -> None:
            request = {"id": request_id, "reply_to": self._reply_to, "chat": chat, "nonce": nonce}
            await self._redis.xadd(REQUESTS, {"data": json.dumps(request)}, maxlen=10_000, approximate=True)

        return await self._waiting.reply(send)

    async def aclose(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._inbox.aclose()
        await self._redis.aclose()

    async def _listen(self) -> None:
        async for message in self._inbox.listen():
            if message["type"] == "message":
                self._waiting.deliver(message["data"])


class _KafkaAsker:
    def __init__(self, url: str) -> None:
        self._servers = url.removeprefix("kafka://")
        self._waiting = _Waiting()
        self._sent = 0

    async def start(self) -> None:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

        await _make_topics(self._servers)
        self._producer: Any = AIOKafkaProducer(bootstrap_servers=self._servers, linger_ms=0, acks=1)
        self._inbox: Any = AIOKafkaConsumer(bootstrap_servers=self._servers)
        await self._producer.start()
        await self._inbox.start()
        inbox = TopicPartition(REPLIES, 0)
        self._inbox.assign([inbox])
        await self._inbox.seek_to_end(inbox)
        await self._inbox.position(inbox)
        self._task = asyncio.create_task(self._listen())

    async def ask(self, chat: str, nonce: int) -> Rows:
        async def send(request_id: str) -> None:
            request = {"id": request_id, "reply_to": REPLIES, "chat": chat, "nonce": nonce}
            self._sent += 1
            await self._producer.send(REQUESTS, json.dumps(request).encode(), partition=self._sent % _PARTITIONS)

        return await self._waiting.reply(send)

    async def aclose(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._inbox.stop()
        await self._producer.stop()

    async def _listen(self) -> None:
        async for message in self._inbox:
            self._waiting.deliver(message.value)


async def _make_topics(servers: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic
    from aiokafka.errors import TopicAlreadyExistsError

    admin: Any = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        for name, partitions in ((REQUESTS, _PARTITIONS), (REPLIES, 1)):
            with contextlib.suppress(TopicAlreadyExistsError):
                await admin.create_topics([NewTopic(name, partitions, 1)])
    finally:
        await admin.close()


if __name__ == "__main__":
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    asyncio.run(main())

"""The buses of the tests, for the suite of request queues."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import redis.asyncio as redis
from aiokafka import AIOKafkaProducer
from tests.services.kafka import KafkaServer

from graphweft_contracts import channels
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.kafka.requests import KafkaRequestQueue
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.drivers.redis.timing import REDIS_BUS_TIMING, RedisBusTiming
from graphweft_workers.ports.request_queue import RequestQueue
from graphweft_workers.testing.suites.request_kit import RequestFeatures, RequestKit

__all__ = ("KafkaRequestKit", "RedisRequestKit", "redis_request_kit")


class RedisRequestKit(RequestKit):
    """``server`` is one that may be restarted."""

    def __init__(self, url: str, server: EmbeddedServer | None = None) -> None:
        self.url = url
        self.server = server

    def queue(self, name: str, *, patient: bool = False) -> RequestQueue:
        timing = RedisBusTiming(alive_ms=60_000) if patient else REDIS_BUS_TIMING
        return RedisRequestQueue(self.url, consumer=name, timing=timing)

    async def put(self, body: bytes) -> None:
        async with redis.Redis.from_url(self.url) as raw:
            await raw.xadd(channels.CONTEXT_REQUESTS, {b"data": body})

    async def restart(self) -> None:
        assert self.server is not None
        assert self.server.process is not None
        self.server.process.kill()
        await self.server.process.wait()
        await self.server.start()

    @contextlib.asynccontextmanager
    async def listening(self, channels: Sequence[str]) -> AsyncIterator[Any]:
        async with redis.Redis.from_url(self.url) as raw, raw.pubsub() as subscriber:
            await subscriber.subscribe(*channels)
            for _ in channels:
                await subscriber.get_message(timeout=120)
            yield subscriber


class KafkaRequestKit(RequestKit):
    features = RequestFeatures(reads_once=False, tells_age=False)

    def __init__(self, url: str, server: KafkaServer | None = None) -> None:
        self.url = url
        self.server = server

    def queue(self, name: str, *, patient: bool = False) -> RequestQueue:
        return KafkaRequestQueue(self.url, name=name, partitions=3, session_s=60.0 if patient else 3.0)

    async def put(self, body: bytes) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.url.removeprefix("kafka://"))
        await producer.start()
        await producer.send_and_wait(channels.CONTEXT_REQUESTS_TOPIC, body, headers=[("odd", b"\xff")])
        await producer.stop()

    async def restart(self) -> None:
        assert self.server is not None
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)


@contextlib.asynccontextmanager
async def redis_request_kit() -> AsyncIterator[RedisRequestKit]:
    """Yield a bus on a server of its own, which is ended with the block."""
    with tempfile.TemporaryDirectory(prefix="graphweft-test-") as folder:
        server = EmbeddedServer(Path(folder))
        await server.start()
        try:
            yield RedisRequestKit(f"unix://{server.socket}", server)
        finally:
            await server.stop()

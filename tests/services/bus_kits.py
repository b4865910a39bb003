"""The buses of the tests, for the suite of the port."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import redis.asyncio as redis
from tests.services.kafka import KafkaServer

from graphweft_contracts import Layout, channels, wire
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.kafka.bus import kafka_bus
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.ports.bus import Bus
from graphweft_workers.testing.suites.bus_kit import OWNER, BusFeatures, BusKit, claimed

__all__ = ("KafkaBusKit", "RedisBusKit", "redis_bus_kit")


class RedisBusKit(BusKit):
    """``server`` is one that may be stopped."""

    beyond = "99999999999999-0"

    def __init__(self, url: str, server: EmbeddedServer | None = None) -> None:
        super().__init__()
        self.url = url
        self.server = server
        self.redis: Any = redis.Redis.from_url(url)

    def make_bus(self, new: Layout, group: str, session_s: float) -> Bus:
        return redis_bus(self.url, new=new, group=group)

    async def write(self, partition: int, values: Sequence[bytes]) -> None:
        pipeline = self.redis.pipeline(transaction=False)
        for value in values:
            pipeline.xadd(channels.events_stream(partition), {wire.DATA: value})
        await pipeline.execute()

    async def trim(self, partition: int, keep: int) -> None:
        await self.redis.xtrim(channels.events_stream(partition), maxlen=keep, approximate=False)

    async def stop(self) -> None:
        assert self.server is not None
        await self.server.stop()

    async def start(self) -> None:
        assert self.server is not None
        await self.server.start()

    async def sent_bytes(self) -> int | None:
        return int((await self.redis.info("stats"))["total_net_output_bytes"])

    async def aclose(self) -> None:
        await super().aclose()
        await self.redis.aclose()


@contextlib.asynccontextmanager
async def redis_bus_kit() -> AsyncIterator[RedisBusKit]:
    """Yield a bus on a server of its own, which is ended with the block."""
    with tempfile.TemporaryDirectory(prefix="graphweft-bus-") as folder:
        server = EmbeddedServer(Path(folder))
        await server.start()
        try:
            async with contextlib.aclosing(RedisBusKit(f"unix://{server.socket}", server)) as kit:
                yield kit
        finally:
            await server.stop()


class KafkaBusKit(BusKit):
    features = BusFeatures(lease_keeper=False, moves_least=False, revokes_all=True)

    def __init__(self, server: KafkaServer) -> None:
        super().__init__()
        self.server = server

    def make_bus(self, new: Layout, group: str, session_s: float) -> Bus:
        return kafka_bus(self.server.url, new=new, session_s=session_s, barrier_s=20.0, group=group)

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


async def _nothing() -> None:
    return None

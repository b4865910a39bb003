"""Records by key on Kafka, and the topic of effects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from aiokafka import TopicPartition

from graphweft.transports.kafka.connection import Servers
from graphweft_contracts import channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.effects import Effects
from graphweft_workers.drivers.kafka.log_times import BROKERS_TIME
from graphweft_workers.drivers.kafka.producer import RecordWriter
from graphweft_workers.drivers.kafka.reader import RangeReader
from graphweft_workers.drivers.kafka.timing import KAFKA_BUS_TIMING, KafkaBusTiming
from graphweft_workers.ports.records import Records


class KafkaRecords:
    """``RecordLog`` on a compacted topic. A process keeps the latest records, and reads only new ones."""

    def __init__(
        self,
        servers: Servers,
        topic: str,
        ready: Callable[[], Awaitable[object]],
        *,
        clock: Clock = SYSTEM_CLOCK,
        timing: KafkaBusTiming = KAFKA_BUS_TIMING,
    ) -> None:
        """``ready`` makes the topics."""
        self._ready = ready
        self._topic: Any = TopicPartition(topic, 0)
        self._clock = clock
        self._timing = timing
        self._reader = RangeReader(servers)
        self._writer = RecordWriter(servers, topic, "the record was not written")
        self._reading = asyncio.Lock()
        self._known: dict[str, tuple[int, bytes]] = {}
        """By key: the offset of the last record, and the record."""
        self._next = 0
        self._read_at = 0.0

    async def put(self, key: str, record: bytes | None) -> datetime | None:
        """See ``RecordLog.put``. The brokers say the time if the topic has theirs, which new topics have."""
        await self._ready()
        [done] = await self._writer.write([(key.encode(), record, ())])
        return datetime.fromtimestamp(done.timestamp / 1000, UTC) if done.timestamp_type == BROKERS_TIME else None

    async def after(self, mark: int | None) -> Records:
        """See ``RecordLog.after``. The mark is the offset after the last record."""
        await self._ready()
        async with self._reading:
            first, end = await self._reader.bounds_of(self._topic)
            now = self._clock.monotonic()
            # The topic was recreated, or a removal may be gone: Kafka drops their records after a day.
            if end < self._next or now - self._read_at > self._timing.index_s:
                self._known, self._next, self._read_at = {}, 0, now
            for record in await self._reader.read(self._topic, max(first, self._next), end):
                if record.key is None:
                    continue
                key = record.key.decode(errors="replace")
                self._known.pop(key, None)
                if record.value is not None:
                    self._known[key] = (record.offset, record.value)
            self._next = end
            if mark is not None and end < mark:
                return Records(found={}, mark=end, complete=False)
            found = {key: value for key, (offset, value) in self._known.items() if offset >= (mark or 0)}
            return Records(found=found, mark=end)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._writer.aclose()
        await self._reader.aclose()


class KafkaEffects:
    """``EffectStream`` on a topic with one partition, which expires by its size.

    It connects at its first use, and again after an error.
    """

    def __init__(self, servers: Servers, ready: Callable[[], Awaitable[object]]) -> None:
        """``ready`` makes the topic."""
        self._ready = ready
        self._writer = RecordWriter(servers, channels.EFFECTS_TOPIC, "the effects were not written")

    async def append(self, messages: Sequence[Effects], *, keep: int) -> None:
        """See ``EffectStream.append``. The topic trims by its size, whatever ``keep`` says."""
        await self._ready()
        await self._writer.write((each.app_id.encode(), each.model_dump_json().encode(), ()) for each in messages)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._writer.aclose()

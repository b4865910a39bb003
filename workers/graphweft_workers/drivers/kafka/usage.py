"""Records of usage on Kafka: a compacted topic. A process keeps the latest records, and reads only new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiokafka import TopicPartition

from graphweft.transports.kafka.connection import Servers
from graphweft_contracts import channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.drivers.kafka.producer import RecordWriter
from graphweft_workers.drivers.kafka.reader import RangeReader
from graphweft_workers.drivers.kafka.timing import KAFKA_BUS_TIMING, KafkaBusTiming

_RECORDS: Final[Any] = TopicPartition(channels.USAGE_TOPIC, 0)
"""Records that are older than this are read again: Kafka drops the records of removals after a day."""


class KafkaUsageLog:
    """``UsageLog`` on a Kafka cluster."""

    def __init__(
        self,
        servers: Servers,
        ready: Callable[[], Awaitable[object]],
        *,
        clock: Clock = SYSTEM_CLOCK,
        timing: KafkaBusTiming = KAFKA_BUS_TIMING,
    ) -> None:
        """``ready`` makes the topics."""
        self._ready = ready
        self._clock = clock
        self._timing = timing
        self._reader = RangeReader(servers)
        self._writer = RecordWriter(servers, _RECORDS.topic, "the record of usage was not written")
        self._reading = asyncio.Lock()
        self._known: dict[str, bytes] = {}
        self._next = 0
        self._read_at = 0.0

    async def put(self, reporter: str, record: bytes | None) -> None:
        """See ``UsageLog.put``."""
        await self._ready()
        await self._writer.write(reporter.encode(), record)

    async def records(self) -> Mapping[str, bytes]:
        """See ``UsageLog.records``."""
        await self._ready()
        async with self._reading:
            first, end = (await self._reader.bounds([_RECORDS]))[_RECORDS]
            now = self._clock.monotonic()
            if (
                end < self._next or now - self._read_at > self._timing.index_s
            ):  # the topic was recreated, or a removal is gone
                self._known, self._next, self._read_at = {}, 0, now
            for record in await self._reader.read(_RECORDS, max(first, self._next), end):
                if record.key is None:
                    continue
                reporter = record.key.decode(errors="replace")
                self._known.pop(reporter, None)
                if record.value is not None:
                    self._known[reporter] = record.value
            self._next = end
            return dict(self._known)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._writer.aclose()
        await self._reader.aclose()

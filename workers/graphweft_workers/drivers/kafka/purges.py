"""Purges on Kafka: a compacted topic."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from aiokafka import TopicPartition

from graphweft.transports.kafka.connection import Servers, bus_errors
from graphweft_contracts import channels
from graphweft_workers.drivers.kafka.producer import started_producer, stop_producer
from graphweft_workers.drivers.kafka.reader import RangeReader
from graphweft_workers.ports.purges import Purge, Purges

_RECORDS: Final[Any] = TopicPartition(channels.PURGES_TOPIC, 0)


class KafkaPurgeLog:
    """``PurgeLog`` on a Kafka cluster. The topic must exist."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._reader = RangeReader(servers)
        self._producer: Any = None
        self._sending = asyncio.Lock()

    async def purge(self, purge: Purge) -> None:
        """See ``PurgeLog.purge``."""
        async with self._sending:
            with bus_errors("the purge was not written"):
                if self._producer is None:
                    self._producer = await started_producer(self._servers)
                try:
                    await self._producer.send_and_wait(
                        _RECORDS.topic, purge.encode(), key=purge.key.encode(), partition=0
                    )
                except BaseException:
                    await self._stop()
                    raise

    async def purges(self, mark: int | None) -> Purges:
        """See ``PurgeLog.purges``. The mark is the offset after the last record."""
        first, end = (await self._reader.bounds([_RECORDS]))[_RECORDS]
        if mark is not None and end < mark:  # the topic was recreated
            return Purges(found=(), mark=end, complete=False)
        found: dict[str, Purge] = {}
        for record in await self._reader.read(_RECORDS, max(first, mark or 0), end):
            with contextlib.suppress(ValueError):  # a record of somebody else
                purge = Purge.decode(record.value or b"")
                found.pop(purge.key, None)
                found[purge.key] = purge
        return Purges(found=list(found.values()), mark=end)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._stop()
        await self._reader.aclose()

    async def _stop(self) -> None:
        producer, self._producer = self._producer, None
        await stop_producer(producer)

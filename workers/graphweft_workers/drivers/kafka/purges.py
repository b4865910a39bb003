"""Purges on Kafka: a compacted topic."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiokafka import TopicPartition

from graphweft.transports.kafka.connection import Servers
from graphweft_contracts import channels
from graphweft_workers.drivers.kafka.producer import RecordWriter
from graphweft_workers.drivers.kafka.reader import RangeReader
from graphweft_workers.ports.purges import Purge, Purges

_RECORDS: Final[Any] = TopicPartition(channels.PURGES_TOPIC, 0)


class KafkaPurgeLog:
    """``PurgeLog`` on a Kafka cluster."""

    def __init__(self, servers: Servers, ready: Callable[[], Awaitable[object]]) -> None:
        """``ready`` makes the topics."""
        self._ready = ready
        self._reader = RangeReader(servers)
        self._writer = RecordWriter(servers, _RECORDS.topic, "the purge was not written")

    async def put(self, purge: Purge) -> None:
        """See ``PurgeLog.put``."""
        await self._ready()
        await self._writer.write(purge.key.encode(), purge.encode())

    async def after(self, mark: int | None) -> Purges:
        """See ``PurgeLog.after``. The mark is the offset after the last record."""
        await self._ready()
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
        await self._writer.aclose()
        await self._reader.aclose()

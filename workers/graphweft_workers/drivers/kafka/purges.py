"""Purges on Kafka: a compacted topic."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from aiokafka import TopicPartition

from graphweft.transports.kafka.connection import Servers
from graphweft_contracts import channels
from graphweft_workers.drivers.kafka.producer import RecordWriter
from graphweft_workers.drivers.kafka.reader import RangeReader
from graphweft_workers.ports.purges import Purge, Purges

_RECORDS: Final[Any] = TopicPartition(channels.PURGES_TOPIC, 0)


class KafkaPurgeLog:
    """``PurgeLog`` on a Kafka cluster. The topic must exist."""

    def __init__(self, servers: Servers) -> None:
        self._reader = RangeReader(servers)
        self._writer = RecordWriter(servers, _RECORDS.topic, "the purge was not written")

    async def purge(self, purge: Purge) -> None:
        """See ``PurgeLog.purge``."""
        await self._writer.write(purge.key.encode(), purge.encode())

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
        await self._writer.aclose()
        await self._reader.aclose()

"""Consumers without a group, and reads of existing ranges."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from graphweft.transports.kafka.connection import Servers, bus_errors, is_of_content, started
from graphweft_contracts import BusUnavailable
from graphweft_workers.drivers.kafka.careful_reader import read_carefully
from graphweft_workers.drivers.kafka.gaps import until_gone
from graphweft_workers.ports.pages import LEAST
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.support.tasks import is_being_cancelled

_RANGE_BYTES: Final = 256 * 1024
_STOP_S: Final = 1.0
_REQUEST_MS: Final = 10_000
_RANGE_S: Final = 20.0
"""Longest wait for a range that is known to exist; the transaction of a dead producer ends sooner."""


async def open_consumer(servers: Servers, fetch_bytes: int, **more: Any) -> Any:
    """Return a started consumer without a group. Raises ``BusUnavailable``."""
    # Committed records only: a record of an aborted transaction must have no effect, and transactions put dead
    # letters back.
    consumer = AIOKafkaConsumer(
        **servers.options,
        isolation_level="read_committed",
        auto_offset_reset="none",
        enable_auto_commit=False,
        request_timeout_ms=_REQUEST_MS,
        max_partition_fetch_bytes=fetch_bytes,
        client_rack=servers.rack or None,
        **more,
    )
    with bus_errors("the bus is unavailable"):
        return await started(consumer)


async def stop_consumer(consumer: Any) -> None:
    """Close a consumer without a group, and ignore errors.

    aiokafka 0.14 cancels a running fetch and awaits it: its ``CancelledError`` is raised here, and the connections stay
    open. It loses the cancellation if the partition was just unassigned, and would then wait for ever: it is repeated.
    """
    stopping = asyncio.ensure_future(consumer.stop())
    try:
        while not (await asyncio.wait([stopping], timeout=_STOP_S))[0]:
            stopping.cancel()
        stopping.result()
    except asyncio.CancelledError:
        stopping.cancel()
        if is_being_cancelled():
            raise
        with contextlib.suppress(KafkaError, OSError):
            await consumer._client.close()
    except (KafkaError, OSError):
        pass


def _size(record: Any) -> int:
    return len(record.value or b"") + sum(len(name) + len(value or b"") for name, value in record.headers)


def known_bounds(
    partitions: Iterable[Any], first: Mapping[Any, int | None], end: Mapping[Any, int | None]
) -> dict[Any, tuple[int, int]]:
    """Return the first offset and the end of each partition. Raises ``KafkaError`` where a broker did not say them.

    aiokafka 0.14 leaves out a partition of which a broker has no answer, or says -1: that is not an empty partition.
    """
    found: dict[Any, tuple[int, int]] = {}
    for partition in partitions:
        start, stop = first.get(partition), end.get(partition)
        if start is None or stop is None or not 0 <= start <= stop:
            raise KafkaError(
                f"the broker did not say where partition {partition.partition} of {partition.topic} begins and ends"
            )
        found[partition] = (start, stop)
    return found


class RangeReader:
    """Reads existing ranges of any partition; one call at a time."""

    def __init__(self, servers: Servers, fetch_bytes: int = _RANGE_BYTES) -> None:
        self._servers = servers
        self._fetch_bytes = fetch_bytes
        self._consumer: Any = None
        self._using = asyncio.Lock()
        self._said = LogLimit()

    async def bounds_of(self, partition: Any) -> tuple[int, int]:
        """Return the bounds of one partition, see ``bounds``."""
        return (await self.bounds([partition]))[partition]

    async def bounds(self, partitions: Sequence[Any]) -> dict[Any, tuple[int, int]]:
        """Return for each partition the first offset and the offset after the last committed record."""
        async with self._using:
            topics = ", ".join(sorted({partition.topic for partition in partitions}))
            return await self._guarded(self._bounds(partitions), f"where {topics} begins and ends is not known")

    async def read(
        self, partition: Any, start: int, end: int, *, limit: int | None = None, last_bytes: int | None = None
    ) -> Sequence[Any]:
        """Return the first ``limit`` existing records with ``start <= offset < end``.

        With ``last_bytes``, the last ones of these: as many as have so many bytes, but two if there are as many.
        """
        if start >= end:
            return ()
        most = end - start if limit is None else limit
        async with self._using:
            return await self._guarded(
                self._read(partition, start, end, most, last_bytes),
                f"{start} to {end} of partition {partition.partition} of {partition.topic} cannot be read",
            )

    async def read_known(self, partition: Any, start: int, end: int, *, limit: int) -> tuple[Sequence[Any], int]:
        """Return the first ``limit`` records of a range up to where others are gone, and how many are gone before."""
        records = await self.read(partition, start, end, limit=limit)
        if start >= end or (records and records[-1].offset - start + 1 == len(records)):
            return records, 0
        following = records[-1].offset + 1 if records else end
        async with self._using:
            work = self._until_gone(partition, start, records, following)
            return await self._guarded(work, f"what is gone of partition {partition.partition} is not known")

    async def _until_gone(
        self, partition: Any, start: int, records: Sequence[Any], end: int
    ) -> tuple[Sequence[Any], int]:
        found, gone, _ = await until_gone(await self._connected(), partition, start, records, end)
        return found, gone

    async def aclose(self) -> None:
        """Close the connection; a later call opens it again."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await stop_consumer(consumer)

    async def _guarded[Result](self, work: Coroutine[Any, Any, Result], what: str) -> Result:
        try:
            with bus_errors(what):
                async with asyncio.timeout(_RANGE_S):
                    result: Result = await work
        except BusUnavailable:
            await self.aclose()
            raise
        return result

    async def _connected(self) -> Any:
        if self._consumer is None:
            self._consumer = await open_consumer(self._servers, self._fetch_bytes)
        return self._consumer

    async def _bounds(self, partitions: Sequence[Any]) -> dict[Any, tuple[int, int]]:
        consumer = await self._connected()
        for topic in {partition.topic for partition in partitions}:
            # aiokafka pauses for 100 ms when it finds that it does not know a topic yet.
            await consumer._client.add_topic(topic)
        first = await consumer.beginning_offsets(partitions)
        return known_bounds(partitions, first, await consumer.end_offsets(partitions))

    async def _read(
        self, partition: Any, start: int, end: int, most: int, last_bytes: int | None = None
    ) -> Sequence[Any]:
        consumer = await self._connected()
        consumer.assign([partition])
        found: list[Any] = []
        size = dropped = 0
        position = start
        consumer.seek(partition, position)
        try:
            while position < end and dropped + len(found) < most:
                left = min(end - position, most - dropped - len(found))
                try:
                    batch = await consumer.getmany(partition, timeout_ms=100, max_records=left)
                except OffsetOutOfRangeError:
                    first = (await consumer.beginning_offsets([partition]))[partition]
                    if first <= position:
                        raise
                    position = first
                    consumer.seek(partition, position)
                    continue
                except Exception as error:
                    if not is_of_content(error):
                        raise
                    records, position = await read_carefully(
                        self._servers, partition, position, limit=left, fetch_bytes=self._fetch_bytes, said=self._said
                    )
                    found += [record for record in records if record.offset < end]
                    consumer.seek(partition, position)
                    continue
                read = [record for record in batch.get(partition, ()) if record.offset < end]
                found += read
                position = await consumer.position(partition)
                if last_bytes is not None:
                    size += sum(map(_size, read))
                    gone = 0
                    while size > last_bytes and len(found) - gone > LEAST:
                        size -= _size(found[gone])
                        gone += 1
                    del found[:gone]
                    dropped += gone
        finally:
            consumer.unsubscribe()  # otherwise it continues to fetch
        return found

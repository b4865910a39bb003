"""Reads a partition of a topic from any offset, without a group."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from graphweft.transports.kafka.connection import bus_errors
from graphweft_contracts import BusUnavailable
from graphweft_workers.cancellation import is_being_cancelled
from graphweft_workers.drivers.kafka.lenient_headers import read_leniently

_FORWARD_BYTES: Final = 4 * 1024**2
_RANGE_BYTES: Final = 256 * 1024
_START_S: Final = 1.0
"""How long a cancelled start waits for the connection that it is opening."""
_REQUEST_MS: Final = 10_000
_FIRST_POLL_S: Final = 2.0
"""How long a read without waiting waits for the broker's first response."""
_STEP_S: Final = 0.02
_SILENCE_S: Final = 5.0
"""The broker answers each poll within half a second. After this time without a response it is unavailable."""
_RANGE_S: Final = 20.0
"""Longest wait for a range that is known to exist; the transaction of a dead producer ends sooner."""


async def _consumer(servers: str, fetch_bytes: int) -> Any:
    # Committed records only: a record of an aborted transaction must have no effect, and transactions put dead
    # letters back.
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers,
        isolation_level="read_committed",
        auto_offset_reset="none",
        enable_auto_commit=False,
        request_timeout_ms=_REQUEST_MS,
        max_partition_fetch_bytes=fetch_bytes,
    )
    try:
        with bus_errors("the bus is unavailable"):
            await start_client(consumer)
    except BaseException:  # also when cancelled: the connection must be closed
        await consumer.stop()
        raise
    return consumer


async def start_client(client: Any) -> None:
    """Start a client of aiokafka; the caller stops it if this raises.

    aiokafka 0.14 loses a connection that it is opening when its start is cancelled. So a cancelled start may end first.
    """
    starting = asyncio.create_task(client.start())
    try:
        await asyncio.shield(starting)
    except BaseException:
        try:
            await asyncio.wait([starting], timeout=_START_S)
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        raise


async def stop_consumer(consumer: Any) -> None:
    """Close a consumer and ignore errors.

    aiokafka 0.14 cancels a running fetch and awaits it: its ``CancelledError`` is raised here, and the connections stay
    open.
    """
    try:
        await consumer.stop()
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        with contextlib.suppress(KafkaError, OSError):
            await consumer._client.close()
    except (KafkaError, OSError):
        pass


class PartitionReader:
    """Follows one partition.

    Each partition has its own consumer: in a shared one, a partition without new records delays the next request for
    the others by up to half a second.
    """

    def __init__(self, servers: str, consumer: Any, partition: Any) -> None:
        self._servers = servers
        self._consumer = consumer
        self._partition = partition
        self._next: int | None = None
        """The consumer's position, if known."""
        self._asked = 0.0
        self._before: int | None = None
        """The time of the broker's last response."""
        self._last: int | None = None
        self._heard = time.monotonic()

    @classmethod
    async def open(cls, servers: str, topic: str, number: int) -> PartitionReader:
        """Connect. Raises ``BusUnavailable``."""
        consumer = await _consumer(servers, _FORWARD_BYTES)
        partition = TopicPartition(topic, number)
        consumer.assign([partition])
        return cls(servers, consumer, partition)

    async def read(
        self, position: int, *, limit: int, wait_s: float, enough: asyncio.Event
    ) -> tuple[Sequence[Any], int, int]:
        """Return up to ``limit`` records from ``position``, the number of missing ones, and the next position.

        Wait for the first record up to ``wait_s``, or until ``enough`` is set; without waiting, allow the broker one
        response. Raises ``BusUnavailable`` if the partition ends before ``position``.
        """
        lost = 0
        deadline = time.monotonic() + wait_s
        while True:
            if position != self._next:
                self._seek(position)
            left = deadline - time.monotonic()
            answered = self._answered()  # read before the records: a response makes both visible at once
            try:
                wait = left if left > 0 else 0.0 if answered else _STEP_S
                records, position = await self._take(limit, wait, enough)
            except OffsetOutOfRangeError:
                first = await self._first(position)
                lost, position = lost + first - position, first
                continue
            except UnicodeDecodeError:
                records, position = await read_leniently(
                    self._servers, self._partition, position, limit=limit, fetch_bytes=_FORWARD_BYTES
                )
            if records:
                self._await_answer()
                return records, lost, position
            self._listen()
            now = time.monotonic()
            if enough.is_set() or (now >= deadline and (answered or now > self._asked + _FIRST_POLL_S)):
                return (), lost, position

    async def aclose(self) -> None:
        """Close the connection."""
        await stop_consumer(self._consumer)

    def _seek(self, position: int) -> None:
        self._consumer.seek(self._partition, position)
        self._await_answer()

    def _await_answer(self) -> None:
        """Forget the broker's last response: only the next one says whether there is more."""
        self._asked = self._heard = time.monotonic()
        self._before = self._last = self._consumer.last_poll_timestamp(self._partition)

    def _answered(self) -> bool:
        return bool(self._consumer.last_poll_timestamp(self._partition) != self._before)

    def _listen(self) -> None:
        """Raise if the broker has not answered for long: aiokafka retries for ever and reports nothing."""
        last = self._consumer.last_poll_timestamp(self._partition)
        if last != self._last:
            self._last, self._heard = last, time.monotonic()
        elif time.monotonic() - self._heard > _SILENCE_S:
            raise BusUnavailable(f"Kafka has not answered for {_SILENCE_S:.0f} s")

    async def _take(self, limit: int, wait_s: float, enough: asyncio.Event) -> tuple[Sequence[Any], int]:
        self._next = None  # a cancelled read may have consumed records
        taking = asyncio.ensure_future(
            self._consumer.getmany(self._partition, timeout_ms=int(wait_s * 1000), max_records=limit)
        )
        ending = asyncio.ensure_future(enough.wait())
        try:
            await asyncio.wait([taking, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (taking, ending):
                task.cancel()
            await asyncio.gather(taking, ending, return_exceptions=True)
        found: Any = {} if taking.cancelled() else taking.result()
        position: int = await self._consumer.position(self._partition)
        self._next = position
        return found.get(self._partition, ()), position

    async def _first(self, position: int) -> int:
        with bus_errors("the bus is unavailable"):
            first = (await self._consumer.beginning_offsets([self._partition]))[self._partition]
            end = (await self._consumer.end_offsets([self._partition]))[self._partition]
        if position > end:
            raise BusUnavailable(
                f"partition {self._partition.partition} of {self._partition.topic} ends at {end}, in front of the "
                f"position {position}: the topic was recreated. Reset the group's position and rebuild the graphs"
            )
        return max(position, int(first))


class RangeReader:
    """Reads existing ranges of any partition; one call at a time."""

    def __init__(self, servers: str, fetch_bytes: int = _RANGE_BYTES) -> None:
        self._servers = servers
        self._fetch_bytes = fetch_bytes
        self._consumer: Any = None
        self._using = asyncio.Lock()

    async def bounds(self, partitions: Sequence[Any]) -> dict[Any, tuple[int, int]]:
        """Return for each partition the first offset and the offset after the last committed record."""
        async with self._using:
            return await self._guarded(self._bounds(partitions))

    async def read(self, partition: Any, start: int, end: int, *, limit: int | None = None) -> Sequence[Any]:
        """Return the first ``limit`` existing records with ``start <= offset < end``."""
        if start >= end:
            return ()
        most = end - start if limit is None else limit
        async with self._using:
            return await self._guarded(self._read(partition, start, end, most))

    async def aclose(self) -> None:
        """Close the connection; a later call opens it again."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await stop_consumer(consumer)

    async def _guarded[Result](self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            with bus_errors("the bus is unavailable"):
                async with asyncio.timeout(_RANGE_S):
                    result: Result = await work
        except BusUnavailable:
            await self.aclose()
            raise
        return result

    async def _connected(self) -> Any:
        if self._consumer is None:
            self._consumer = await _consumer(self._servers, self._fetch_bytes)
        return self._consumer

    async def _bounds(self, partitions: Sequence[Any]) -> dict[Any, tuple[int, int]]:
        consumer = await self._connected()
        first = await consumer.beginning_offsets(partitions)
        end = await consumer.end_offsets(partitions)
        return {partition: (first[partition], end[partition]) for partition in partitions}

    async def _read(self, partition: Any, start: int, end: int, most: int) -> Sequence[Any]:
        consumer = await self._connected()
        consumer.assign([partition])
        found: list[Any] = []
        position = start
        consumer.seek(partition, position)
        try:
            while position < end and len(found) < most:
                left = min(end - position, most - len(found))
                try:
                    batch = await consumer.getmany(partition, timeout_ms=100, max_records=left)
                except OffsetOutOfRangeError:
                    first = (await consumer.beginning_offsets([partition]))[partition]
                    if first <= position:
                        raise
                    position = first
                    consumer.seek(partition, position)
                    continue
                except UnicodeDecodeError:
                    records, position = await read_leniently(
                        self._servers, partition, position, limit=left, fetch_bytes=self._fetch_bytes
                    )
                    found += [record for record in records if record.offset < end]
                    consumer.seek(partition, position)
                    continue
                found += [record for record in batch.get(partition, ()) if record.offset < end]
                position = await consumer.position(partition)
        finally:
            consumer.unsubscribe()  # otherwise it continues to fetch
        return found

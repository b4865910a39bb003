"""Reads records whose header names are not UTF-8: Kafka's protocol requires UTF-8, but brokers do not check it.

aiokafka raises on such a record, which would block its partition for good. The bytes are then fetched again and parsed
by aiokafka's Python reader, with a buffer that decodes text leniently.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, SupportsIndex, override

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import KafkaError, NoError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import _DefaultRecordBatchPy  # pyright: ignore[reportPrivateUsage]

from graphweft.transports.kafka.connection import Servers

_Batch: Final[Any] = _DefaultRecordBatchPy
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12
_WAIT_MS: Final = 500


async def read_leniently(
    servers: Servers, partition: Any, position: int, *, limit: int, fetch_bytes: int, wait_ms: int = _WAIT_MS
) -> tuple[Sequence[Any], int]:
    """Return up to ``limit`` committed records from ``position``, and the next position. Raises ``KafkaError``.

    The broker waits for a first record for ``wait_ms``.
    """
    client: Any = AIOKafkaClient(**servers.options)
    try:
        await client.bootstrap()
        await client.set_topics([partition.topic])
        leader = client.cluster.leader_for_partition(TopicPartition(*partition))
        places = [(partition.topic, [(partition.partition, position, fetch_bytes)])]
        response = await client.send(leader, FetchRequest(wait_ms, 1, fetch_bytes, READ_COMMITTED, places))
    finally:
        await client.close()
    fetched = response.topics[0][1][0]
    error, aborted, content = for_code(fetched[1]), fetched[5], fetched[-1]
    if error is not NoError:
        raise error(partition)
    if response.API_VERSION < 5:
        raise KafkaError("the broker is too old: graphweft needs Kafka 1.0 or later")
    records: Any = PartitionRecords(partition, _Batches(content), aborted, position, None, None, True, READ_COMMITTED)
    found: list[Any] = []
    for record in records:
        found.append(record)
        if len(found) >= limit:
            break
    return found, records.next_fetch_offset


class _Text(bytearray):
    """Bytes that always decode."""

    @override
    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        piece = super().__getitem__(key)
        return _Text(piece) if isinstance(piece, bytearray) else piece

    @override
    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, errors)


class _LenientBatch(_Batch):  # type: ignore[misc]  # aiokafka has no types
    _buffer: Any

    def __iter__(self) -> Iterator[Any]:
        self._maybe_uncompress()
        self._buffer = _Text(self._buffer)
        return self


class _Batches:
    """The complete batches of a response; the last one may be cut off."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def has_next(self) -> bool:
        return self._end() <= len(self._content)

    def next_batch(self) -> Any:
        start, self._at = self._at, self._end()
        return _LenientBatch(self._content[start : self._at])

    def _end(self) -> int:
        if self._at + _LENGTH_END > len(self._content):
            return len(self._content) + 1
        (length,) = struct.unpack_from(">i", self._content, self._at + _LENGTH_AT)
        return self._at + _LENGTH_END + int(length)

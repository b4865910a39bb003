"""Reads the record batches of a partition one by one, so that one that cannot be read costs no other.

aiokafka raises on a batch that it cannot read, again and again, and does not say which one: that would block the
partition for good. It cannot read header names that are not UTF-8 (Kafka's protocol requires UTF-8, but brokers do not
check it), unknown codecs, and batches that were damaged on a disk. The bytes are then fetched again and parsed by
aiokafka's Python reader. Texts are decoded leniently. A record that stays unreadable has a stand-in without a value,
whose header ``gw_unreadable`` says why: it becomes a dead letter, and the partition goes on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, SupportsIndex, override

# aiokafka works without it, but then reads neither zstd, lz4 nor snappy.
import cramjam  # noqa: F401  # pyright: ignore[reportUnusedImport]
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException, KafkaError, NoError, UnsupportedCodecError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import _DefaultRecordBatchPy  # pyright: ignore[reportPrivateUsage]
from aiokafka.record.legacy_records import _LegacyRecordBatchPy  # pyright: ignore[reportPrivateUsage]

from graphweft.transports.kafka.connection import Servers
from graphweft_contracts import wire
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_limit import LogLimit

logger = get_logger("graphweft.bus")

_TRIES: Final = 3
"""A batch may be damaged on its way: so often it is fetched before it counts as unreadable."""
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12
_MAGIC_AT: Final = 16
_WAIT_MS: Final = 500


async def read_carefully(
    servers: Servers, partition: Any, position: int, *, limit: int, fetch_bytes: int, said: LogLimit,
    wait_ms: int = _WAIT_MS,
) -> tuple[Sequence[Any], int]:  # fmt: skip
    """Return up to ``limit`` committed records from ``position``, and the next position. Raises ``KafkaError``.

    The broker waits for a first record for ``wait_ms``. Records that cannot be read have stand-ins, and a line in the
    log, which ``said`` limits.
    """
    records: Sequence[Any] = ()
    following = position
    fault: Exception | None = None
    client: Any = AIOKafkaClient(**servers.options)
    try:
        await client.bootstrap()
        await client.set_topics([partition.topic])
        leader = client.cluster.leader_for_partition(TopicPartition(*partition))
        places = [(partition.topic, [(partition.partition, position, fetch_bytes)])]
        for _ in range(_TRIES):
            response = await client.send(leader, FetchRequest(wait_ms, 1, fetch_bytes, READ_COMMITTED, places))
            records, following, fault = _parsed(response, partition, position, limit)
            if fault is None or isinstance(fault, UnsupportedCodecError):
                break
    finally:
        await client.close()
    if fault is not None and said.admit((partition, type(fault))) is not None:
        unreadable = [record.offset for record in records if _is_stand_in(record)]
        logger.error(
            "records_unreadable", topic=partition.topic, partition=partition.partition, records=len(unreadable),
            first=unreadable[0], last=unreadable[-1], error=_why(fault),
            next="events of them become dead letters; see \"unreadable\" in docs/troubleshooting.md",
        )  # fmt: skip
    return records, following


def _parsed(response: Any, partition: Any, position: int, limit: int) -> tuple[Sequence[Any], int, Exception | None]:
    """Return records, the next position, and why the last unreadable one cannot be read."""
    end, aborted, content = fetched(response, partition)
    batches = _Batches(content, position, end)
    # It would raise for a wrong checksum; here the batches check theirs.
    records: Any = PartitionRecords(partition, batches, aborted, position, None, None, False, READ_COMMITTED)
    found: list[Any] = []
    for record in records:
        found.append(record)
        if len(found) >= limit:
            break
    fault = batches.fault if any(map(_is_stand_in, found)) else None
    return found, records.next_fetch_offset, fault


def fetched(response: Any, partition: Any) -> tuple[int, Sequence[tuple[int, int]], bytes]:
    """Return what a response has of its only partition: the end of what is committed, aborted transactions, batches.

    Of a transaction it has the producer and the first offset. Raises ``KafkaError``.
    """
    found = response.topics[0][1][0]
    error = for_code(found[1])
    if error is not NoError:
        raise error(partition)
    if response.API_VERSION < 5:
        raise KafkaError("the broker is too old: graphweft needs Kafka 1.0 or later")
    return found[3], found[5] or (), found[-1]


def _is_stand_in(record: Any) -> bool:
    return record.value is None and any(name == _UNREADABLE for name, _ in record.headers)


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


_UNREADABLE: Final = wire.UNREADABLE.decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class _StandIn:
    """Stands for a record that cannot be read."""

    offset: int
    timestamp: int
    headers: tuple[tuple[str, bytes], ...]
    timestamp_type: int = 0
    key: None = None
    value: None = None
    checksum: None = None


class _Text(bytearray):
    """Bytes that always decode."""

    @override
    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        piece = super().__getitem__(key)
        return _Text(piece) if isinstance(piece, bytearray) else piece

    @override
    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, errors)


class _Batch:
    """A batch of aiokafka whose iteration never raises. ``end`` is the largest offset that may follow it."""

    def __init__(self, content: bytes, position: int, end: int, batches: _Batches) -> None:
        magic = content[_MAGIC_AT]
        self._is_current = magic >= 2
        self._batch: Any = _DefaultRecordBatchPy(content) if self._is_current else _LegacyRecordBatchPy(content, magic)
        self._batches = batches
        self._position = position
        self._end = end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    @property
    def next_offset(self) -> int:
        """The offset of the next batch. What the batch says may be damaged."""
        return min(int(self._batch.next_offset), self._end)

    def __iter__(self) -> Iterator[Any]:
        found: list[Any] = []
        try:
            if not self._batch.validate_crc():
                raise CorruptRecordException("the checksum of the batch is wrong")
            if self._is_current:
                self._batch._maybe_uncompress()
                self._batch._buffer = _Text(self._batch._buffer)
            found.extend(self._batch)
        except Exception as error:  # noqa: BLE001 - whatever a batch holds, the others are read
            self._batches.fault = error
            yield from found
            yield from self._stand_ins(found[-1].offset + 1 if found else None, error)
        else:
            yield from found

    def _stand_ins(self, start: int | None, error: Exception) -> Iterator[_StandIn]:
        end = self.next_offset
        if start is None:  # batches of older formats name their last offset only
            start = int(self._batch.base_offset) if self._is_current else end - 1
        headers = ((_UNREADABLE, _why(error).encode(errors="replace")),)
        timestamp = self._batch.max_timestamp if self._is_current else self._batch._timestamp
        for offset in range(min(max(start, self._position), end - 1), end):
            yield _StandIn(offset=offset, timestamp=timestamp or 0, headers=headers)


class _Batches:
    """The complete batches of a response to ``position``; the last one may be cut off.

    ``end`` is the offset after the last committed record.
    """

    def __init__(self, content: bytes, position: int, end: int) -> None:
        self._content = content
        self._position = position
        self._end = end
        self._at = 0
        self.fault: Exception | None = None
        """Why the last batch that could not be read could not."""

    def has_next(self) -> bool:
        return self._after() <= len(self._content)

    def next_batch(self) -> Any:
        start, self._at = self._at, self._after()
        end = self._end
        if self._at + _LENGTH_AT <= len(self._content):
            (end,) = struct.unpack_from(">q", self._content, self._at)
        return _Batch(self._content[start : self._at], self._position, end, self)

    def _after(self) -> int:
        if self._at + _LENGTH_END > len(self._content):
            return len(self._content) + 1
        (length,) = struct.unpack_from(">i", self._content, self._at + _LENGTH_AT)
        return self._at + _LENGTH_END + int(length) if length > 0 else len(self._content) + 1

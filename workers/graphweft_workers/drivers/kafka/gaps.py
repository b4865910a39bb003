"""What is behind offsets without a record: the end of a transaction, aborted records, or nothing any more.

Kafka gives an offset to the end of each transaction, and to records of aborted ones. Readers pass these. A topic that
is compacted loses records from between others: those had an effect to take, so they count as lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from aiokafka.client import ConnectionGroup
from aiokafka.consumer.fetcher import READ_COMMITTED
from aiokafka.errors import LeaderNotAvailableError
from aiokafka.protocol.fetch import FetchRequest

from graphweft_workers.drivers.kafka.careful_reader import fetched

_FETCH_BYTES: Final = 64 * 1024
_WAIT_MS: Final = 500
_HEADER: Final = struct.Struct(">qiibIhiqqq")
"""Of a batch: base offset, length, epoch, magic, checksum, attributes, last offset delta, two times, producer."""
_LENGTH_END: Final = 12
_CURRENT: Final = 2
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetGap:
    """Offsets without a record that follow each other."""

    index: int
    """How many records of the range are before it."""
    first: int
    end: int
    """The offset after the last one."""


def gaps_in(start: int, records: Sequence[Any], end: int) -> list[OffsetGap]:
    """Return the offsets of a range of which no record was read. Pure."""
    found: list[OffsetGap] = []
    expected = start
    for index, offset in enumerate([*(record.offset for record in records), end]):
        if offset > expected:
            found.append(OffsetGap(index=index, first=expected, end=offset))
        expected = offset + 1
    return found


async def until_gone(
    consumer: Any, partition: Any, start: int, records: Sequence[Any], end: int
) -> tuple[Sequence[Any], int, int]:
    """Return the records of a range up to where others are gone, how many are gone before them, and the next position.

    ``records`` are those that were read from ``start`` to ``end``. Raises ``KafkaError``.
    """
    if end - start == len(records):  # the usual case
        return records, 0, end
    before = 0
    gaps = gaps_in(start, records, end)
    passed = await _passed_in(consumer, partition, gaps)
    for gap in gaps:
        gone = gap.end - gap.first - sum(max(0, min(end, gap.end) - max(first, gap.first)) for first, end in passed)
        if gone and gap.index:
            return records[: gap.index], before, gap.first
        before += gone
    return records, before, end


async def _passed_in(consumer: Any, partition: Any, gaps: Sequence[OffsetGap]) -> list[tuple[int, int]]:
    """Return ranges of offsets that readers pass, because no record with an effect ever had them, in order.

    Another connection asks, because the broker keeps the requests of the usual one until there are new records.
    """
    client = consumer._client
    found: list[tuple[int, int]] = []
    position = 0
    for gap in gaps:
        position = max(position, gap.first)
        while position < gap.end:
            leader = client.cluster.leader_for_partition(partition)
            if leader is None:
                raise LeaderNotAvailableError(partition)
            places = [(partition.topic, [(partition.partition, position, _FETCH_BYTES)])]
            request = FetchRequest(_WAIT_MS, 1, _FETCH_BYTES, READ_COMMITTED, places)
            _, aborted, content = fetched(
                await client.send(leader, request, group=ConnectionGroup.COORDINATION), partition
            )
            passed, following = passed_batches(content, aborted)
            found += passed
            if following <= position:  # nothing is left there
                break
            position = following
    return found


def passed_batches(content: bytes, aborted: Iterable[tuple[int, int]]) -> tuple[list[tuple[int, int]], int]:
    """Return the first offset and the end of each batch without an effect, and the offset after all batches. Pure.

    ``aborted`` has the producer and the first offset of each transaction that was aborted. The last batch may be cut.
    """
    found: list[tuple[int, int]] = []
    waiting = sorted(aborted or (), key=itemgetter(1))
    open_: set[int] = set()
    at = end = 0
    while at + _HEADER.size <= len(content):
        first, length, _, magic, _, attributes, delta, _, _, producer = _HEADER.unpack_from(content, at)
        if length <= 0:  # it is damaged
            break
        at += _LENGTH_END + length
        if magic < _CURRENT:  # these formats have no transactions, and their batches name their last offset
            end = first + 1
            continue
        end = first + max(0, delta) + 1
        while waiting and waiting[0][1] <= first:
            open_.add(waiting.pop(0)[0])
        if attributes & _CONTROL or (attributes & _TRANSACTIONAL and producer in open_):
            found.append((first, end))
        if attributes & _CONTROL:  # it ends the transaction of its producer
            open_.discard(producer)
    return found, end

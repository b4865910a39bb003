"""Kafka as a bus (measured on Kafka 4.1 with aiokafka 0.14).

A partition is a partition of the topic ``graphweft.events``. The consumer group assigns partitions and stores
positions. The partitions are read by a consumer without a group, from the positions that the caller gives, so a
rebalance does not disturb reads, and reads do not skip records.

Only committed records are read, because a record of an aborted transaction must have no effect; the retry of a dead
letter is a transaction. So a reader waits while a transaction is open, at most 10 s for graphweft's own. The control
records at the end of transactions have offsets: positions pass them, and ``lost`` counts those that were trimmed with
the entries around them. Records that a topic lost from between others, because it is compacted, are lost like trimmed
ones, see ``gaps``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError

from graphweft.transports.kafka.connection import (
    OF_EVENTS,
    Servers,
    bus_errors,
    fields_of,
    make_topics,
    make_workers_topic,
    present_topics,
    start_client,
)
from graphweft.transports.kafka.layout import agreed_layout, store_order
from graphweft_contracts import BusUnavailable, InvalidSettings, Layout, Order, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.layout import is_everywhere
from graphweft_workers.drivers.kafka.follower import TopicFollower
from graphweft_workers.drivers.kafka.group import Membership, owners_in
from graphweft_workers.drivers.kafka.log_times import LogTimes
from graphweft_workers.drivers.kafka.reader import RangeReader
from graphweft_workers.drivers.kafka.timing import KAFKA_BUS_TIMING, KafkaBusTiming
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.ports.pages import LEAST, PAGE_BYTES, last_page, size_of
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.bus")

_REQUEST_MS: Final = 10_000
_NEAR: Final = 200
"""Unneeded records that are read instead of sending another request."""
_FIRST_SPAN: Final = 16
"""Offsets that are read back first, before the size of the records is known."""
_SPAN_GROWTH: Final = 8
_NOWHERE: Final = (-1, "")
"""The position and the note of a group that has none."""
_LAST_MS: Final = 253_402_300_799_000
"""The last second of the year 9999: a producer may send any time."""


class KafkaEventLog:
    """``EventLog``, ``Partitions`` and ``PartitionLeases`` on a Kafka cluster.

    After ``session_s`` seconds without a heartbeat the group reassigns a worker's partitions. A rebalance waits
    ``barrier_s`` seconds for a worker to finish its batch. ``instance`` makes a static member, which keeps its
    partitions for ``session_s`` when it stops. ``group`` is the consumer group.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        new: Layout,
        session_s: float,
        barrier_s: float,
        instance: str | None,
        group: str,
        clock: Clock = SYSTEM_CLOCK,
        timing: KafkaBusTiming = KAFKA_BUS_TIMING,
    ) -> None:
        self._servers = servers
        self._clock = clock
        self._timing = timing
        self._group_name = group
        self._new = new
        self._count: int | None = None
        self._counting = asyncio.Lock()
        self._group = Membership(
            self._servers,
            group=group,
            session_s=session_s,
            barrier_s=barrier_s,
            instance=instance,
            timing=timing,
        )
        self._ranges = RangeReader(self._servers)
        self._times = LogTimes()
        self._follower = TopicFollower(self._servers, channels.EVENTS_TOPIC, clock=clock, timing=timing)
        self._spans: dict[int, int] = {}
        """By partition: how many offsets the next page of ``before`` is expected to have."""
        self._ends: dict[int, tuple[CommittedPosition, int]] = {}
        """By partition: the committed position, and the offset after the control records that follow it."""
        self._made = set[str]()
        """Topics of workers that were made or found."""
        self._admin: Any = None
        self._administrating = asyncio.Lock()

    async def count(self, *, fresh: bool = False) -> int:
        """See ``Partitions.count``."""
        if self._count is not None and not fresh:
            return self._count  # without the lock, so that a server that does not answer delays nobody
        async with self._counting:
            if self._count is None or fresh:
                async with self._administration() as admin:
                    self._count = await self._made_count(admin)
            return self._count

    async def _made_count(self, admin: Any) -> int:
        """Return the number of partitions; make the topics, also again if the cluster has lost them."""
        known = self._count
        if known is not None:
            present = await present_topics(admin)
            lost = sorted({*OF_EVENTS, *self._made} - present.keys())
            if not lost:
                return max(known, present[channels.EVENTS_TOPIC])
            logger.error(
                "topics_lost", topics=lost,
                message="the cluster has lost topics of graphweft; they are made again, without what they held",
                next="restore the cluster, or see `graphweft status` for apps that need a rebuild",
            )  # fmt: skip
        count = await make_topics(admin, self._new.partitions, self._servers.copies)
        for name in sorted(self._made):
            await make_workers_topic(admin, name, self._servers.copies)
        return max(count, (await agreed_layout(self._servers, admin, count, self._new.order)).partitions)

    async def with_topic(self, name: str) -> None:
        """Make the topics of events, and one that only workers write."""
        await self.count()
        if name not in self._made:
            async with self._administration() as admin:
                await make_workers_topic(admin, name, self._servers.copies)
            self._made.add(name)

    async def layout(self) -> Layout:
        """See ``Partitions.layout``."""
        count = await self.count()
        async with self._administration() as admin:
            return await agreed_layout(self._servers, admin, count, self._new.order)

    async def concerned_by(self, scope: str) -> Sequence[int]:
        """Return the partitions that may hold events of a scope of rules."""
        count = await self.count()
        everywhere = is_everywhere(scope)  # other producers may use partitions that were added
        return range(count) if everywhere else (await self.layout()).partitions_of(scope)

    async def store_order(self, app_id: str, order: Order) -> None:
        """See ``Partitions.store_order``."""
        await self.count()
        with bus_errors("the order cannot be stored"):
            await store_order(self._servers, app_id, order)

    async def give_partition(self, app_id: str, *, least: int = 0) -> Layout:
        """See ``Partitions.give_partition``."""
        raise InvalidSettings(
            "no app needs a partition of its own on Kafka: who may append there can neither choose offsets, nor remove "
            "or end anything"
        )

    async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
        """See ``PartitionLeases.claim``. The group's session replaces ``ttl_s``."""
        await self.count()
        return await self._group.claim(partition, owner)

    def is_revoked(self, partition: int) -> bool:
        """See ``PartitionLeases.is_revoked``."""
        return self._group.is_revoked(partition)

    async def release(self, partition: int, owner: str) -> None:
        """See ``PartitionLeases.release``. Others get it at a rebalance, or when all are released."""
        self._follower.release(partition)
        self._ends.pop(partition, None)
        await self._group.release(partition, owner)

    async def committed(self, partition: int) -> CommittedPosition:
        """See ``Partitions.committed``."""
        await self.count()
        position, note = (await self._positions([partition], self._group_name))[partition]
        if position > 0:
            _, _, end = await self._bounds(partition)
            if position > end:
                logger.error(
                    "position_of_another_log", group=self._group_name, partition=partition, position=position, end=end,
                    message="the log was recreated or lost its end; it is read from its start",
                )  # fmt: skip
                position, note = _NOWHERE
        self._group.is_committed(partition, position, note)
        return _committed(position, note)

    async def read(self, partition: int, after: CommittedPosition, *, limit: int, wait_s: float | None = None) -> Batch:
        """See ``EventLog.read``. One call returns about 2 MiB at most, or the single entry that is larger."""
        if wait_s is None:
            return await self._look(partition, after, limit)
        position = self._position(partition, after)
        with bus_errors(f"partition {partition} cannot be read"):
            records, lost, following = await self._follower.read(
                partition,
                position,
                among=await self.count(),
                limit=limit,
                wait_s=min(wait_s, self._timing.longest_wait_s),
                enough=self._group.called_back,
            )
        self._times.look_at(records)
        end = CommittedPosition(
            offset=str(records[-1].offset) if records else after.offset, count=after.count + lost + len(records)
        )
        self._ends[partition] = (end, following)
        stepped = not records and following != position
        return Batch(entries=[_entry(record) for record in records], lost=lost, stepped=stepped)

    async def _look(self, partition: int, after: CommittedPosition, limit: int) -> Batch:
        """Read without a claim. It ends before an open transaction."""
        place, first, end = await self._bounds(partition)
        position = self._position(partition, after)
        records, gone = await self._ranges.read_known(place, max(first, position), end, limit=limit)
        return Batch(entries=[_entry(record) for record in records], lost=max(0, first - position) + gone)

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        """See ``EventLog.entries``. Offsets that are close are read together."""
        if not offsets:  # the usual case; the bounds would cost a request
            return []
        place, first, end = await self._bounds(partition)
        wanted = [number for number in map(int, offsets) if first <= number < end]  # a letter may be of another bus
        found: list[Any] = []
        start = 0
        for at, number in enumerate(wanted, 1):
            if at == len(wanted) or wanted[at] - number > _NEAR:
                found += await self._ranges.read(place, wanted[start], number + 1)
                start = at
        there = set(wanted)
        return [_entry(record) for record in found if record.offset in there]

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.after``. It ends before an open transaction."""
        place, first, end = await self._bounds(partition)
        start = max(first, int(offset or -1) + 1)
        return [_entry(record) for record in await self._ranges.read(place, start, end, limit=limit)]

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.before``."""
        if not offset:
            return []
        place, first, last = await self._bounds(partition)
        found: list[Entry] = []
        end = min(int(offset) + 1, last)  # a position may be of a log that was there before
        span, size = min(limit, self._spans.get(partition, _FIRST_SPAN)), 0
        while end > first and len(found) < limit and (size < PAGE_BYTES or len(found) < LEAST):
            start = max(first, end - span)
            records = await self._ranges.read(place, start, end, last_bytes=PAGE_BYTES)
            page = [_entry(record) for record in records]
            found[:0] = page
            size += sum(size_of(entry.fields) for entry in page)
            # If the range was cut, what is before its first record is read next.
            is_cut = bool(records) and size >= PAGE_BYTES
            end = int(records[0].offset) if is_cut else start
            fit = int(len(found) * PAGE_BYTES / size) if size else span * _SPAN_GROWTH
            span = max(LEAST, min(fit, span * _SPAN_GROWTH, limit))
        self._spans[partition] = span
        return last_page(found[-limit:])

    async def trim(self, partition: int, offset: str) -> None:
        """See ``Partitions.trim``. The broker deletes its files when all of their records are removed."""
        topic_partition = TopicPartition(channels.EVENTS_TOPIC, partition)
        async with self._administration() as admin:
            await admin.delete_records({topic_partition: RecordsToDelete(int(offset) + 1)})

    async def positions(self, partition: int) -> Mapping[str, CommittedPosition]:
        """See ``Partitions.positions``. Only groups of graphweft count."""
        topic_partition = TopicPartition(channels.EVENTS_TOPIC, partition)
        found: dict[str, CommittedPosition] = {}
        async with self._administration() as admin:
            names = {name for name, *_ in await admin.list_consumer_groups()}
            for name in sorted(each for each in names if each.startswith(channels.GROUP_PREFIX)):
                offsets = await admin.list_consumer_group_offsets(name, partitions=[topic_partition])
                stored = offsets.get(topic_partition)
                if stored is not None and (stored.offset > 0 or stored.metadata):
                    found[name] = _committed(stored.offset, stored.metadata or "")
        return found

    async def commit(self, partition: int, committed: CommittedPosition) -> None:
        """See ``Partitions.commit``. Raises ``BusUnavailable`` when another worker owns the partition."""
        await self._group.commit(partition, self._position(partition, committed), committed.note)

    async def status(self, *, group: str = "") -> Sequence[PartitionStatus]:
        """See ``Partitions.status``."""
        name = group or self._group_name
        positions = await self._positions(range(await self.count(fresh=True)), name)
        owners = await self._owners(name)
        partitions = [TopicPartition(channels.EVENTS_TOPIC, number) for number in positions]
        bounds = await self._ranges.bounds(partitions)
        return [
            PartitionStatus(
                id=partition.partition,
                position=_committed(positions[partition.partition][0]).offset,
                end=_committed(end).offset,
                lag=max(0, end - max(0, positions[partition.partition][0])),
                owner=owners.get(partition.partition),
                note=positions[partition.partition][1],
                written=end,
                trimmed=first,
            )
            for partition, (first, end) in bounds.items()
        ]

    async def aclose(self) -> None:
        """Close the connections; a second call does nothing."""
        await self._group.aclose()
        await self._follower.aclose()
        await self._ranges.aclose()
        await self._drop_admin()

    async def _bounds(self, partition: int) -> tuple[Any, int, int]:
        """Return the partition's place, its first offset and the offset after its last committed record."""
        place = TopicPartition(channels.EVENTS_TOPIC, partition)
        return place, *await self._ranges.bounds_of(place)

    def _position(self, partition: int, after: CommittedPosition) -> int:
        end, following = self._ends.get(partition, (None, 0))
        if after == end:
            return following
        return max(int(after.offset or -1) + 1, after.count)

    async def _positions(self, numbers: Iterable[int], group: str) -> dict[int, tuple[int, str]]:
        """Return a group's positions (-1: none) and notes by partition."""
        partitions = [TopicPartition(channels.EVENTS_TOPIC, number) for number in numbers]
        async with self._administration() as admin:
            while True:
                try:
                    found = await admin.list_consumer_group_offsets(group, partitions=partitions)
                    break
                except GroupCoordinatorNotAvailableError:  # the first request makes a new cluster set up its groups
                    await self._clock.sleep(self._timing.step_s)
            missing = [partition.partition for partition in partitions if partition not in found]
            if missing:  # a broker that still loads the group answers with nothing
                raise KafkaError(f"no answer about the partitions {missing}")
        return {
            partition.partition: (int(found[partition].offset), str(found[partition].metadata or ""))
            for partition in partitions
        }

    async def _owners(self, group: str) -> dict[int, str]:
        async with self._administration() as admin:
            (response,) = await admin.describe_consumer_groups([group])
            return owners_in(response.to_object()["groups"])

    @contextlib.asynccontextmanager
    async def _administration(self) -> AsyncGenerator[Any]:
        """Lend the admin connection; replace it after a failure."""
        async with self._administrating:
            try:
                with bus_errors("the bus is unavailable"):
                    async with asyncio.timeout(_REQUEST_MS / 1000):
                        if self._admin is None:
                            self._admin = AIOKafkaAdminClient(**self._servers.options, request_timeout_ms=_REQUEST_MS)
                            await start_client(self._admin)
                        yield self._admin
            except (BusUnavailable, asyncio.CancelledError):
                await self._drop_admin()
                raise

    async def _drop_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            with contextlib.suppress(KafkaError, OSError):
                await admin.close()


def _committed(position: int, note: str = "") -> CommittedPosition:
    """Return a Kafka position (the offset of the next record) as the last offset that is done."""
    return (
        CommittedPosition(offset=str(position - 1), count=position, note=note)
        if position > 0
        else CommittedPosition(note=note)
    )


def _entry(record: Any) -> Entry:
    milliseconds = min(max(record.timestamp or 0, 0), _LAST_MS)  # the oldest format has no times
    return Entry(
        offset=str(record.offset),
        fields=fields_of(record.value, record.headers),
        received=datetime.fromtimestamp(milliseconds / 1000, UTC),
    )

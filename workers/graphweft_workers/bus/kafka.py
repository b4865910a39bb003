"""Kafka as a bus (measured on Kafka 4.1 with aiokafka 0.14).

A partition is a partition of the topic ``graphweft.events``. The consumer group says who reads it and keeps the
position; reading itself is done by a consumer without a group for each partition, from the position that the caller
names. So a rebalance disturbs no read, and a read never skips.

Only committed records are read. A record of a transaction that is aborted later must have no effect, and our own
``requeue`` is such a transaction. The price: a reader waits while a transaction is open, ours for 10 s at most.
Kafka's marks at the end of a transaction take an offset each; positions step over them, and ``lost`` counts them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import GroupCoordinatorNotAvailableError, KafkaError

from graphweft.kafka_connection import bus_errors, fields_of, make_topics, present_partitions, servers
from graphweft.kafka_partitions import agreed_partitions
from graphweft_contracts import BusUnavailable, DeadLetter, channels
from graphweft_workers.bus.kafka_group import Membership
from graphweft_workers.bus.kafka_letters import LetterTopic
from graphweft_workers.bus.kafka_reader import PartitionReader, RangeReader
from graphweft_workers.bus.log import Committed, Entry, PartitionStatus, Stretch

_REQUEST_MS: Final = 10_000
_STEP_S: Final = 0.1
_LONGEST_WAIT_S: Final = 5.0
_NEAR: Final = 200
"""Records that are read for nothing rather than ask the broker once more."""
_LAST_MS: Final = 253_402_300_799_000
"""The last second of the year 9999: a producer may say any time."""


class KafkaBus:
    """``Bus`` on a Kafka cluster.

    ``session_s`` is after how long without a sign of life the group gives a worker's partitions to others, and
    ``barrier_s`` how long a rebalance waits for a worker to finish its batch. ``instance`` makes a static member: one
    that is back under this name within the session keeps its partitions, and one that stops keeps them as long.
    ``group`` is the consumer group: who reads, with positions that no other group sees.
    """

    def __init__(
        self,
        url: str,
        *,
        partitions: int = 4,
        session_s: float = 10.0,
        barrier_s: float = 20.0,
        instance: str | None = None,
        group: str = channels.MUTATION_GROUP,
    ) -> None:
        self._servers = servers(url)
        self._group_name = group
        self._wanted = partitions
        self._count: int | None = None
        self._keyed = 0
        self._counting = asyncio.Lock()
        self._group = Membership(
            self._servers, group=group, session_s=session_s, barrier_s=barrier_s, instance=instance
        )
        self._letters = LetterTopic(self._servers)
        self._ranges = RangeReader(self._servers)
        self._readers: dict[int, PartitionReader] = {}
        self._ends: dict[int, tuple[Committed, int]] = {}
        """By partition: where the next reader begins, and the offset to go on from; marks lie between them."""
        self._admin: Any = None
        self._administrating = asyncio.Lock()

    async def partitions(self, *, fresh: bool = False) -> int:
        """See ``Bus.partitions``."""
        if self._count is not None and not fresh:
            return self._count  # without the lock: a server that does not answer holds nobody up who does not ask it
        async with self._counting:
            if self._count is None:
                async with self._administration() as admin:
                    count = await make_topics(admin, self._wanted)
                    self._keyed = await agreed_partitions(self._servers, admin, count)
                self._count = max(count, self._keyed)
            elif fresh:
                async with self._administration() as admin:
                    self._count = max(self._count, await present_partitions(admin))
            return self._count

    async def keyed_partitions(self) -> int:
        """See ``Bus.keyed_partitions``."""
        await self.partitions()
        return self._keyed

    async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
        """See ``Bus.claim``. The group's session stands in the place of ``ttl_s``."""
        await self.partitions()
        return await self._group.claim(partition, owner)

    def wanted_back(self, partition: int) -> bool:
        """See ``Bus.wanted_back``."""
        return self._group.wanted_back(partition)

    async def release(self, partition: int, owner: str) -> None:
        """See ``Bus.release``. Others get the partition at a rebalance, or when all that we had are released."""
        reader = self._readers.pop(partition, None)
        self._ends.pop(partition, None)
        if reader is not None:
            await reader.aclose()
        await self._group.release(partition, owner)

    async def committed(self, partition: int) -> Committed:
        """See ``Bus.committed``."""
        await self.partitions()
        position, note = (await self._positions([partition]))[partition]
        self._group.is_committed(partition, position, note)
        return _committed(position, note)

    async def read(self, partition: int, after: Committed, *, limit: int, wait_s: float) -> Stretch:
        """See ``Bus.read``. One call returns about 4 MiB at most, or the single entry that is larger."""
        reader = self._readers.get(partition)
        if reader is None:
            reader = await PartitionReader.open(self._servers, channels.EVENTS_TOPIC, partition)
            self._readers[partition] = reader
        position = self._position(partition, after)
        with bus_errors(f"partition {partition} cannot be read"):
            records, lost, following = await reader.read(
                position,
                limit=limit,
                wait_s=min(wait_s, _LONGEST_WAIT_S),
                enough=self._group.called_back,
            )
        end = Committed(
            offset=str(records[-1].offset) if records else after.offset, count=after.count + lost + len(records)
        )
        self._ends[partition] = (end, following)
        stepped = not records and following != position
        return Stretch(entries=[_entry(record) for record in records], lost=lost, stepped=stepped)

    async def reread(self, partition: int, after: Committed, *, limit: int) -> Stretch:
        """See ``Bus.reread``. What an open transaction has written, and all that stands behind it, is not there yet."""
        topic_partition = TopicPartition(channels.EVENTS_TOPIC, partition)
        first, end = (await self._ranges.bounds([topic_partition]))[topic_partition]
        position = self._position(partition, after)
        records = await self._ranges.read(topic_partition, max(first, position), end, limit=limit)
        return Stretch(entries=[_entry(record) for record in records], lost=max(0, first - position))

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        """See ``Bus.entries``. Offsets that lie near one another are read together."""
        if not offsets:  # most graphs hold no half-done batch, and the bounds cost a question to the broker
            return []
        topic_partition = TopicPartition(channels.EVENTS_TOPIC, partition)
        first, _ = (await self._ranges.bounds([topic_partition]))[topic_partition]
        wanted = [number for number in map(int, offsets) if number >= first]
        found: list[Any] = []
        start = 0
        for at, number in enumerate(wanted, 1):
            if at == len(wanted) or wanted[at] - number > _NEAR:
                found += await self._ranges.read(topic_partition, wanted[start], number + 1)
                start = at
        there = set(wanted)
        return [_entry(record) for record in found if record.offset in there]

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``Bus.after``. What an open transaction has written, and all that stands behind it, is not there yet."""
        topic_partition = TopicPartition(channels.EVENTS_TOPIC, partition)
        first, end = (await self._ranges.bounds([topic_partition]))[topic_partition]
        start = max(first, int(offset or -1) + 1)
        return [_entry(record) for record in await self._ranges.read(topic_partition, start, end, limit=limit)]

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``Bus.before``."""
        if not offset:
            return []
        topic_partition = TopicPartition(channels.EVENTS_TOPIC, partition)
        first, _ = (await self._ranges.bounds([topic_partition]))[topic_partition]
        found: list[Any] = []
        end, span = int(offset) + 1, limit
        while end > first and len(found) < limit:
            start = max(first, end - span)
            found[:0] = await self._ranges.read(topic_partition, start, end)
            end, span = start, span * 2
        return [_entry(record) for record in found[-limit:]]

    def is_after(self, offset: str, other: str) -> bool:
        """See ``Bus.is_after``."""
        return int(offset or -1) > int(other or -1)

    async def commit(self, partition: int, committed: Committed) -> None:
        """See ``Bus.commit``. Raises ``BusUnavailable`` when the partition has gone to another worker."""
        await self._group.commit(partition, self._position(partition, committed), committed.note)

    async def status(self) -> Sequence[PartitionStatus]:
        """See ``Bus.status``."""
        positions = await self._positions(range(await self.partitions(fresh=True)))
        owners = await self._owners()
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
            )
            for partition, (_, end) in bounds.items()
        ]

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        """See ``Bus.bury``."""
        await self.partitions()
        await self._letters.bury(letters)

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        """See ``Bus.extend``. Kafka compares nothing as it writes, so a retry within these milliseconds is not seen.

        Then the letter stands for events that were retried already. A second retry of them soon after has no effect:
        its entries are copies of the first one's.
        """
        await self.partitions()
        if await self._letters.get(longer.id) != letter:
            return False
        await self._letters.bury([longer])
        return True

    async def dead_letter_count(self) -> int:
        """See ``Bus.dead_letter_count``."""
        await self.partitions()
        return await self._letters.count()

    async def dead_letters(self, *, limit: int) -> Sequence[DeadLetter]:
        """See ``Bus.dead_letters``."""
        await self.partitions()
        return await self._letters.first(limit)

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        """See ``Bus.dead_letter``."""
        await self.partitions()
        return await self._letters.get(letter_id)

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        """See ``Bus.requeue``. One transaction; while it is open, no longer than 10 s, the partition is not read on."""
        await self.partitions()
        number, _, _ = letter.position.partition(":")
        return await self._letters.replace(letter, int(number), entries, rest)

    async def aclose(self) -> None:
        """See ``Bus.aclose``."""
        await self._group.aclose()
        while self._readers:
            _, reader = self._readers.popitem()
            await reader.aclose()
        await self._letters.aclose()
        await self._ranges.aclose()
        await self._drop_admin()

    def _position(self, partition: int, after: Committed) -> int:
        end, following = self._ends.get(partition, (None, 0))
        if after == end:
            return following
        return max(int(after.offset or -1) + 1, after.count)

    async def _positions(self, numbers: Iterable[int]) -> dict[int, tuple[int, str]]:
        """Return the group's position in some partitions, -1 where it has none, and the notes kept with them."""
        partitions = [TopicPartition(channels.EVENTS_TOPIC, number) for number in numbers]
        async with self._administration() as admin:
            while True:
                try:
                    found = await admin.list_consumer_group_offsets(self._group_name, partitions=partitions)
                    break
                except GroupCoordinatorNotAvailableError:  # the first question makes a new cluster set up its groups
                    await asyncio.sleep(_STEP_S)
            missing = [partition.partition for partition in partitions if partition not in found]
            if missing:  # a group that its broker is still loading answers with nothing
                raise KafkaError(f"no answer about the partitions {missing}")
        return {
            partition.partition: (int(found[partition].offset), str(found[partition].metadata or ""))
            for partition in partitions
        }

    async def _owners(self) -> dict[int, str]:
        async with self._administration() as admin:
            (response,) = await admin.describe_consumer_groups([self._group_name])
        owners: dict[int, str] = {}
        for group in response.to_object()["groups"]:
            for member in group["members"]:
                if not member["member_assignment"]:  # it has only just joined
                    continue
                for _, numbers in ConsumerProtocol.ASSIGNMENT.decode(member["member_assignment"]).assignment:
                    owners.update((int(number), str(member["client_id"])) for number in numbers)
        return owners

    @contextlib.asynccontextmanager
    async def _administration(self) -> AsyncGenerator[Any]:
        """Lend the connection for questions; one that failed is made anew."""
        async with self._administrating:
            try:
                with bus_errors("the bus is away"):
                    async with asyncio.timeout(_REQUEST_MS / 1000):
                        if self._admin is None:
                            self._admin = AIOKafkaAdminClient(
                                bootstrap_servers=self._servers, request_timeout_ms=_REQUEST_MS
                            )
                            await self._admin.start()
                        yield self._admin
            except (BusUnavailable, asyncio.CancelledError):
                await self._drop_admin()
                raise

    async def _drop_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            with contextlib.suppress(KafkaError, OSError):
                await admin.close()


def _committed(position: int, note: str = "") -> Committed:
    """Return a position, the offset of the next record, as the last one that is done."""
    return Committed(offset=str(position - 1), count=position, note=note) if position > 0 else Committed(note=note)


def _entry(record: Any) -> Entry:
    milliseconds = min(max(record.timestamp, 0), _LAST_MS)
    return Entry(
        offset=str(record.offset),
        fields=fields_of(record.value, record.headers),
        received=datetime.fromtimestamp(milliseconds / 1000, UTC),
    )

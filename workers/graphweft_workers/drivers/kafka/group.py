"""Membership in the consumer group: which partitions this process owns, and the group's positions.

The consumer here reads nothing. aiokafka revokes all partitions at each rebalance and blocks its readers; partitions
with a consumer of their own are read until they are released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import KafkaError, for_code
from aiokafka.structs import OffsetAndMetadata

from graphweft.transports.kafka.connection import Servers, bus_errors, started, unavailable
from graphweft_contracts import BusUnavailable, channels
from graphweft_workers.drivers.kafka.reader import stop_consumer
from graphweft_workers.drivers.kafka.timing import KAFKA_BUS_TIMING, KafkaBusTiming
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.bus")

_NOWHERE: Final = (-1, "")
NO_POLL_LIMIT_MS: Final = 10 * 365 * 86_400_000
"""aiokafka leaves the group when nothing is read for this time; other consumers read here."""


def owners_in(described: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Return who owns each partition of the events, by what a broker says about a group.

    A worker that was killed is in the group until its session ends. Raises ``KafkaError`` if the broker does not know.
    """
    owners: dict[int, str] = {}
    for group in described:
        if group["error_code"]:  # it lists no members then, which is not the same as nobody
            raise for_code(group["error_code"])(f"no answer about the members of {group['group']}")
        for member in group["members"]:
            if not member["member_assignment"]:  # the worker has just joined
                continue
            for topic, numbers in ConsumerProtocol.ASSIGNMENT.decode(member["member_assignment"]).assignment:
                if topic == channels.EVENTS_TOPIC:
                    owners.update((int(number), str(member["client_id"])) for number in numbers)
    return owners


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """A member of a group of workers; joins at the first ``claim`` and leaves at the last ``release``.

    When partitions are revoked, ``called_back`` is set, and the rebalance waits up to ``barrier_s`` until each claimed
    partition is released. Only then do other workers begin with them.
    """

    def __init__(
        self, servers: Servers, *, group: str, session_s: float, barrier_s: float, instance: str | None = None,
        timing: KafkaBusTiming = KAFKA_BUS_TIMING,
    ) -> None:  # fmt: skip
        self.called_back = asyncio.Event()
        self._servers = servers
        self._timing = timing
        self._group_name = group
        self._session_s = session_s
        self._barrier_s = barrier_s
        self._instance = instance
        self._consumer: Any = None
        self._joining = asyncio.Lock()
        self._assigned: set[int] = set()
        self._holders: dict[int, str] = {}
        self._all_released = asyncio.Event()
        self._committed: dict[int, tuple[int, str]] = {}

    async def claim(self, partition: int, owner: str) -> bool:
        """Return whether this process owns the partition for ``owner``. Join the group, without waiting."""
        if self._holders.get(partition) == owner:
            return True
        async with self._joining:
            if self._consumer is None:
                await self._join(owner)
        if not await self._alive() or self.called_back.is_set() or partition not in self._assigned:
            return False
        return self._holders.setdefault(partition, owner) == owner

    def is_revoked(self, partition: int) -> bool:
        """Return whether the partition is revoked, or not owned."""
        return self.called_back.is_set() or partition not in self._holders

    async def release(self, partition: int, owner: str) -> None:
        """Release a partition. Releasing the last one without a revocation ends the membership."""
        if self._holders.get(partition) != owner:
            return
        del self._holders[partition]
        if self._holders:
            return
        self._all_released.set()
        if not self.called_back.is_set():
            await self.aclose()

    async def commit(self, partition: int, position: int, note: str = "") -> None:
        """Move the group's position forward and store the note. Raises ``BusUnavailable`` for a partition of another.

        A partition belongs to this process from ``claim`` to ``release``, even while it is revoked. The assignment says
        less: a partition may come back after another worker has moved its position.
        """
        consumer = self._consumer
        if consumer is None or partition not in self._holders:
            raise BusUnavailable(
                f"the position of partition {partition} was not stored: this worker does not own it any more"
            )
        known = self._committed.get(partition, _NOWHERE)
        if position < known[0] or (position, note) == known:
            return
        with bus_errors(f"the position of partition {partition} is not kept"):
            async with asyncio.timeout(self._timing.commit_s):
                await consumer.commit(
                    {TopicPartition(channels.EVENTS_TOPIC, partition): OffsetAndMetadata(position, note)}
                )
        self.is_committed(partition, position, note)

    def is_committed(self, partition: int, position: int, note: str = "") -> None:
        """Remember the group's position, so that ``commit`` does not move it back. A log that began anew has none."""
        self._committed[partition] = (position, note)

    async def aclose(self) -> None:
        """Leave the group; a static member stays in it until its session ends."""
        consumer, self._consumer = self._consumer, None
        self._forget()
        if consumer is not None:
            await stop_consumer(consumer)
        self._forget()

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  # it awaits what it gets
        self, revoked: Collection[Any]
    ) -> None:
        """Delay the rebalance until the workers have finished their batches."""
        self.called_back.set()
        self._assigned = set()
        self._committed.clear()
        if not self._holders:
            return
        self._all_released.clear()
        try:
            async with asyncio.timeout(self._barrier_s):
                await self._all_released.wait()
        except TimeoutError:
            # No harm: the graph's checkpoint refuses the writes of a second owner. Work is only repeated.
            logger.warning("partitions_not_released", partitions=sorted(self._holders), waited_s=self._barrier_s)
            self._holders.clear()

    def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        """Take the assigned partitions."""
        if self._consumer is None:
            return
        self._consumer.pause(*assigned)
        self._assigned = {int(partition.partition) for partition in assigned}
        self._committed.clear()
        self.called_back.clear()

    def _forget(self) -> None:
        self._assigned = set()
        self._holders.clear()
        self._committed.clear()
        self._all_released.set()
        self.called_back.clear()

    async def _join(self, owner: str) -> None:
        session_ms = int(self._session_s * 1000)
        # The group drops a member that is not back by then, so the barrier must end before.
        rebalance_ms = int(self._barrier_s * 1000) + session_ms
        consumer: Any = AIOKafkaConsumer(
            **self._servers.options,
            client_id=owner,
            group_id=self._group_name,
            group_instance_id=self._instance,
            enable_auto_commit=False,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=max(100, min(1_000, session_ms // 5)),
            rebalance_timeout_ms=rebalance_ms,
            max_poll_interval_ms=NO_POLL_LIMIT_MS,
            request_timeout_ms=rebalance_ms + 5_000,
            max_partition_fetch_bytes=1,
            metadata_max_age_ms=self._timing.metadata_ms,
        )
        with bus_errors("the group of workers cannot be joined"):
            self._consumer = await started(consumer)
        consumer.subscribe([channels.EVENTS_TOPIC], listener=self)

    async def _alive(self) -> bool:
        """Return whether the membership is alive; if it has ended, leave the group, to join again."""
        consumer = self._consumer
        if consumer is None:
            return False
        try:
            async with asyncio.timeout(self._timing.probe_s):
                await consumer.getmany(timeout_ms=0)  # returns nothing, because all is paused, but raises errors
        except TimeoutError:  # during a rebalance
            return False
        except KafkaError as error:
            await self.aclose()
            raise unavailable(error, "the membership in the group of workers has ended") from error
        return True

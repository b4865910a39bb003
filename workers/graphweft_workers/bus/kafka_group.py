"""Which partitions of the events are ours: membership in the consumer group, and its positions.

The consumer here reads nothing. aiokafka revokes everything at each rebalance and then holds its readers up; partitions
that are read by consumers of their own go on until they are given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from graphweft.kafka_connection import bus_errors
from graphweft_contracts import BusUnavailable, channels
from graphweft_workers.bus.kafka_reader import stop_consumer

logger = structlog.get_logger("graphweft.bus")

_PROBE_S: Final = 0.05
_COMMIT_S: Final = 10.0
_NOWHERE: Final = (-1, "")
_METADATA_MS: Final = 5_000
"""How often a member looks for partitions that were added: then the group shares them out, too."""
_NO_POLL_LIMIT_MS: Final = 10 * 365 * 86_400_000
"""aiokafka leaves the group when nobody reads for so long; our readers are elsewhere."""


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """A member of a group of workers; joins at the first ``claim`` and leaves at the last ``release``.

    When partitions are called back, ``called_back`` is set and the group waits, at most ``barrier_s``, until each
    partition that was claimed is released. Only then can others begin with them.
    """

    def __init__(
        self, servers: str, *, group: str, session_s: float, barrier_s: float, instance: str | None = None
    ) -> None:
        self.called_back = asyncio.Event()
        self._servers = servers
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
        """Return whether the partition is ours and ``owner`` has it. Joins the group without waiting for it."""
        if self._holders.get(partition) == owner:
            return True
        async with self._joining:
            if self._consumer is None:
                await self._join(owner)
        if not await self._alive() or self.called_back.is_set() or partition not in self._assigned:
            return False
        return self._holders.setdefault(partition, owner) == owner

    def wanted_back(self, partition: int) -> bool:
        """Return whether the partition is not, or not for long, ours."""
        return self.called_back.is_set() or partition not in self._holders

    async def release(self, partition: int, owner: str) -> None:
        """Give a partition back; the last one that is given back of one's own accord ends the membership."""
        if self._holders.get(partition) != owner:
            return
        del self._holders[partition]
        if self._holders:
            return
        self._all_released.set()
        if not self.called_back.is_set():
            await self.aclose()

    async def commit(self, partition: int, position: int, note: str = "") -> None:
        """Set the group's position, never back, and the note beside it.

        Raises ``BusUnavailable`` when the partition is not ours any more.

        It is ours from ``claim`` to ``release``, so also while it is called back. Whether it is assigned to us says
        less: one that was taken from us may be assigned again, behind what another worker has done with it since.
        """
        consumer = self._consumer
        if consumer is None or partition not in self._holders:
            raise BusUnavailable(
                f"the position of partition {partition} is not kept: this worker does not hold it, or not any more"
            )
        known = self._committed.get(partition, _NOWHERE)
        if position < known[0] or (position, note) == known:
            return
        with bus_errors(f"the position of partition {partition} is not kept"):
            async with asyncio.timeout(_COMMIT_S):
                await consumer.commit(
                    {TopicPartition(channels.EVENTS_TOPIC, partition): OffsetAndMetadata(position, note)}
                )
        self.is_committed(partition, position, note)

    def is_committed(self, partition: int, position: int, note: str = "") -> None:
        """Remember what the group's position is, so that ``commit`` does not set it back."""
        if position >= self._committed.get(partition, _NOWHERE)[0]:
            self._committed[partition] = (position, note)

    async def aclose(self) -> None:
        """Leave the group; a static member is still counted as there until its session ends."""
        consumer, self._consumer = self._consumer, None
        self._forget()
        if consumer is not None:
            await stop_consumer(consumer)
        self._forget()

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  # it awaits what it gets
        self, revoked: Collection[Any]
    ) -> None:
        """Hold the rebalance up until the workers are done with what they have in hand."""
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
            # Nothing is damaged: the graph's mark refuses the writes of two owners. It only costs repeated work.
            logger.warning("partitions_not_released", partitions=sorted(self._holders), waited_s=self._barrier_s)
            self._holders.clear()

    def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        """Take what is ours now."""
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
        # A member that is not back in the group by then is out of it, so its barrier must end before.
        rebalance_ms = int(self._barrier_s * 1000) + session_ms
        consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=self._servers,
            client_id=owner,
            group_id=self._group_name,
            group_instance_id=self._instance,
            enable_auto_commit=False,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=max(100, min(1_000, session_ms // 5)),
            rebalance_timeout_ms=rebalance_ms,
            max_poll_interval_ms=_NO_POLL_LIMIT_MS,
            request_timeout_ms=rebalance_ms + 5_000,
            max_partition_fetch_bytes=1,
            metadata_max_age_ms=_METADATA_MS,
        )
        try:
            with bus_errors("the group of workers cannot be joined"):
                await consumer.start()
        except BaseException:  # cancelled, too: what it has opened must be closed
            await consumer.stop()
            raise
        self._consumer = consumer
        consumer.subscribe([channels.EVENTS_TOPIC], listener=self)

    async def _alive(self) -> bool:
        """Return whether the membership stands; a membership that has ended is given up, to be joined anew."""
        consumer = self._consumer
        if consumer is None:
            return False
        try:
            async with asyncio.timeout(_PROBE_S):
                await consumer.getmany(timeout_ms=0)  # returns nothing, for all is paused, but raises what went wrong
        except TimeoutError:  # a rebalance is under way
            return False
        except KafkaError as error:
            await self.aclose()
            raise BusUnavailable(f"the membership in the group of workers has ended: {error}") from error
        return True

"""Kafka for events; context is asked for in ``graphweft.kafka_context``."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from graphweft.kafka_connection import bus_errors, make_topics, record_of, servers
from graphweft.kafka_context import KafkaContext, end_producer
from graphweft.kafka_partitions import agreed_partitions
from graphweft.transport import DEFAULT_PARTITIONS, MAX_EVENT_BYTES, Outgoing, check_sizes
from graphweft_contracts import ContextReply, ContextRequest, InvalidEvent, channels

__all__ = ("KafkaTransport",)

_BATCH_OVERHEAD: Final = 1_024
_REQUEST_MS: Final = 5_000
"""How long an append may wait for its confirmation. The client repeats it, so waiting long only delays that."""


class KafkaTransport:
    """The ``Transport`` over Kafka. Connects at the first use and again after an error.

    An idempotent producer writes each batch once, in order, whatever happens to its connection. The partition is that
    of ``channels.partition_of``, as on Redis, so all clients put a chat on the same one; Kafka's own partitioner would
    choose another. It is one of the partitions that the topic had at the start: added ones move no chat.
    """

    def __init__(self, url: str, *, partitions: int = DEFAULT_PARTITIONS) -> None:
        self._servers = servers(url)
        self._wanted_partitions = partitions
        self._partitions: int | None = None
        """To how many partitions keys are mapped."""
        self._producer: Any = None
        self._connecting = asyncio.Lock()
        self._context = KafkaContext(self._servers, partitions=partitions)

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """See ``Transport.append``.

        A topic that was set to smaller batches refuses them when others are written already; they come again, and
        consumers drop the second copies.
        """
        check_sizes(events)
        producer, partitions = await self._connected()
        by_partition: dict[int, list[int]] = defaultdict(list)
        for index, event in enumerate(events):
            by_partition[channels.partition_of(event.key, partitions)].append(index)
        positions = [""] * len(events)
        outcomes = await asyncio.gather(
            *(self._write(producer, number, indexes, events, positions) for number, indexes in by_partition.items()),
            return_exceptions=True,
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if not failures:
            return positions
        # Its state is unknown and the same events come again: a new one knows of nothing.
        await self._drop(producer)
        for failure in sorted(failures, key=lambda failure: isinstance(failure, (KafkaError, OSError))):
            with bus_errors("the bus took no events"):
                raise failure
        return positions

    async def request(self, request: ContextRequest) -> ContextReply:
        """See ``Transport.request``."""
        return await self._context.request(request)

    async def aclose(self) -> None:
        """See ``Transport.aclose``."""
        producer, self._producer = self._producer, None
        try:
            if producer is not None:
                await end_producer(producer)
        finally:
            await self._context.aclose()

    async def _connected(self) -> tuple[Any, int]:
        async with self._connecting:
            with bus_errors("the bus took no events"):
                if self._partitions is None:
                    admin = AIOKafkaAdminClient(bootstrap_servers=self._servers, request_timeout_ms=_REQUEST_MS)
                    try:
                        await admin.start()
                        present = await make_topics(admin, self._wanted_partitions)
                        self._partitions = await agreed_partitions(self._servers, admin, present)
                    finally:
                        await admin.close()
                if self._producer is None:
                    producer = AIOKafkaProducer(
                        bootstrap_servers=self._servers,
                        enable_idempotence=True,
                        request_timeout_ms=_REQUEST_MS,
                        max_batch_size=MAX_EVENT_BYTES + _BATCH_OVERHEAD,
                        max_request_size=MAX_EVENT_BYTES + _BATCH_OVERHEAD,
                    )
                    try:
                        await producer.start()
                    except BaseException:
                        await producer.stop()
                        raise
                    self._producer = producer
            return self._producer, self._partitions

    async def _write(
        self, producer: Any, number: int, indexes: Sequence[int], events: Sequence[Outgoing], positions: list[str]
    ) -> None:
        """Write one partition's events in order, batch by batch: what follows a failure must not be there before it."""
        rest = list(indexes)
        while rest:
            batch, taken = producer.create_batch(), 0
            for index in rest:
                value, headers = record_of(events[index].fields)
                key = events[index].key.encode()
                if batch.append(key=key, value=value, timestamp=None, headers=headers) is None:
                    break
                taken += 1
            written, rest = rest[:taken], rest[taken:]
            async with asyncio.timeout(2 * _REQUEST_MS / 1000):
                confirmed = await producer.send_batch(batch, channels.EVENTS_TOPIC, partition=number)
                try:
                    first = (await confirmed).offset
                except MessageSizeTooLargeError as error:
                    raise InvalidEvent(
                        f"Kafka refuses a batch of {taken} events as too large: raise max.message.bytes of the topic "
                        f"{channels.EVENTS_TOPIC} to its default of 1048588 at least"
                    ) from error
            for offset, index in enumerate(written, first):
                positions[index] = f"{number}:{offset}"

    async def _drop(self, producer: Any) -> None:
        if self._producer is producer:
            self._producer = None
        await end_producer(producer)

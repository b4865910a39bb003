"""The transport over Kafka. ``graphweft.transports.kafka.context`` has its context requests."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnsupportedForMessageFormatError,
)

from graphweft.time_limit import time_limit
from graphweft.transport import MAX_EVENT_BYTES, Outcome, Outgoing, check_sizes, positions_of
from graphweft.transports.kafka.connection import admin_client, bus_errors, find_topics, record_of, servers, started
from graphweft.transports.kafka.context import KafkaContext, OwnReplies, end_producer
from graphweft.transports.kafka.layout import agreed_layout, stored_layout
from graphweft.transports.kafka.timing import KAFKA_TIMING, KafkaTiming
from graphweft_contracts import (
    BusUnavailable,
    ContextReply,
    ContextRequest,
    InvalidEvent,
    Layout,
    PartitionRefused,
    channels,
)
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.layout import NEW_LAYOUT
from graphweft_contracts.signatures import SigningKey

logger = logging.getLogger("graphweft.client")

_BATCH_OVERHEAD: Final = 1_024
_NOT_ACCEPTED: Final = "the bus did not accept the events"
_LASTING: Final[Mapping[type[KafkaError], str]] = {
    # In org.apache.kafka.common.protocol.Errors each of them is an ApiException that is not retriable.
    TopicAuthorizationFailedError: "`graphweft acl kafka` prints the rights that this user needs",
    InvalidTopicError: "an operator names and makes the topic as graphweft does",
    PolicyViolationError: "an operator changes the policy of the brokers",
    UnsupportedForMessageFormatError: "an operator removes message.format.version from the topic",
    InvalidTimestampError: "an operator sets message.timestamp.type=LogAppendTime for the topic",
}
"""Errors of a partition that no waiting mends, and what does. Too large batches raise ``InvalidEvent``."""


class KafkaTransport:
    """The ``Transport`` over Kafka. Connects at the first use, and again after an error.

    An idempotent producer writes each batch once and in order, even if its connection breaks. The layout of the bus
    selects the partition, so that all clients use the same one; Kafka's own partitioner would differ. It is one of the
    partitions that the topic had at first, so added partitions move no app.
    """

    system: Final = "kafka"
    """The product, as spans name it."""

    def __init__(
        self, url: str, *, new: Layout = NEW_LAYOUT, signing_key: SigningKey | None = None, clock: Clock = SYSTEM_CLOCK,
        timing: KafkaTiming = KAFKA_TIMING,
    ) -> None:  # fmt: skip
        """``new`` is the layout of a new bus. ``signing_key`` signs events and requests."""
        self._servers = servers(url)
        self._clock = clock
        self._timing = timing
        self._new = new
        self._layout: Layout | None = None
        self._layout_at = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        self._producer: Any = None
        self._writers: Counter[Any] = Counter()
        """How many calls use a producer: it is ended after the last one."""
        self._connecting = asyncio.Lock()
        self._signing_key = signing_key
        self._contexts: dict[str, KafkaContext] = {}
        """By app; empty: of all apps, in a topic that they share."""
        self._own_replies = False
        """Whether this user may read the replies of its own app only."""

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """See ``Transport.append``.

        A topic that allows only smaller batches may refuse one after others are written. The client retries all, and
        consumers drop the duplicates.
        """
        return positions_of(await self.append_each(events))

    async def layout(self) -> Layout:
        """See ``PartitionedTransport.layout``."""
        async with self._connecting:
            with bus_errors(_NOT_ACCEPTED):
                return await self._current_layout()

    async def append_each(self, events: Sequence[Outgoing]) -> list[Outcome]:
        """See ``PartitionedTransport.append_each``."""
        check_sizes(events)
        producer, layout = await self._connected()
        by_partition: dict[int, list[int]] = defaultdict(list)
        for index, event in enumerate(events):
            by_partition[layout.partition_of(event.key)].append(index)
        outcomes: list[Outcome] = [""] * len(events)
        self._writers[producer] += 1
        try:
            errors = await asyncio.gather(
                *(self._write(producer, number, indexes, events, outcomes) for number, indexes in by_partition.items()),
                return_exceptions=True,
            )
        finally:
            self._writers[producer] -= 1
            if not self._writers[producer]:
                del self._writers[producer]
        if any(errors) or self._producer is not producer:
            # The state of the producer is unknown, and the same events are retried: use a new one.
            await self._drop(producer)
        for indexes, error in zip(by_partition.values(), errors, strict=True):
            if isinstance(error, (InvalidEvent, PartitionRefused, BusUnavailable)):
                for index in indexes:
                    outcomes[index] = outcomes[index] or error
            elif error is not None:
                raise error
        return outcomes

    async def request(self, request: ContextRequest) -> ContextReply:
        """See ``Transport.request``."""
        if not self._own_replies:
            try:
                return await self._context("").request(request)
            except OwnReplies:
                self._own_replies = True
        return await self._context(request.app_id).request(request)

    def _context(self, app_id: str) -> KafkaContext:
        found = self._contexts.get(app_id)
        if found is None:
            found = self._contexts[app_id] = KafkaContext(
                self._servers,
                partitions=self._new.partitions,
                app_id=app_id,
                signing_key=self._signing_key,
                clock=self._clock,
                timing=self._timing,
            )
        return found

    async def aclose(self) -> None:
        """See ``Transport.aclose``."""
        producer, self._producer = self._producer, None
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        try:
            if producer is not None:
                await end_producer(producer)
        finally:
            for context in self._contexts.values():
                await context.aclose()

    async def _connected(self) -> tuple[Any, Layout]:
        async with self._connecting:
            with bus_errors(_NOT_ACCEPTED):
                layout = await self._current_layout()
                if self._producer is None:
                    producer = AIOKafkaProducer(
                        **self._servers.options,
                        enable_idempotence=True,
                        request_timeout_ms=self._timing.request_ms,
                        max_batch_size=MAX_EVENT_BYTES + _BATCH_OVERHEAD,
                        max_request_size=MAX_EVENT_BYTES + _BATCH_OVERHEAD,
                    )
                    self._producer = await started(producer)
            return self._producer, layout

    async def _current_layout(self) -> Layout:
        now = self._clock.monotonic()
        if self._layout is None:
            async with admin_client(self._servers, self._timing.request_ms) as admin:
                present = await find_topics(admin, self._new.partitions, self._servers.copies)
                self._layout = await agreed_layout(self._servers, admin, present, self._new.order)
            self._layout_at = now
        elif now > self._layout_at + self._timing.layout_s:
            self._layout_at = now
            self._refreshing = asyncio.create_task(self._refresh())  # takes some 100 ms, which no event waits for
        return self._layout

    async def _refresh(self) -> None:
        try:
            self._layout = await stored_layout(self._servers) or self._layout
        except (KafkaError, OSError) as error:
            logger.debug("the layout of the bus cannot be read: %s", error)

    async def _write(
        self, producer: Any, number: int, indexes: Sequence[int], events: Sequence[Outgoing], outcomes: list[Outcome]
    ) -> None:
        """Write one partition's events in order, batch by batch; after a failure no later event is written."""
        try:
            with bus_errors(f"partition {number} of the bus did not accept the events"):
                await self._write_batches(producer, number, indexes, events, outcomes)
        except BusUnavailable as error:
            for kind, step in _LASTING.items():
                if isinstance(error.__cause__, kind):
                    raise PartitionRefused(f"{error}; {step}") from error.__cause__
            raise

    async def _write_batches(
        self, producer: Any, number: int, indexes: Sequence[int], events: Sequence[Outgoing], outcomes: list[Outcome]
    ) -> None:
        rest = list(indexes)
        while rest:
            batch, taken = producer.create_batch(), 0
            for index in rest:
                value, headers = record_of(events[index].signed(self._signing_key))
                key = events[index].key.encode()
                if batch.append(key=key, value=value, timestamp=None, headers=headers) is None:
                    break
                taken += 1
            written, rest = rest[:taken], rest[taken:]
            async with time_limit(2 * self._timing.request_ms / 1000):
                confirmed = await producer.send_batch(batch, channels.EVENTS_TOPIC, partition=number)
                try:
                    first = (await confirmed).offset
                except (MessageSizeTooLargeError, RecordListTooLargeError) as error:
                    raise InvalidEvent(
                        f"Kafka refuses a batch of {taken} events as too large: set max.message.bytes of the topic "
                        f"{channels.EVENTS_TOPIC} to at least its default of 1048588"
                    ) from error
            for offset, index in enumerate(written, first):
                outcomes[index] = f"{number}:{offset}"

    async def _drop(self, producer: Any) -> None:
        """Use another producer from now on, and end this one unless another call still uses it."""
        if self._producer is producer:
            self._producer = None
        if producer not in self._writers:
            await end_producer(producer)

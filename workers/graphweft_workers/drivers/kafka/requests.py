"""``RequestQueue`` on a Kafka topic that responders share as a consumer group; replies go to another topic.

The group's consumer reads nothing, because aiokafka stops reading for each rebalance. Another consumer reads all
assigned partitions, with one request at a time; after a rebalance a new one goes on where it was.

Kafka notices the death of a responder only after the session time. So a responder says several times a second which
requests it has, and a client that hears nothing of one sends a copy to another responder (``KafkaContext``).

The committed position follows the answered requests. The new owner of a dead responder's partition reads from there:
most of these requests are late by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError

from graphweft.transports.kafka.connection import (
    admin_client,
    bus_errors,
    is_of_content,
    make_context_topics,
    retrieve,
    servers,
    start_client,
    started,
    unavailable,
)
from graphweft.transports.kafka.context import SENT_AGAIN, end_producer
from graphweft_contracts import BusUnavailable, ContextReply, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.layout import DEFAULT_PARTITIONS
from graphweft_contracts.signatures import SIGNATURE
from graphweft_workers.drivers.kafka.careful_reader import read_carefully
from graphweft_workers.drivers.kafka.group import NO_POLL_LIMIT_MS
from graphweft_workers.drivers.kafka.held_requests import HeldRequests
from graphweft_workers.drivers.kafka.reader import stop_consumer
from graphweft_workers.drivers.kafka.timing import KAFKA_BUS_TIMING, KafkaBusTiming
from graphweft_workers.ports.request_queue import MAX_REPLY_BYTES, PendingRequest, encode
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.support.tasks import end_tasks

logger = get_logger("graphweft.injection")

_SESSION_S: Final = 6.0
"""The shortest session that a broker allows by default."""
_REQUEST_MS: Final = 5_000
_READ_AHEAD: Final = 64
"""About the number of requests that are read ahead."""
_FETCH_BYTES: Final = 1024**2
_FETCH_MS: Final = 1_000
"""How long the broker waits for a request before it answers. Each answer costs the broker and this process about a
millisecond, also without a request."""
_NO_BACKOFF_LIMIT_S: Final = 10 * 365 * 86_400.0
"""While records of a partition are not taken, aiokafka waits: by default 0.1 s. Then it would fetch without that
partition, whose next requests would wait until that fetch ends."""
_SIGNATURE: Final = SIGNATURE.decode()
_CHANNEL: Final = re.compile(
    rf"({re.escape(channels.CONTEXT_REPLIES_TOPIC)}(?:\.[A-Za-z0-9_-]{{1,64}})?):([0-9]{{1,9}})", re.ASCII
)


class KafkaRequestQueue(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """``RequestQueue`` on Kafka; ``name`` is shown to operators; ``partitions`` is for new topics."""

    def __init__(
        self, url: str, *, name: str, partitions: int = DEFAULT_PARTITIONS, session_s: float = _SESSION_S,
        clock: Clock = SYSTEM_CLOCK, timing: KafkaBusTiming = KAFKA_BUS_TIMING,
    ) -> None:  # fmt: skip
        self._servers = servers(url)
        self._clock = clock
        self._timing = timing
        self._name = name
        self._partitions = partitions
        self._session_s = session_s
        self._producer: Any = None
        self._group: Any = None
        self._readers: dict[int, _Reader] = {}
        self._consumer: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._assigned = asyncio.Event()
        self._wanted: frozenset[int] = frozenset()
        self._ready: deque[PendingRequest] = deque()
        self._room = asyncio.Event()
        self._woken: asyncio.Future[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._ended: BusUnavailable | None = None
        self._topics: set[str] = set()
        self._said = LogLimit(clock=clock)
        self._look_at = 0.0
        self._held = HeldRequests()
        self._holds = asyncio.Event()
        self._noting: asyncio.Task[None] | None = None

    async def next(self, limit: int, *, wait: bool = True) -> Sequence[PendingRequest]:
        """See ``RequestQueue.next``."""
        if self._keeper is None:
            await self._join()
        if self._ended is not None:
            error, self._ended = self._ended, None
            await self._disconnect()
            raise error
        if not self._ready and wait:
            self._woken = asyncio.get_running_loop().create_future()
            try:
                await self._woken
            finally:
                self._woken = None
        handed = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
        if len(self._ready) < _READ_AHEAD:
            self._room.set()
        return handed

    def wake(self) -> None:
        """See ``RequestQueue.wake``."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def reply(self, channel: str, reply: ContextReply) -> bool:
        """See ``RequestQueue.reply``. It does not wait for the delivery."""
        with bus_errors("the bus did not accept a reply"):
            sent = await self._send(channel, encode(reply))
        if sent is None:
            return False
        sent.add_done_callback(_note_lost)
        return True

    async def _send(self, channel: str, message: bytes) -> asyncio.Future[Any] | None:
        """Send a record to clients; None if nobody is known to listen. It waits ``_REQUEST_MS`` at most."""
        named = _CHANNEL.fullmatch(channel)
        if named is None:
            return None
        topic, partition = named[1], int(named[2])
        producer = self._producer
        if producer is None:
            raise BusUnavailable("the bus is unavailable: no connection")
        if not await self._exists(topic) or partition not in await producer.partitions_for(topic):
            return None
        sent: asyncio.Future[Any] = await producer.send(topic, message, partition=partition)
        return sent

    async def _exists(self, topic: str) -> bool:
        """Tell whether a topic of replies exists. To ask for it by its name could make it, and a request names it."""
        if topic == channels.CONTEXT_REPLIES_TOPIC or topic in self._topics:
            return True
        if self._clock.monotonic() < self._look_at:
            return False
        self._look_at = self._clock.monotonic() + self._timing.topics_s
        async with asyncio.timeout(_REQUEST_MS / 1000):
            self._topics = set((await self._producer.client.fetch_all_metadata()).topics())
        return topic in self._topics

    async def age_s(self, token: str) -> float | None:
        """See ``RequestQueue.age_s``. Records have the time of their producer."""
        return None

    def done(self, token: str) -> None:
        """See ``RequestQueue.done``."""
        self._held.remove(token)
        number, _, offset = token.partition(":")
        reader = self._readers.get(int(number))
        if reader is not None:
            reader.open.pop(int(offset), None)

    async def leave(self) -> Sequence[PendingRequest]:
        """See ``RequestQueue.leave``. Others get the partitions at once, and begin after the assigned requests."""
        rest = list(self._ready)
        self._ready.clear()
        for reader in self._readers.values():
            reader.open.clear()
        await self._disconnect(keep_producer=True)
        return rest

    async def aclose(self) -> None:
        """See ``RequestQueue.aclose``."""
        await self._disconnect()

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  # it awaits what it gets
        self, revoked: Collection[Any]
    ) -> None:
        """Commit the positions; reading continues until the new assignment is known."""
        await self._commit()

    def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        """Read the assigned partitions."""
        if self._group is not None:
            self._group.pause(*assigned)
            self._wanted = frozenset(int(partition.partition) for partition in assigned)
            self._assigned.set()

    async def _join(self) -> None:
        producer: Any = AIOKafkaProducer(
            **self._servers.options,
            client_id=self._name,
            acks=1,
            linger_ms=0,
            request_timeout_ms=_REQUEST_MS,
            max_batch_size=MAX_REPLY_BYTES,
            max_request_size=MAX_REPLY_BYTES + 1024,
        )
        session_ms = int(self._session_s * 1000)
        group: Any = AIOKafkaConsumer(
            **self._servers.options,
            client_id=self._name,
            group_id=channels.CONTEXT_GROUP,
            enable_auto_commit=False,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=max(100, min(500, session_ms // 5)),
            rebalance_timeout_ms=session_ms,
            max_poll_interval_ms=NO_POLL_LIMIT_MS,
            request_timeout_ms=session_ms + _REQUEST_MS,
            max_partition_fetch_bytes=1,
        )
        try:
            with bus_errors("the bus is unavailable"):
                async with admin_client(self._servers, _REQUEST_MS) as admin:
                    await make_context_topics(admin, self._partitions, self._servers.copies)
                await start_client(producer)
                await start_client(group)
        except BaseException:  # also when cancelled: the connection must be closed
            await group.stop()
            await producer.stop()
            raise
        before, self._producer, self._group = self._producer, producer, group
        group.subscribe([channels.CONTEXT_REQUESTS_TOPIC], listener=self)
        self._keeper = asyncio.create_task(self._keep(), name="graphweft-requests")
        if self._noting is None:
            self._noting = asyncio.create_task(self._note_held(), name="graphweft-requests-note")
        if before is not None:
            await end_producer(before)

    async def _disconnect(self, *, keep_producer: bool = False) -> None:
        keeper, self._keeper = self._keeper, None
        await end_tasks(keeper)
        await self._assign(frozenset(), commit=True)
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(KafkaError, OSError):
                await group.stop()
        if keep_producer:
            return
        noting, self._noting = self._noting, None
        await end_tasks(noting)
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await end_producer(producer)

    async def _keep(self) -> None:
        """Follow the assignment, commit positions, and notice the end of the membership."""
        probe_at = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.request_commit_s):
                    await self._assigned.wait()
            try:
                if self._assigned.is_set():
                    self._assigned.clear()
                    await self._assign(self._wanted)
                await self._commit()
                if self._clock.monotonic() >= probe_at:
                    probe_at = self._clock.monotonic() + self._timing.request_probe_s
                    self.wake()  # for ``next``, which waits about a second
                    with contextlib.suppress(TimeoutError):  # during a rebalance
                        async with asyncio.timeout(self._timing.probe_s):
                            # It returns nothing, because all is paused, but raises errors.
                            await self._group.getmany(timeout_ms=0)
            except Exception as error:  # defects too: otherwise nobody would follow the assignment
                ended = "the membership in the group of responders has ended"
                if isinstance(error, KafkaError | OSError):
                    self._ended = unavailable(error, ended)
                else:
                    logger.exception("requests_not_kept")
                    self._ended = BusUnavailable(f"{ended}: {error}")
                self.wake()
                return

    async def _note_held(self) -> None:
        """Tell clients several times a second which of their requests this responder has, while it has any."""
        while True:
            if not self._held:
                self._holds.clear()
            await self._holds.wait()
            await self._clock.sleep(self._timing.request_note_s)
            for channel, note in self._held.notes().items():
                try:
                    sent = await self._send(channel, note)
                    if sent is not None:
                        sent.add_done_callback(retrieve)
                except (BusUnavailable, KafkaError, OSError) as error:
                    logger.debug("requests_not_noted", channel=channel, error=str(error))
                except Exception:  # a defect: without notes clients would send all slow requests twice
                    logger.exception("requests_not_noted", channel=channel)

    async def _assign(self, wanted: frozenset[int], *, commit: bool = False) -> None:
        """Stop reading revoked partitions, and start reading new ones."""
        if commit:
            await self._stop_reading()
            await self._commit()
        fresh = [TopicPartition(channels.CONTEXT_REQUESTS_TOPIC, n) for n in sorted(wanted - self._readers.keys())]
        starts: list[int | None] = [await self._group.committed(place) for place in fresh]
        if not fresh and wanted == self._readers.keys():
            return
        consumer = await self._opened() if wanted else None
        try:
            await self._stop_reading()
        except BaseException:  # cancelled, because the queue is closed: no attribute holds the new consumer yet
            if consumer is not None:
                await stop_consumer(consumer)
            raise
        # Requests that were handed out are still answered.
        self._readers = {number: reader for number, reader in self._readers.items() if number in wanted}
        self._readers |= {
            place.partition: _Reader(place=place, start=start, now=self._clock.now())
            for place, start in zip(fresh, starts, strict=True)
        }
        if consumer is not None:
            self._consumer = consumer
            self._reading = asyncio.create_task(self._read(), name="graphweft-requests-read")

    async def _opened(self) -> Any:
        """Return a connected consumer without partitions. Raises ``KafkaError`` or ``OSError``."""
        consumer: Any = AIOKafkaConsumer(
            **self._servers.options,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=_REQUEST_MS,
            fetch_max_wait_ms=_FETCH_MS,
            max_partition_fetch_bytes=_FETCH_BYTES,
        )
        await started(consumer)
        consumer._fetcher._prefetch_backoff = _NO_BACKOFF_LIMIT_S
        return consumer

    async def _stop_reading(self) -> None:
        """Stop reading; a second call does nothing."""
        reading, self._reading = self._reading, None
        await end_tasks(reading)
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await stop_consumer(consumer)

    async def _read(self) -> None:
        while True:
            try:
                if self._consumer is None:
                    self._consumer = await self._opened()
                await self._follow(self._consumer)
            except (KafkaError, OSError) as error:
                logger.debug("requests_interrupted", error=str(error))
            except Exception:  # a defect: nobody else reads these partitions
                logger.exception("requests_interrupted")
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                await stop_consumer(consumer)
            await self._clock.sleep(self._timing.request_retry_s)

    async def _follow(self, consumer: Any) -> None:
        """Read until an error."""
        consumer.assign([reader.place for reader in self._readers.values()])
        for reader in self._readers.values():
            if reader.next is None:
                await consumer.seek_to_beginning(reader.place)
            else:
                consumer.seek(reader.place, reader.next)
        while True:
            await self._has_room()
            try:
                first = await consumer.getone()  # without the timer of a `getmany` that waits
                self._add(self._readers[first.partition], [first], first.offset + 1)
                found = await consumer.getmany(max_records=_READ_AHEAD)
            except Exception as error:
                if not is_of_content(error):
                    raise
                await self._read_carefully(consumer)
                continue
            for place, records in found.items():
                self._add(self._readers[place.partition], records, records[-1].offset + 1)

    async def _read_carefully(self, consumer: Any) -> None:
        """Read each partition once from where it was: what ``consumer`` has read besides the broken record is lost."""
        readers = list(self._readers.values())
        found = await asyncio.gather(*(self._careful(consumer, reader) for reader in readers))
        for reader, (records, position) in zip(readers, found, strict=True):
            self._add(reader, records, position)
            consumer.seek(reader.place, position)

    async def _careful(self, consumer: Any, reader: _Reader) -> tuple[Sequence[Any], int]:
        """Return what is there of a partition now, and the next position."""
        position = reader.next
        if position is None:
            position = (await consumer.beginning_offsets([reader.place]))[reader.place]
        return await read_carefully(
            self._servers,
            reader.place,
            position,
            limit=_READ_AHEAD,
            fetch_bytes=_FETCH_BYTES,
            said=self._said,
            wait_ms=0,
        )

    async def _commit(self) -> None:
        """Commit the positions; after a failure requests are answered again."""
        positions = {
            reader.place: reader.settled for reader in self._readers.values() if reader.settled != reader.committed
        }
        group = self._group
        if not positions or group is None:
            return
        try:
            async with asyncio.timeout(self._timing.request_commit_limit_s):
                await group.commit(positions)
        except (KafkaError, OSError) as error:  # a rebalance, an outage, or a revoked partition
            logger.debug("requests_not_committed", error=str(error))
            return
        for place, position in positions.items():
            if (reader := self._readers.get(place.partition)) is not None:
                reader.committed = position

    def _add(self, reader: _Reader, records: Sequence[Any], position: int) -> None:
        """Add requests of a partition, which is read from ``position`` on then."""
        for record in records:
            follows = reader.follows and record.timestamp < reader.since_ms
            pending = _pending(record, taken_over=follows or SENT_AGAIN in record.headers)
            if not self._held.add(pending):
                continue
            reader.open[record.offset] = None
            self._ready.append(pending)
        if self._held:
            self._holds.set()
        reader.next = position
        if len(self._ready) >= _READ_AHEAD:
            self._room.clear()
        if records:
            self.wake()

    async def _has_room(self) -> None:
        """Wait until there is room for more."""
        if len(self._ready) >= _READ_AHEAD:
            await self._room.wait()


class _Reader:
    """The position in one partition, which is read from ``start`` on (None: from its beginning)."""

    __slots__ = ("committed", "follows", "next", "open", "place", "since_ms")

    def __init__(self, *, place: Any, start: int | None, now: datetime) -> None:
        self.place = place
        self.open: dict[int, None] = {}
        """Offsets of unfinished requests, in order."""
        self.next = start
        """The offset that is read next; None before the first read."""
        self.committed = start
        self.follows = start is not None
        self.since_ms = now.timestamp() * 1000

    @property
    def settled(self) -> int | None:
        """The offset up to which all requests are finished; None if nothing was read."""
        return next(iter(self.open), self.next)


def _pending(record: Any, *, taken_over: bool) -> PendingRequest:
    signature = next((value for name, value in reversed(record.headers) if name == _SIGNATURE), None)
    token = f"{record.partition}:{record.offset}"
    return PendingRequest(token=token, body=record.value or b"", signature=signature or b"", taken_over=taken_over)


def _note_lost(sent: asyncio.Future[Any]) -> None:
    if not sent.cancelled() and (error := sent.exception()) is not None:
        logger.warning("reply_lost", error=str(error) or type(error).__name__)

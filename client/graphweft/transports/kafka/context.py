"""Context requests over Kafka: one producer for the requests, and one partition of the replies as the inbox.

The inbox is read from its end, without a consumer group. Other processes may share the partition: the id precedes the
JSON, so their replies are not parsed. A consumer group would cost seconds at the start, and leave its offsets on the
broker.

A responder says several times a second which requests it has: a record without an id, followed by their ids. A request
of which nothing is heard for a while goes to another responder too, once. The first reply counts. Rejected: all
responders read all requests and agree by heartbeats on who answers (a membership of our own beside Kafka's); a copy for
every request that takes long (twice the load where all are slow).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, UnsupportedCodecError

from graphweft.time_limit import time_limit
from graphweft.transport import CLOSED, MAX_CONTEXT_BYTES, encoded, read_reply, seconds_left
from graphweft.transports.kafka.connection import (
    Servers,
    admin_client,
    bus_errors,
    find_replies,
    is_of_content,
    make_context_topics,
    retrieve,
    start_client,
)
from graphweft.transports.kafka.request_partitions import RequestPartitions
from graphweft.transports.kafka.timing import KAFKA_TIMING, KafkaTiming
from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.signatures import SIGNATURE, SigningKey

logger = logging.getLogger("graphweft.client")

_BATCH_BYTES: Final = 256 * 1024
"""Bytes of requests that wait in a partition's batch while the broker is unavailable."""

SENT_AGAIN: Final = ("graphweft-again", b"1")
"""The header of a request that was sent to another responder before."""


class OwnReplies(Exception):
    """This user may not read the topic of replies of all apps, but that of an app."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A request in progress."""

    answer: asyncio.Future[bytes | BusUnavailable] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    is_alive: bool = False
    """Whether its responder has said since the last look that it has the request."""


class KafkaContext:
    """Sends requests and receives their replies. Connects at the first use."""

    def __init__(
        self, servers: Servers, *, partitions: int, app_id: str = "", signing_key: SigningKey | None = None,
        clock: Clock = SYSTEM_CLOCK, timing: KafkaTiming = KAFKA_TIMING,
    ) -> None:  # fmt: skip
        """With ``app_id`` it reads the topic of replies of that app, else that of all apps.

        In the second case ``request`` raises ``OwnReplies`` where this user may not.
        """
        self._app_id = app_id
        self._clock = clock
        self._timing = timing
        self._signing_key = signing_key
        self._servers = servers
        self._wanted_partitions = partitions
        self._partitions: RequestPartitions
        self._opening: asyncio.Task[None] | None = None
        self._failed = 0.0
        self._producer: Any = None
        self._inbox: Any = None
        self._reply_to = ""
        self._listener: asyncio.Task[None] | None = None
        self._unreadable: set[str] = set()
        """What a warning has said of replies that cannot be read."""
        self._pending: dict[bytes, _Pending] = {}

    async def request(self, request: ContextRequest) -> ContextReply:
        """See ``Transport.request``."""
        pending = _Pending()
        request_id = request.id.encode()
        try:
            async with time_limit(seconds_left(request, self._clock)):
                producer: Any = self._producer or await self._opened()
                message = encoded(request, self._reply_to)
                if isinstance(message, ContextReply):
                    return message
                self._pending[request_id] = pending
                again_s = min(seconds_left(request, self._clock) * self._timing.again, self._timing.again_s)
                outcome = await self._answer(producer, message, pending, again_s)
                if isinstance(outcome, BusUnavailable):
                    raise outcome
                return read_reply(request, outcome, self._clock)
        finally:
            self._pending.pop(request_id, None)

    async def _answer(
        self, producer: Any, message: bytes, pending: _Pending, again_s: float
    ) -> bytes | BusUnavailable:  # fmt: skip
        """Send a request, once more to another responder if ``again_s`` pass in silence, and wait for the reply."""
        key, answer = self._signing_key, pending.answer
        headers = [] if key is None else [(SIGNATURE.decode(), key.of_request(message))]
        partition = self._partitions.first()
        with bus_errors("the bus did not accept the request"):
            sent = await self._send(producer, message, partition, headers)
        sent.add_done_callback(partial(_refused, answer))
        while not (await asyncio.wait([answer], timeout=again_s))[0]:
            if pending.is_alive:
                pending.is_alive = False
            elif (other := self._partitions.second(partition)) is not None:
                logger.debug("nothing was heard of a request for %.3f s: it is sent again", again_s)
                with contextlib.suppress(KafkaError, OSError):  # the first one may still be answered
                    (await self._send(producer, message, other, [*headers, SENT_AGAIN])).add_done_callback(retrieve)
                return await answer
        self._partitions.heard(partition)
        return answer.result()

    @staticmethod
    async def _send(producer: Any, message: bytes, partition: int, headers: list[tuple[str, bytes]]) -> Any:
        return await producer.send(
            channels.CONTEXT_REQUESTS_TOPIC, message, partition=partition, headers=headers or None
        )  # fmt: skip

    async def aclose(self) -> None:
        """Disconnect; pending requests fail as unavailable."""
        await _ended(self._opening)
        await _ended(self._listener)  # it may have begun in the end: aiokafka may miss a cancellation
        self._opening = self._listener = None
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_result(BusUnavailable(CLOSED))
        producer, self._producer = self._producer, None
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.stop()
        if producer is not None:
            await end_producer(producer)

    async def _opened(self) -> Any:
        """Connect and return the producer. A cancelled caller does not cancel the connection for others."""
        if self._opening is None or self._opening.done():
            # Limits attempts while the bus is unavailable.
            pause_s = max(0.0, self._failed + self._timing.retry_s - self._clock.monotonic())
            self._opening = asyncio.create_task(self._open(pause_s), name="graphweft-context-open")
            self._opening.add_done_callback(retrieve)
        opening = self._opening
        await asyncio.wait([opening])  # unlike ``await opening``, this passes on no cancellation
        if not opening.cancelled():
            with bus_errors("the bus is unavailable"):
                opening.result()
        if self._producer is None:  # closed meanwhile
            raise BusUnavailable(CLOSED)
        return self._producer

    async def _open(self, pause_s: float) -> None:
        await self._clock.sleep(pause_s)
        producer: Any = AIOKafkaProducer(
            **self._servers.options,
            acks=1,
            linger_ms=0,
            request_timeout_ms=self._timing.request_ms,
            max_batch_size=_BATCH_BYTES,
            max_request_size=MAX_CONTEXT_BYTES + 1024,
        )
        inbox: Any = AIOKafkaConsumer(
            **self._servers.options,
            enable_auto_commit=False,
            auto_offset_reset="latest",
            request_timeout_ms=self._timing.request_ms,
        )
        try:
            async with admin_client(self._servers, self._timing.request_ms) as admin:
                own = await find_replies(admin, self._app_id)
                if own is not None and not self._app_id:
                    raise OwnReplies
                partitions = own or await make_context_topics(admin, self._wanted_partitions, self._servers.copies)
            await start_client(producer)
            await start_client(inbox)
            # Here a close ends the wait for it; a send that waits for it does not end with its producer.
            await producer.partitions_for(channels.CONTEXT_REQUESTS_TOPIC)
            topic = channels.context_replies_topic(self._app_id) if self._app_id else channels.CONTEXT_REPLIES_TOPIC
            partition = TopicPartition(topic, random.choice(sorted(await producer.partitions_for(topic))))
            inbox.assign([partition])
            # Before the first request is sent, so that its reply comes after this position.
            await inbox.seek_to_end(partition)
            await inbox.position(partition)
        except BaseException:
            self._failed = self._clock.monotonic()
            await inbox.stop()
            await producer.stop()
            raise
        self._partitions = RequestPartitions(partitions, clock=self._clock, timing=self._timing)
        self._reply_to = channels.context_replies_partition(partition.partition, topic)
        self._inbox, self._producer = inbox, producer
        self._listener = asyncio.create_task(self._listen(inbox, partition), name="graphweft-context-replies")

    async def _listen(self, inbox: Any, partition: Any) -> None:
        while True:
            try:
                self._deliver(await inbox.getone(partition))  # without the timer of a `getmany` that waits
                records = (await inbox.getmany(partition)).get(partition, ())
            except Exception as error:
                if is_of_content(error):  # a foreign header that is not UTF-8, or a codec: aiokafka cannot pass it
                    reason = str(error) if isinstance(error, UnsupportedCodecError) else type(error).__name__
                    if reason not in self._unreadable:
                        self._unreadable.add(reason)
                        logger.warning(
                            "replies on %s cannot be read and are skipped: %s; pip install 'graphweft[kafka]' brings "
                            "all codecs", partition.topic, reason,
                        )  # fmt: skip
                    await inbox.seek_to_end(partition)
                    continue
                if not isinstance(error, (KafkaError, OSError)):
                    raise
                logger.debug("context replies interrupted: %s", error)
                await self._clock.sleep(self._timing.retry_s)
                continue
            for record in records:
                self._deliver(record)

    def _deliver(self, record: Any) -> None:
        data: bytes | None = record.value
        if data is None:
            return
        request_id, _, body = data.partition(b"\n")
        if not request_id:
            for held in body.split(b"\n"):
                if held in self._pending:
                    self._pending[held].is_alive = True
            return
        pending = self._pending.get(request_id)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(body)


def _refused(future: asyncio.Future[bytes | BusUnavailable], sent: asyncio.Future[Any]) -> None:
    """Fail the pending request if the bus did not accept it."""
    if sent.cancelled() or (error := sent.exception()) is None or future.done():
        return
    future.set_result(BusUnavailable(f"the bus did not accept the request: {error or type(error).__name__}"))


async def _ended(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, and wait for its end."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, KafkaError, OSError, OwnReplies):
            await task


async def end_producer(producer: Any) -> None:
    """Stop a producer. Unsent records are dropped after a second."""
    try:
        with contextlib.suppress(KafkaError, OSError):  # TimeoutError is an OSError
            async with time_limit(KAFKA_TIMING.end_s):
                await producer.stop()
    finally:
        # After an interrupted stop the producer would run forever; after a complete one this does nothing.
        await producer._sender.close()
        _fail_unsent(producer._message_accumulator, KafkaError("the producer was stopped"))
        await producer.client.close()


def _fail_unsent(accumulator: Any, error: KafkaError) -> None:
    """Fail the batches that are not confirmed.

    aiokafka's own way leaves errors that nobody asked for, and raises at batches that were to be sent again: the event
    loop would report both.
    """
    batches = {*accumulator._pending_batches, *(each for queue in accumulator._batches.values() for each in queue)}
    accumulator._pending_batches |= batches
    accumulator.fail_all(error)
    for batch in batches:
        for future in (batch.future, batch._drain_waiter):
            if not future.cancelled():
                future.exception()

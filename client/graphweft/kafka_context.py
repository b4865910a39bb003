"""Asking for context over Kafka: one producer for the requests, one partition of the answers as the inbox.

The inbox is read without a group, from its end, and shared by chance with other processes: the id stands before the
JSON, so their answers are not parsed. A group of one's own would cost seconds at the start, and its positions would be
left on the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from functools import partial
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from graphweft.kafka_connection import bus_errors, make_context_topics
from graphweft.transport import MAX_CONTEXT_BYTES, encoded, read_reply, seconds_left
from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest, channels

__all__ = ("KafkaContext", "end_producer")

logger = logging.getLogger("graphweft.client")

_REQUEST_MS: Final = 5_000
_BATCH_BYTES: Final = 256 * 1024
"""Requests that wait in a partition's batch while the broker is away; more of them wait for room."""
_RETRY_S: Final = 0.2
_IDLE_MS: Final = 60_000
_END_S: Final = 1.0


class KafkaContext:
    """Sends requests and hands the answers to who waits for them. Connects at the first use."""

    def __init__(self, servers: str, *, partitions: int) -> None:
        self._servers = servers
        self._wanted_partitions = partitions
        self._partitions = 0
        self._turn = 0
        self._opening: asyncio.Task[None] | None = None
        self._failed = 0.0
        self._producer: Any = None
        self._inbox: Any = None
        self._reply_to = ""
        self._listener: asyncio.Task[None] | None = None
        self._waiting: dict[bytes, asyncio.Future[bytes | BusUnavailable]] = {}

    async def request(self, request: ContextRequest) -> ContextReply:
        """See ``Transport.request``."""
        future: asyncio.Future[bytes | BusUnavailable] = asyncio.get_running_loop().create_future()
        request_id = request.id.encode()
        try:
            async with asyncio.timeout(seconds_left(request)):
                producer: Any = self._producer or await self._opened()
                message = encoded(request, self._reply_to)
                if isinstance(message, ContextReply):
                    return message
                self._waiting[request_id] = future
                self._turn += 1
                with bus_errors("the bus took no request"):
                    sent = await producer.send(
                        channels.CONTEXT_REQUESTS_TOPIC, message, partition=self._turn % self._partitions
                    )
                sent.add_done_callback(partial(_refused, future))
                outcome = await future
                if isinstance(outcome, BusUnavailable):
                    raise outcome
                return read_reply(request, outcome)
        finally:
            self._waiting.pop(request_id, None)

    async def aclose(self) -> None:
        """Disconnect; who still waits is told that the bus is away."""
        for task in (self._opening, self._listener):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, KafkaError, OSError):
                    await task
        self._opening = self._listener = None
        for future in self._waiting.values():
            if not future.done():
                future.set_result(BusUnavailable("the client is closed"))
        producer, self._producer = self._producer, None
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.stop()
        if producer is not None:
            await end_producer(producer)

    async def _opened(self) -> Any:
        """Return the producer as soon as we are connected. Who gives up does not stop the others' connecting."""
        if self._opening is None or self._opening.done():
            # A bus that is away is asked now and then, not by each request.
            pause_s = max(0.0, self._failed + _RETRY_S - time.monotonic())
            self._opening = asyncio.create_task(self._open(pause_s), name="graphweft-context-open")
            self._opening.add_done_callback(_seen)
        opening = self._opening
        await asyncio.wait([opening])  # unlike awaiting it, this passes a cancellation on neither way
        if not opening.cancelled():
            with bus_errors("the bus cannot be reached"):
                opening.result()
        if self._producer is None:  # ``aclose`` came first
            raise BusUnavailable("the client is closed")
        return self._producer

    async def _open(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        admin = AIOKafkaAdminClient(bootstrap_servers=self._servers, request_timeout_ms=_REQUEST_MS)
        producer: Any = AIOKafkaProducer(
            bootstrap_servers=self._servers,
            acks=1,
            linger_ms=0,
            request_timeout_ms=_REQUEST_MS,
            max_batch_size=_BATCH_BYTES,
            max_request_size=MAX_CONTEXT_BYTES + 1024,
        )
        inbox: Any = AIOKafkaConsumer(
            bootstrap_servers=self._servers,
            enable_auto_commit=False,
            auto_offset_reset="latest",
            request_timeout_ms=_REQUEST_MS,
        )
        try:
            try:
                await admin.start()
                self._partitions = await make_context_topics(admin, self._wanted_partitions)
            finally:
                await admin.close()
            await producer.start()
            await inbox.start()
            partitions = sorted(await producer.partitions_for(channels.CONTEXT_REPLIES_TOPIC))
            place = TopicPartition(channels.CONTEXT_REPLIES_TOPIC, random.choice(partitions))
            inbox.assign([place])
            # Known before the first request is sent: an answer must not come to stand in front of it.
            await inbox.seek_to_end(place)
            await inbox.position(place)
        except BaseException:
            self._failed = time.monotonic()
            await inbox.stop()
            await producer.stop()
            raise
        self._turn = random.randrange(self._partitions)
        self._reply_to = channels.context_replies_partition(place.partition)
        self._inbox, self._producer = inbox, producer
        self._listener = asyncio.create_task(self._listen(inbox, place), name="graphweft-context-replies")

    async def _listen(self, inbox: Any, place: Any) -> None:
        while True:
            try:
                records = (await inbox.getmany(place, timeout_ms=_IDLE_MS)).get(place, ())
            except UnicodeDecodeError:  # somebody wrote a header that is no text: aiokafka stays in front of it
                await inbox.seek_to_end(place)
                continue
            except (KafkaError, OSError) as error:
                logger.debug("context replies interrupted: %s", error)
                await asyncio.sleep(_RETRY_S)
                continue
            for record in records:
                if record.value is not None:
                    self._deliver(record.value)

    def _deliver(self, data: bytes) -> None:
        request_id, _, body = data.partition(b"\n")
        future = self._waiting.get(request_id)
        if future is not None and not future.done():
            future.set_result(body)


def _refused(future: asyncio.Future[bytes | BusUnavailable], sent: asyncio.Future[Any]) -> None:
    """Tell who waits for the answer when its request did not get onto the bus."""
    if sent.cancelled() or (error := sent.exception()) is None or future.done():
        return
    future.set_result(BusUnavailable(f"the bus took no request: {error or type(error).__name__}"))


def _seen(task: asyncio.Task[None]) -> None:
    """Look at the outcome, so that nobody else has to."""
    if not task.cancelled():
        task.exception()


async def end_producer(producer: Any) -> None:
    """End a producer. What it still has to send is given up after a second."""
    try:
        with contextlib.suppress(KafkaError, OSError):  # TimeoutError is an OSError
            async with asyncio.timeout(_END_S):
                await producer.stop()
    finally:
        # One whose stop was cut short would go on for ever; for one that was stopped this does nothing.
        await producer._sender.close()
        producer._message_accumulator.fail_all(KafkaError("the producer was ended"))
        await producer.client.close()

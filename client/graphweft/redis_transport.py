"""Redis Streams for events, a request stream and one reply channel per process for context.

Replies come over Pub/Sub: whoever no longer listens has run into its deadline anyway, so nothing has to be kept or
cleaned up for it. One subscription serves all requests of a process; opening one per request costs two to three times
the latency.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any, Final
from uuid import uuid4

import redis.asyncio as redis
from pydantic import ValidationError
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from graphweft.transport import Outgoing
from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest, channels

__all__ = ("DEFAULT_PARTITIONS", "RedisTransport")

logger = logging.getLogger("graphweft.client")

DEFAULT_PARTITIONS: Final = 4
"""Streams of a new bus. The first process that writes decides; later ones follow what the bus says."""
_REQUESTS_KEPT: Final = 10_000
"""Upper bound of the request stream, roughly: answered requests are of no use to anyone."""
_RECONNECT_S: Final = 0.2


class RedisTransport:
    """The ``Transport`` over Redis. Connections open at the first use and again after they broke."""

    def __init__(
        self,
        url: str,
        *,
        partitions: int = DEFAULT_PARTITIONS,
        connect_timeout_s: float = 2.0,
        io_timeout_s: float = 5.0,
    ) -> None:
        # redis-py repeats commands ten times by itself, which writes entries twice when only the reply was lost.
        self._redis: Any = redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
            url,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=connect_timeout_s,
            socket_timeout=io_timeout_s,
            protocol=2,
        )
        # A subscription is silent between replies, so it must not time out.
        self._replies: Any = redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
            url, retry=Retry(NoBackoff(), 0), socket_connect_timeout=connect_timeout_s, protocol=2
        )
        self._wanted_partitions = partitions
        self._partitions: int | None = None
        self._reply_to = channels.context_replies(uuid4().hex)
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """See ``Transport.append``."""
        try:
            partitions = await self._partition_count()
            numbers = [channels.partition_of(event.key, partitions) for event in events]
            pipeline = self._redis.pipeline(transaction=False)
            for number, event in zip(numbers, events, strict=True):
                pipeline.xadd(channels.events_stream(number), event.fields)
            offsets: list[bytes] = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise BusUnavailable(f"the bus took no events: {error}") from error
        return [f"{number}:{offset.decode()}" for number, offset in zip(numbers, offsets, strict=True)]

    async def request(self, request: ContextRequest) -> ContextReply:
        """See ``Transport.request``."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen(), name="graphweft-context-replies")
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = future
        message = request.model_copy(update={"reply_to": self._reply_to}).model_dump_json().encode()
        try:
            async with asyncio.timeout(max(0.0, request.deadline_ms / 1000 - time.time())):
                await self._subscribed.wait()
                await self._redis.xadd(
                    channels.CONTEXT_REQUESTS, {b"data": message}, maxlen=_REQUESTS_KEPT, approximate=True
                )
                return ContextReply.model_validate_json(await future)
        except (RedisError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise BusUnavailable(f"the bus took no request: {error}") from error
        except ValidationError as error:
            raise BusUnavailable("the responder's answer breaks the contract; do both run the same version?") from error
        finally:
            self._waiting.pop(request.id, None)

    async def aclose(self) -> None:
        """See ``Transport.aclose``."""
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None
        await self._replies.aclose()
        await self._redis.aclose()

    async def _partition_count(self) -> int:
        if self._partitions is None:
            await self._redis.set(channels.PARTITION_COUNT, self._wanted_partitions, nx=True)
            self._partitions = int(await self._redis.get(channels.PARTITION_COUNT))
        return self._partitions

    async def _listen(self) -> None:
        while True:
            subscriber = self._replies.pubsub()
            try:
                await subscriber.subscribe(self._reply_to)
                async for message in subscriber.listen():
                    if message["type"] == "subscribe":
                        self._subscribed.set()
                    elif message["type"] == "message":
                        self._deliver(message["data"])
            except (RedisError, OSError) as error:
                logger.debug("context replies interrupted: %s", error)
            finally:
                self._subscribed.clear()
                with contextlib.suppress(RedisError, OSError):
                    await subscriber.aclose()
            await asyncio.sleep(_RECONNECT_S)

    def _deliver(self, data: bytes) -> None:
        # The id stands before the JSON, so a reply that nobody waits for is not parsed.
        request_id, _, body = data.partition(b"\n")
        future = self._waiting.get(request_id.decode(errors="replace"))
        if future is not None and not future.done():
            future.set_result(body)

"""Redis Streams for events, a request stream and one reply channel per process for context.

Replies come over Pub/Sub: whoever no longer listens has run into its deadline anyway, so nothing has to be kept or
cleaned up for it. One subscription serves all requests of a process; opening one per request costs two to three times
the latency.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from redis.exceptions import RedisError

from graphweft.redis_connection import Together, connect
from graphweft.transport import (
    DEFAULT_PARTITIONS,
    MAX_BUDGET_MS,
    Outgoing,
    check_sizes,
    encoded,
    read_reply,
    seconds_left,
)
from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest, channels

__all__ = ("RedisTransport",)

logger = logging.getLogger("graphweft.client")

_REQUESTS_KEPT: Final = 10_000
"""Upper bound of the request stream, roughly: answered requests are of no use to anyone."""
_REQUESTS_KEPT_MS: Final = MAX_BUDGET_MS
"""And of the age of what is in it. Responders take off what they see, so this is for when there is none."""
_TRIM_S: Final = 5.0
_IO_S: Final = 5.0
_RECONNECT_S: Final = 0.2
_SILENCE_S: Final = 5.0
"""After so long without a message the reply channel is pinged, and after as long again it counts as broken."""
_REQUEST_CONNECTIONS: Final = 8
"""Round trips at once that put requests on the bus; what comes meanwhile goes together with the next."""


class RedisTransport:
    """The ``Transport`` over Redis. Connections open at the first use and again after they broke."""

    def __init__(
        self,
        url: str,
        *,
        partitions: int = DEFAULT_PARTITIONS,
    ) -> None:
        self._redis = connect(url, io_timeout_s=_IO_S)
        # A request that is there twice is answered twice, and the second answer is passed over.
        self._repeating = connect(url, io_timeout_s=_IO_S, repeats=1)
        self._requests = Together(self._repeating, connections=_REQUEST_CONNECTIONS)
        self._replies = connect(url, io_timeout_s=None)  # a subscription is silent between replies
        self._wanted_partitions = partitions
        self._partitions: int | None = None
        self._newest_ms = 0
        """The server's time of the last request of ours."""
        self._trim_at = 0.0
        self._reply_to = channels.context_replies(uuid4().hex)
        self._waiting: dict[str, asyncio.Future[bytes | BusUnavailable]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """Set while it is known whether the reply channel works: it does, or ``_away`` says why not."""
        self._away: str | None = None

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """See ``Transport.append``."""
        check_sizes(events)
        try:
            partitions = await self._partition_count()
            numbers = [channels.partition_of(event.key, partitions) for event in events]
            # All or nothing. Without a transaction the server may refuse one event (out of memory, still loading) and
            # take the next of the same chat; the repetition would then put them in the wrong order.
            pipeline = self._redis.pipeline(transaction=len(events) > 1)
            for number, event in zip(numbers, events, strict=True):
                pipeline.xadd(channels.events_stream(number), event.fields)
            offsets: list[bytes] = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise BusUnavailable(f"the bus took no events: {error}") from error
        return [f"{number}:{offset.decode()}" for number, offset in zip(numbers, offsets, strict=True)]

    async def request(self, request: ContextRequest) -> ContextReply:
        """See ``Transport.request``."""
        message = encoded(request, self._reply_to)
        if isinstance(message, ContextReply):
            return message
        if self._listener is None or self._listener.done():
            self._away = None
            self._settled.clear()
            self._listener = asyncio.create_task(self._listen(), name="graphweft-context-replies")
        future: asyncio.Future[bytes | BusUnavailable] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = future
        try:
            async with asyncio.timeout(seconds_left(request)):
                await self._settled.wait()
                if self._away is not None:
                    raise BusUnavailable(self._away)
                added: bytes = await self._requests.execute(
                    "XADD", channels.CONTEXT_REQUESTS, *self._trim(), "*", b"data", message
                )
                self._newest_ms = int(added.partition(b"-")[0])
                outcome = await future
                if isinstance(outcome, BusUnavailable):
                    raise outcome
                return read_reply(request, outcome)
        except (RedisError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise BusUnavailable(f"the bus took no request: {error}") from error
        finally:
            self._waiting.pop(request.id, None)

    async def aclose(self) -> None:
        """See ``Transport.aclose``."""
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None
        self._give_up("the client is closed")
        await self._replies.aclose()
        await self._requests.aclose()
        await self._repeating.aclose()
        await self._redis.aclose()

    def _trim(self) -> tuple[str, str, int]:
        """Return what XADD is to leave: so many requests, or now and then those that are not too old."""
        now = asyncio.get_running_loop().time()
        if not self._newest_ms or now < self._trim_at:
            return ("MAXLEN", "~", _REQUESTS_KEPT)
        self._trim_at = now + _TRIM_S
        return ("MINID", "=", max(0, self._newest_ms - _REQUESTS_KEPT_MS))

    async def _partition_count(self) -> int:
        if self._partitions is None:
            await self._redis.set(channels.PARTITION_COUNT, self._wanted_partitions, nx=True)
            self._partitions = int(await self._redis.get(channels.PARTITION_COUNT))
        return self._partitions

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            subscriber = self._replies.pubsub()
            subscribed, started = False, loop.time()
            try:
                await subscriber.subscribe(self._reply_to)
                pinged = False
                while True:
                    message = await subscriber.get_message(timeout=_SILENCE_S)
                    if message is None:
                        if pinged:
                            raise RedisError("the reply channel is silent")
                        await subscriber.ping()
                        pinged = True
                        continue
                    pinged = False
                    if message["type"] == "subscribe":
                        subscribed = True
                        self._away = None
                        self._settled.set()
                    elif message["type"] == "message":
                        self._deliver(message["data"])
            except (RedisError, OSError) as error:
                logger.debug("context replies interrupted: %s", error)
                if subscribed:
                    self._settled.clear()  # one broken connection does not mean that the bus is away: try again first
                else:
                    self._give_up(f"the bus cannot be reached: {error}")
            finally:
                with contextlib.suppress(RedisError, OSError):
                    await subscriber.aclose()
            await asyncio.sleep(max(0.0, started + _RECONNECT_S - loop.time()) if subscribed else _RECONNECT_S)

    def _give_up(self, why: str) -> None:
        """Answer everyone who waits, and until the next subscription everyone who comes, that the bus is away."""
        self._away = why
        self._settled.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_result(BusUnavailable(why))

    def _deliver(self, data: bytes) -> None:
        # The id stands before the JSON, so a reply that nobody waits for is not parsed.
        request_id, _, body = data.partition(b"\n")
        future = self._waiting.get(request_id.decode(errors="replace"))
        if future is not None and not future.done():
            future.set_result(body)

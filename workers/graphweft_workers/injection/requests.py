"""Context requests as a responder sees them, on Redis.

A stream with a consumer group: each request reaches one of the replicas. The reply goes to the asking process's own
channel; see ``graphweft.redis_transport``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from redis.exceptions import RedisError, ResponseError

from graphweft.redis_connection import connect
from graphweft_contracts import BusUnavailable, ContextReply, channels

__all__ = ("RedisRequestQueue", "RequestQueue", "Waiting")

_WAIT_S: Final = 1.0
_IO_GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request, not yet decoded, and what the queue needs to take it off."""

    token: str
    body: bytes


class RequestQueue(Protocol):
    """Hands out requests and takes replies.

    Each request goes to one replica. ``reply`` sends the answer; ``done`` takes the request off the queue. Methods
    raise ``BusUnavailable`` when the bus is away. The creator closes it.
    """

    async def next(self, limit: int) -> Sequence[Waiting]:
        """Return up to ``limit`` requests, waiting a second for the first one."""
        ...

    async def reply(self, channel: str, reply: ContextReply) -> None:
        """Send ``reply`` to the process that listens on ``channel``; nobody listening is no error."""
        ...

    async def done(self, token: str) -> None:
        """Take a request off the queue."""
        ...

    async def aclose(self) -> None:
        """Give connections back; a second call does nothing."""
        ...


class RedisRequestQueue:
    """``RequestQueue`` on a Redis stream; ``consumer`` names the replica and must be its own."""

    def __init__(self, url: str, *, consumer: str) -> None:
        self._redis = connect(url, io_timeout_s=_WAIT_S + _IO_GRACE_S)
        self._consumer = consumer
        self._group_made = False

    async def next(self, limit: int) -> Sequence[Waiting]:
        """See ``RequestQueue.next``."""
        try:
            if not self._group_made:
                await self._make_group()
            reply = await self._redis.xreadgroup(
                channels.CONTEXT_GROUP,
                self._consumer,
                {channels.CONTEXT_REQUESTS: ">"},
                count=limit,
                block=int(_WAIT_S * 1000),
            )
        except (RedisError, OSError) as error:
            # A server that lost its data lost the group too; it is made again at the next try.
            self._group_made = False
            raise BusUnavailable(f"the bus is away: {error}") from error
        if not reply:
            return []
        return [Waiting(token=token.decode(), body=fields.get(b"data", b"")) for token, fields in reply[0][1]]

    async def reply(self, channel: str, reply: ContextReply) -> None:
        """See ``RequestQueue.reply``."""
        message = reply.id.encode() + b"\n" + reply.model_dump_json().encode()
        try:
            await self._redis.publish(channel, message)
        except (RedisError, OSError) as error:
            raise BusUnavailable(f"the bus is away: {error}") from error

    async def done(self, token: str) -> None:
        """See ``RequestQueue.done``."""
        try:
            await self._redis.xack(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP, token)
        except (RedisError, OSError) as error:
            raise BusUnavailable(f"the bus is away: {error}") from error

    async def aclose(self) -> None:
        """See ``RequestQueue.aclose``."""
        await self._redis.aclose()

    async def _make_group(self) -> None:
        try:
            # From the beginning: requests that wait for a first responder are answered, expired ones are dropped.
            await self._redis.xgroup_create(channels.CONTEXT_REQUESTS, channels.CONTEXT_GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        self._group_made = True

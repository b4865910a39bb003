"""One way to connect to a Redis server, for everything that talks to one."""

from __future__ import annotations

from typing import Any, Final

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

__all__ = ("connect",)

_CONNECT_S: Final = 2.0
_CONNECTIONS: Final = 1_024
"""redis-py gives out 100 and refuses the next call; partitions that wait for events hold one each."""


def connect(url: str, *, io_timeout_s: float | None, decode: bool = False) -> Any:
    """Return a client that connects at its first use. ``io_timeout_s`` None waits for replies without end.

    redis-py repeats a command up to ten times by itself, which writes an entry twice when a reply got lost; this one
    never repeats. The protocol is RESP2, which falkordb needs. The result is untyped: redis-py's types promise
    a value or an awaitable for every command.
    """
    return redis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
        url,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=_CONNECT_S,
        socket_timeout=io_timeout_s,
        max_connections=_CONNECTIONS,
        protocol=2,
        decode_responses=decode,
    )

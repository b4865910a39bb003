"""Purges on Redis: a sorted set of keys by number, and a hash of what each says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from graphweft_contracts import channels
from graphweft_workers.ports.purges import Purge, Purges

# It begins with a write that needs no memory, so that a full server takes it: nothing is erased before.
_PURGE: Final = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(0')
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
redis.call('ZADD', KEYS[1], (last[2] or 0) + 1, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
"""
_READ: Final = """
local found = redis.call('ZRANGE', KEYS[1], '(' .. ARGV[1], '+inf', 'BYSCORE')
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local said = {last[2] or '0'}
for _, key in ipairs(found) do
  said[#said + 1] = redis.call('HGET', KEYS[2], key) or ''
end
return said
"""


class RedisPurgeLog:
    """``PurgeLog`` on one Redis server; ``call`` runs a command and raises ``BusUnavailable``."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    async def put(self, purge: Purge) -> None:
        """See ``PurgeLog.put``."""
        await self._call("EVAL", _PURGE, 2, channels.PURGES, channels.PURGED, purge.key, purge.encode())

    async def after(self, mark: int | None) -> Purges:
        """See ``PurgeLog.after``."""
        number, *found = await self._call("EVAL_RO", _READ, 2, channels.PURGES, channels.PURGED, mark or 0)
        last = int(float(number))
        if mark is not None and last < mark:  # the server was emptied
            return Purges(found=(), mark=last, complete=False)
        return Purges(found=[Purge.decode(text) for text in found if text], mark=last)

"""Purges on Redis: a sorted set of keys by number, and a hash of records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import batched
from typing import Any, Final

from graphweft_contracts import channels
from graphweft_workers.ports.records import Records

# It begins with a write that needs no memory, so that a full server takes it: nothing is erased before.
_PUT: Final = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(0')
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
redis.call('ZADD', KEYS[1], (last[2] or 0) + 1, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
"""
_REMOVE: Final = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
"""
_READ: Final = """
local found = redis.call('ZRANGE', KEYS[1], '(' .. ARGV[1], '+inf', 'BYSCORE')
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local said = {last[2] or '0'}
for _, key in ipairs(found) do
  local record = redis.call('HGET', KEYS[2], key)
  if record then
    said[#said + 1] = key
    said[#said + 1] = record
  end
end
return said
"""


class RedisPurges:
    """``RecordLog`` of purges; ``call`` runs a command and raises ``BusUnavailable``."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    async def put(self, key: str, record: bytes | None) -> None:
        """See ``RecordLog.put``."""
        if record is None:
            await self._call("EVAL", _REMOVE, 2, channels.PURGES, channels.PURGED, key)
        else:
            await self._call("EVAL", _PUT, 2, channels.PURGES, channels.PURGED, key, record)

    async def after(self, mark: int | None) -> Records:
        """See ``RecordLog.after``."""
        number, *found = await self._call("EVAL_RO", _READ, 2, channels.PURGES, channels.PURGED, mark or 0)
        last = int(float(number))
        if mark is not None and last < mark:  # the server was emptied
            return Records(found={}, mark=last, complete=False)
        records = {key.decode(): record for key, record in batched(found, 2)}
        return Records(found=records, mark=last)

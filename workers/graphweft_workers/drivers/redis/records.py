"""Records by key on Redis, purges among them, and the stream of effects. ``call`` raises ``BusUnavailable``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import batched
from typing import Any, Final, cast

from graphweft_contracts import channels
from graphweft_contracts.effects import EFFECTS_DATA, Effects
from graphweft_workers.ports.records import Records

# It begins with a write that needs no memory, so that a full server takes it: nothing is erased before.
_PUT_PURGE: Final = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(0')
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
redis.call('ZADD', KEYS[1], (last[2] or 0) + 1, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
"""
_REMOVE_PURGE: Final = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
"""
_READ_PURGES: Final = """
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
_APPEND: Final = """
for at = 3, #ARGV do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', ARGV[2], ARGV[at])
end
"""
_AT_ONCE: Final = 200
"""Messages of one call, which holds the server meanwhile."""


class RedisRecords:
    """``RecordLog`` of records that are always read whole: a hash."""

    def __init__(self, call: Callable[..., Awaitable[Any]], name: str) -> None:
        """``name`` is the key of the hash."""
        self._call = call
        self._name = name

    async def put(self, key: str, record: bytes | None) -> None:
        """See ``RecordLog.put``."""
        if record is None:
            await self._call("HDEL", self._name, key)
        else:
            await self._call("HSET", self._name, key, record)

    async def after(self, mark: int | None) -> Records:
        """See ``RecordLog.after``."""
        found = pairs(await self._call("HGETALL", self._name))
        return Records(found={name.decode(): record for name, record in found}, mark=0)


class RedisPurges:
    """``RecordLog`` of purges: a sorted set of keys by number, and a hash of records."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    async def put(self, key: str, record: bytes | None) -> None:
        """See ``RecordLog.put``."""
        if record is None:
            await self._call("EVAL", _REMOVE_PURGE, 2, channels.PURGES, channels.PURGED, key)
        else:
            await self._call("EVAL", _PUT_PURGE, 2, channels.PURGES, channels.PURGED, key, record)

    async def after(self, mark: int | None) -> Records:
        """See ``RecordLog.after``."""
        number, *found = await self._call("EVAL_RO", _READ_PURGES, 2, channels.PURGES, channels.PURGED, mark or 0)
        last = int(float(number))
        if mark is not None and last < mark:  # the server was emptied
            return Records(found={}, mark=last, complete=False)
        records = {key.decode(): record for key, record in batched(found, 2)}
        return Records(found=records, mark=last)


class RedisEffects:
    """``EffectStream`` on Redis: a stream that is trimmed by its length."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call

    async def append(self, messages: Sequence[Effects], *, keep: int) -> None:
        """See ``EffectStream.append``."""
        for start in range(0, len(messages), _AT_ONCE):
            bodies = [each.model_dump_json() for each in messages[start : start + _AT_ONCE]]
            await self._call("EVAL", _APPEND, 1, channels.EFFECTS, keep, EFFECTS_DATA, *bodies)


def pairs(reply: Any) -> Iterable[tuple[bytes, bytes]]:
    """Return the fields of a hash, which are a list or a map by the version of the protocol."""
    if isinstance(reply, dict):
        return cast("dict[bytes, bytes]", reply).items()
    return zip(reply[::2], reply[1::2], strict=True)

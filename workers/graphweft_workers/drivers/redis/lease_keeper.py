"""Extends leases on Redis through a connection of its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from graphweft.transports.redis.connection import connect
from graphweft.transports.redis.refusals import bus_errors
from graphweft_contracts import channels
from graphweft_workers.drivers.redis.timing import REDIS_BUS_TIMING

# The first write needs no memory: see the scripts of the event log.
_EXTEND: Final = """
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local extended = 0
for i = 2, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[1] then
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
    extended = extended + 1
  end
end
if extended > 0 then redis.call('ZADD', KEYS[1], 'XX', now + ARGV[2], ARGV[1]) end
return extended
"""


class RedisLeaseKeeper:
    """``LeaseKeeper`` on Redis; it connects at its first use."""

    def __init__(self, url: str, group: str) -> None:
        self._url = url
        self._group_name = group
        self._redis: Any = None

    async def extend(self, partitions: Collection[int], owner: str, ttl_s: float) -> int:
        """See ``LeaseKeeper.extend``."""
        if self._redis is None:
            self._redis = connect(self._url, io_timeout_s=REDIS_BUS_TIMING.lease_io_s)
        keys = [
            channels.workers(self._group_name), *(channels.lease(number, self._group_name) for number in partitions)
        ]  # fmt: skip
        with bus_errors("the leases cannot be extended"):
            return int(await self._redis.execute_command("EVAL", _EXTEND, len(keys), *keys, owner, int(ttl_s * 1000)))

    async def aclose(self) -> None:
        """See ``LeaseKeeper.aclose``."""
        client, self._redis = self._redis, None
        if client is not None:
            await client.aclose()

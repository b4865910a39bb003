"""Redis Streams as a bus (measured on Redis 8.10).

A partition is a stream, read with plain XREAD: contiguous, no pending list, and reading again gives the same. Consumer
groups would hand entries out one by one and forget their order on redelivery; we use a group only as the place where
the position stands (``XGROUP SETID … ENTRIESREAD``), so that ``XINFO GROUPS`` and everything built on it sees the lag.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from graphweft.redis_connection import connect
from graphweft_contracts import BusUnavailable, DeadLetter, channels, wire
from graphweft_workers.bus.log import Committed, Entry, PartitionStatus

__all__ = ("RedisStreamsBus",)

_IO_GRACE_S: Final = 5.0
_LONGEST_WAIT_S: Final = 5.0
_LAST_MS: Final = 253_402_300_799_000
"""The last second of the year 9999. A producer may choose an entry's id, so its time may be anything."""

# Only the holder may extend or free a lease; compared and set in one step.
_EXTEND: Final = """
local owner = redis.call('GET', KEYS[1])
if owner == false or owner == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
return 0
"""
_RELEASE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
# Forward only: an owner that was displaced may still have a commit on its way.
_COMMIT: Final = """
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
for _, group in ipairs(groups) do
  local fields = {}
  for i = 1, #group, 2 do fields[group[i]] = group[i + 1] end
  if fields['name'] == ARGV[1] and tonumber(fields['entries-read'] or 0) > tonumber(ARGV[3]) then return 0 end
end
redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], ARGV[2], 'ENTRIESREAD', ARGV[3])
return 1
"""
# A letter that is gone was retried by somebody else: then nothing is appended.
_RETRY: Final = """
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('XADD', KEYS[3], '*', unpack(ARGV, 2))
return 1
"""


class RedisStreamsBus:
    """``Bus`` on one Redis server."""

    def __init__(self, url: str, *, partitions: int = 4) -> None:
        self._redis = connect(url, io_timeout_s=_LONGEST_WAIT_S + _IO_GRACE_S)
        self._wanted = partitions
        self._count: int | None = None

    async def partitions(self) -> int:
        """See ``Bus.partitions``."""
        if self._count is None:
            await self._call("SET", channels.PARTITION_COUNT, self._wanted, "NX")
            self._count = int(await self._call("GET", channels.PARTITION_COUNT))
        return self._count

    async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
        """See ``Bus.claim``."""
        return bool(await self._call("EVAL", _EXTEND, 1, channels.lease(partition), owner, int(ttl_s * 1000)))

    async def release(self, partition: int, owner: str) -> None:
        """See ``Bus.release``."""
        await self._call("EVAL", _RELEASE, 1, channels.lease(partition), owner)

    async def committed(self, partition: int) -> Committed:
        """See ``Bus.committed``."""
        group = await self._group(partition)
        if group is None:
            try:
                await self._call(
                    "XGROUP", "CREATE", channels.events_stream(partition), channels.MUTATION_GROUP, "0-0", "MKSTREAM",
                    "ENTRIESREAD", 0,
                )  # fmt: skip
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):  # made by another worker in between
                    raise BusUnavailable(f"the position cannot be kept: {error}") from error
            return Committed()
        offset = group["last-delivered-id"].decode()
        return Committed(offset="" if offset == "0-0" else offset, count=int(group["entries-read"] or 0))

    async def read(self, partition: int, after: str, *, limit: int, wait_s: float) -> Sequence[Entry]:
        """See ``Bus.read``."""
        block = ("BLOCK", max(1, int(min(wait_s, _LONGEST_WAIT_S) * 1000))) if wait_s > 0 else ()
        reply = await self._call(
            "XREAD", "COUNT", limit, *block, "STREAMS", channels.events_stream(partition), after or "0-0"
        )
        return [_entry(item) for item in reply[0][1]] if reply else []

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``Bus.before``."""
        if not offset:
            return []
        reply = await self._call("XREVRANGE", channels.events_stream(partition), offset, "-", "COUNT", limit)
        return [_entry(item) for item in reversed(reply)]

    def is_after(self, offset: str, other: str) -> bool:
        """See ``Bus.is_after``."""
        return _number(offset) > _number(other)

    async def commit(self, partition: int, committed: Committed) -> None:
        """See ``Bus.commit``."""
        stream = channels.events_stream(partition)
        offset = committed.offset or "0-0"
        await self._call("EVAL", _COMMIT, 1, stream, channels.MUTATION_GROUP, offset, committed.count)

    async def status(self) -> Sequence[PartitionStatus]:
        """See ``Bus.status``."""
        found: list[PartitionStatus] = []
        for partition in range(await self.partitions()):
            stream = channels.events_stream(partition)
            owner = await self._call("GET", channels.lease(partition))
            group = await self._group(partition)
            last = await self._call("XREVRANGE", stream, "+", "-", "COUNT", 1)
            length = int(await self._call("XLEN", stream))
            position = group["last-delivered-id"].decode() if group else ""
            lag = group["lag"] if group else length
            found.append(
                PartitionStatus(
                    id=partition,
                    position="" if position == "0-0" else position,
                    end=last[0][0].decode() if last else "",
                    lag=length if lag is None else int(lag),
                    owner=owner.decode() if owner else None,
                )
            )
        return found

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        """See ``Bus.bury``."""
        try:
            pipeline = self._redis.pipeline(transaction=True)
            for letter in letters:
                pipeline.hset(channels.DEAD_LETTERS, letter.id, letter.model_dump_json(exclude_none=True))
                pipeline.zadd(channels.DEAD_LETTER_ORDER, {letter.id: letter.time.timestamp()})
            await pipeline.execute()
        except (RedisError, OSError) as error:
            raise BusUnavailable(f"a dead letter cannot be written: {error}") from error

    async def dead_letter_count(self) -> int:
        """See ``Bus.dead_letter_count``."""
        return int(await self._call("HLEN", channels.DEAD_LETTERS))

    async def dead_letters(self, *, limit: int) -> Sequence[DeadLetter]:
        """See ``Bus.dead_letters``."""
        ids = await self._call("ZRANGE", channels.DEAD_LETTER_ORDER, 0, limit - 1)
        if not ids:
            return []
        bodies = await self._call("HMGET", channels.DEAD_LETTERS, *ids)
        return [DeadLetter.model_validate_json(body) for body in bodies if body is not None]

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        """See ``Bus.dead_letter``."""
        body = await self._call("HGET", channels.DEAD_LETTERS, letter_id)
        return None if body is None else DeadLetter.model_validate_json(body)

    async def retry(self, letter: DeadLetter) -> bool:
        """See ``Bus.retry``."""
        partition, _, _ = letter.position.partition(":")
        fields = dict(wire.unpack(letter.fields))
        if letter.rule and letter.mutation:
            fields[wire.RETRY] = wire.Retry(letter.id, letter.rule, letter.mutation).encode()
        flat = [part for item in fields.items() for part in item]
        keys = (channels.DEAD_LETTERS, channels.DEAD_LETTER_ORDER, channels.events_stream(int(partition)))
        return bool(await self._call("EVAL", _RETRY, 3, *keys, letter.id, *flat))

    async def aclose(self) -> None:
        """See ``Bus.aclose``."""
        await self._redis.aclose()

    async def _group(self, partition: int) -> dict[str, Any] | None:
        try:
            groups = await self._redis.xinfo_groups(channels.events_stream(partition))
        except ResponseError:  # no such key: nothing was written yet
            return None
        except (RedisError, OSError) as error:
            raise BusUnavailable(f"the bus is away: {error}") from error
        name = channels.MUTATION_GROUP.encode()
        return next((group for group in groups if group["name"] == name), None)

    async def _call(self, *command: Any) -> Any:
        try:
            return await self._redis.execute_command(*command)
        except (RedisError, OSError) as error:
            if type(error) is ResponseError and str(error).startswith("BUSYGROUP"):
                raise
            raise BusUnavailable(f"the bus is away: {error}") from error


def _entry(item: Any) -> Entry:
    offset, fields = item
    milliseconds = int(offset.partition(b"-")[0])
    return Entry(
        offset=offset.decode(), fields=fields, received=datetime.fromtimestamp(min(milliseconds, _LAST_MS) / 1000, UTC)
    )


def _number(offset: str) -> tuple[int, int]:
    if not offset:
        return (0, 0)
    milliseconds, _, sequence = offset.partition("-")
    return (int(milliseconds), int(sequence))

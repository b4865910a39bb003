"""Redis Streams as a bus (measured on Redis 8.10).

A partition is a stream, read with plain XREAD: contiguous, without a pending list, and repeatable. A consumer group
would redeliver entries one by one and out of order. It only stores the position here (``XGROUP SETID … ENTRIESREAD``),
so that ``XINFO GROUPS`` and the tools built on it show the lag.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import batched
from typing import Any, Final

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from graphweft.transports.redis.connection import connect, is_of_cluster
from graphweft.transports.redis.layout import agreed_layout, store_order, stream_of
from graphweft.transports.redis.lines import Lines
from graphweft.transports.redis.refusals import bus_errors, unavailable
from graphweft.transports.redis.url import NO_CLUSTER, split_redis_url
from graphweft_contracts import BusUnavailable, InvalidSettings, Layout, Order, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.layout import NEW_LAYOUT
from graphweft_workers.drivers.redis.lease_keeper import RedisLeaseKeeper
from graphweft_workers.drivers.redis.own_partitions import give_partition
from graphweft_workers.drivers.redis.stream_waiter import StreamWaiter, offset_number
from graphweft_workers.drivers.redis.streams import FAR_MS, LARGEST, end_of_read, fault_of, now_ms_of
from graphweft_workers.drivers.redis.timing import REDIS_BUS_TIMING, RedisBusTiming
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.ports.pages import LEAST, PAGE_BYTES, size_of
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.support.tasks import end_tasks

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_LAST_MS: Final = 253_402_300_799_000
"""The last second of the year 9999. A producer may choose an entry's id, and with it any time."""
_READ_BYTES: Final = 16 * 1024**2
"""About the largest result of one ``read``, whatever its limit."""
_FIRST_COUNT: Final = 16
"""Entries of the first request, before their size is known."""
_READS: Final = 16
"""Reads at once: when nothing happens, those of all partitions end together, and connections stay open."""
_GROWTH: Final = 8
"""The factor by which a request may exceed the last one: entries may suddenly become large."""

# A server that is out of memory refuses a script's first write if that may need memory, and no later one. What leads to
# free memory must go on then: reading, claims, positions, and the dead letters without which no position advances. So
# these scripts begin with a write that needs none. New events, retries and rules are refused.
#
# Both scripts see the live workers and the leases of all partitions, so their decisions are exact. Only the holder may
# extend or release a lease.
#
# Shares differ by one at most. The larger ones go to the workers that hold the most already, so that few partitions
# move. A free partition goes only to a worker below its share.
_CLAIM: Final = """
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%.0f', now))
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
local workers = redis.call('ZRANGE', KEYS[1], 0, -1)
local leases = redis.call('MGET', unpack(KEYS, 2))
local held = {}
for _, owner in ipairs(leases) do
  if owner then held[owner] = (held[owner] or 0) + 1 end
end
table.sort(workers, function(one, other)
  local first, second = held[one] or 0, held[other] or 0
  if first ~= second then return first > second end
  return one < other
end)
local share = math.floor(#leases / #workers)
for rank = 1, #leases % #workers do
  if workers[rank] == ARGV[1] then share = share + 1 end
end
local found = {share}
local mine = held[ARGV[1]] or 0
for i = 3, #ARGV do
  local number = ARGV[i] + 1
  local owner = leases[number]
  if owner == ARGV[1] or (not owner and mine < share) then
    if not owner then
      mine = mine + 1
      leases[number] = ARGV[1]
    end
    redis.call('SET', KEYS[number + 1], ARGV[1], 'PX', ARGV[2])
    found[#found + 1] = tonumber(ARGV[i])
  end
end
return found
"""
_RELEASE: Final = """
local leases = redis.call('MGET', unpack(KEYS, 2))
local left = 0
for number, owner in ipairs(leases) do
  if owner == ARGV[1] then
    if number == ARGV[2] + 1 then redis.call('DEL', KEYS[number + 1]) else left = left + 1 end
  end
end
if left == 0 then redis.call('ZREM', KEYS[1], ARGV[1]) end
"""
_JOIN: Final = """
redis.call('XTRIM', KEYS[1], 'MINID', '0-0')
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0-0', 'MKSTREAM', 'ENTRIESREAD', 0)
"""
# Forward only: a fenced owner may still send a commit. The note is stored with the position.
_COMMIT: Final = """
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
for _, group in ipairs(groups) do
  local fields = {}
  for i = 1, #group, 2 do fields[group[i]] = group[i + 1] end
  if fields['name'] == ARGV[1] and tonumber(fields['entries-read'] or 0) > tonumber(ARGV[3]) then return 0 end
end
redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], ARGV[2], 'ENTRIESREAD', ARGV[3])
redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
return 1
"""
# Entries are only trimmed at the head (XDEL is not allowed), so the counters give the number of the first entry.
_EXTENT: Final = """
local info = redis.call('XINFO', 'STREAM', KEYS[1])
local found = {}
for i = 1, #info, 2 do found[info[i]] = info[i + 1] end
local first = found['first-entry']
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
return {found['entries-added'], found['length'], first and first[1] or '', found['last-generated-id'], now}
"""
# The newest first. It stops at a number of bytes, which COUNT cannot: small entries may follow large ones.
_BEFORE: Final = """
local found, size, at = {}, 0, ARGV[1]
local limit, most, least = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local step = 1
while #found < limit do
  local count = math.min(step, limit - #found)
  local page = redis.call('XREVRANGE', KEYS[1], at, '-', 'COUNT', count)
  for _, entry in ipairs(page) do
    for _, text in ipairs(entry[2]) do size = size + #text end
    if size > most and #found >= least then return found end
    found[#found + 1] = entry
    at = '(' .. entry[1]
  end
  if #page < count then break end
  local room = math.floor((most - size) / math.max(1, size / #found))
  step = math.max(1, math.min(16, room, step * 4))
end
return found
"""


class RedisEventLog:
    """``EventLog``, ``Partitions`` and ``PartitionLeases`` on one Redis server.

    ``group`` names the group of readers, which has positions, leases and live workers of its own.
    """

    def __init__(
        self, url: str, *, new: Layout = NEW_LAYOUT, group: str = channels.MUTATION_GROUP, clock: Clock = SYSTEM_CLOCK,
        timing: RedisBusTiming = REDIS_BUS_TIMING,
    ) -> None:  # fmt: skip
        self._url = url
        self._longest_wait_s = timing.longest_wait_s
        self._redis = connect(url, io_timeout_s=timing.longest_wait_s + timing.io_s)
        self._replicas = split_redis_url(url).wait_replicas
        self._reading = Lines(url, io_timeout_s=timing.io_s) if self._replicas else None
        """Reads what a worker applies, once replicas have it: no graph is ahead of the log that survives a master."""
        self._replicas_s = timing.replicas_s
        self._reads = asyncio.Semaphore(_READS)
        self._waiter = StreamWaiter(self._redis, clock=clock, timing=timing)
        self._new = new
        self._group_name = group
        self._count: int | None = None
        self._shared: int | None = None
        """The number of partitions that apps share. It never changes."""
        self._sizes: dict[int, tuple[float, int]] = {}
        """By partition: average bytes and number of the entries last read."""
        self._ended: set[int] = set()
        """Partitions that hold an id that is not read at their end; see ``streams``."""
        self._now_ms = 0
        """The server's time when it was last told. What is read ends far ahead of it; see ``streams``."""
        self._clock = clock
        self._held: dict[int, str] = {}
        """By partition: the owner that claimed it through this object."""
        self._claims: dict[tuple[str, float], dict[int, list[asyncio.Future[bool]]]] = {}
        """By owner and time of the lease: claims to be sent."""
        self._claiming: set[asyncio.Task[None]] = set()
        self._shares: dict[str, int] = {}
        """By owner: its share of partitions at its last claim."""

    async def count(self, *, fresh: bool = False) -> int:
        """See ``Partitions.count``. It grows when an app gets a partition of its own."""
        if self._count is None or fresh:
            await self.layout()
        return self._count or 0

    async def layout(self) -> Layout:
        """See ``Partitions.layout``."""
        with bus_errors():
            try:
                layout = await agreed_layout(self._redis, self._new)
            except ResponseError as error:
                if is_of_cluster(error):  # no waiting mends it
                    raise InvalidSettings(f"invalid bus_url: {NO_CLUSTER}") from error
                raise
        self._shared, self._count = layout.partitions, layout.count
        return layout

    async def give_partition(self, app_id: str, *, least: int = 0) -> Layout:
        """See ``Partitions.give_partition``."""
        return await give_partition(self.call, self.layout, app_id, least=least)

    async def store_order(self, app_id: str, order: Order) -> None:
        """See ``Partitions.store_order``."""
        with bus_errors():
            await store_order(self._redis, app_id, order)

    async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
        """See ``PartitionLeases.claim``. Each call keeps the owner alive for the time of the lease.

        Claims of one iteration of the event loop are one script: workers claim all their partitions at once.
        """
        claims = self._claims.setdefault((owner, ttl_s), {})
        if not claims:
            task = asyncio.create_task(self._claim(owner, ttl_s))
            self._claiming.add(task)
            task.add_done_callback(self._claiming.discard)
        taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        claims.setdefault(partition, []).append(taken)
        return await taken

    async def _claim(self, owner: str, ttl_s: float) -> None:
        claims = self._claims.pop((owner, ttl_s))
        try:
            keys = await self._owner_keys()
            share, *taken = await self.call("EVAL", _CLAIM, len(keys), *keys, owner, int(ttl_s * 1000), *claims)
        except BaseException as error:
            lost = error if isinstance(error, BusUnavailable) else BusUnavailable("the connection is closed")
            for future in _open(claims.values()):
                future.set_exception(lost)
            if isinstance(error, BusUnavailable):
                return
            raise
        self._shares[owner] = share
        for partition, futures in claims.items():
            if partition in taken:
                self._held[partition] = owner
            elif self._held.get(partition) == owner:
                del self._held[partition]
            for future in _open([futures]):
                future.set_result(partition in taken)

    def is_revoked(self, partition: int) -> bool:
        """See ``PartitionLeases.is_revoked``: an owner above its share loses the highest numbers first."""
        owner = self._held.get(partition)
        if owner is None:
            return False
        held = sorted(number for number, holder in self._held.items() if holder == owner)
        return partition in held[self._shares[owner] :]

    def lease_keeper(self) -> RedisLeaseKeeper:
        """See ``Bus.lease_keeper``."""
        return RedisLeaseKeeper(self._url, self._group_name)

    async def release(self, partition: int, owner: str) -> None:
        """See ``PartitionLeases.release``. An owner without a lease is not alive until it claims again."""
        if self._held.get(partition) == owner:
            del self._held[partition]
        keys = await self._owner_keys()
        await self.call("EVAL", _RELEASE, len(keys), *keys, owner, partition)

    async def committed(self, partition: int) -> CommittedPosition:
        """See ``Partitions.committed``."""
        group = await self._group(partition)
        if group is None:
            try:
                await self.call("EVAL", _JOIN, 1, await self.stream(partition), self._group_name)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):  # created by another worker
                    raise BusUnavailable(f"the position cannot be stored: {error}") from error
            return CommittedPosition()
        return _committed(group, await self.call("HGET", channels.notes(self._group_name), partition))

    async def read(self, partition: int, after: CommittedPosition, *, limit: int, wait_s: float | None = None) -> Batch:
        """See ``EventLog.read``. One call returns about 16 MiB at most, or the single entry that is larger."""
        stretch = await self._read_now(partition, after, limit)
        if stretch.entries or stretch.lost or not wait_s:
            return stretch
        if partition in self._ended:  # its next entry is there, so nothing could be waited for
            await self._clock.sleep(min(wait_s, self._longest_wait_s))
            return await self._read_now(partition, after, limit)
        # A transaction cannot block, so this only waits.
        with bus_errors():
            grown = await self._waiter.wait(await self.stream(partition), after.offset, wait_s)
        return await self._read_now(partition, after, limit) if grown else stretch

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        """See ``EventLog.entries``."""
        stream = await self.stream(partition)
        with bus_errors():
            pipeline = self._redis.pipeline(transaction=False)
            for offset in offsets:
                pipeline.execute_command("XRANGE", stream, offset, offset)
            replies = await pipeline.execute()
        return _entries(item for reply in replies for item in reply)

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.after``."""
        start = f"({offset}" if offset else "-"
        stream = await self.stream(partition)
        with bus_errors():
            end = end_of_read(await now_ms_of(self._redis))
        reply = await self.call("XRANGE", stream, start, end, "COUNT", limit)
        return _entries(reply)

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.before``."""
        if not offset:
            return []
        stream = await self.stream(partition)
        reply = await self.call("EVAL", _BEFORE, 1, stream, offset, limit, PAGE_BYTES, LEAST)
        return _entries((offset, dict(batched(fields, 2))) for offset, fields in reversed(reply))

    async def trim(self, partition: int, offset: str) -> None:
        """See ``Partitions.trim``."""
        milliseconds, sequence = offset_number(offset)
        first_kept = f"{milliseconds + 1}-0" if sequence >= LARGEST else f"{milliseconds}-{sequence + 1}"
        await self.call("XTRIM", await self.stream(partition), "MINID", "=", first_kept)

    async def positions(self, partition: int) -> Mapping[str, CommittedPosition]:
        """See ``Partitions.positions``."""
        stream = await self.stream(partition)
        try:
            with bus_errors():
                groups = await self._redis.xinfo_groups(stream)
                pipeline = self._redis.pipeline(transaction=False)
                for group in groups:
                    pipeline.hget(channels.notes(group["name"].decode()), str(partition))
                notes = await pipeline.execute()
        except ResponseError as error:
            if "no such key" in str(error):
                return {}
            raise BusUnavailable(f"the positions of partition {partition} cannot be read: {error}") from error
        found = {group["name"].decode(): _committed(group, note) for group, note in zip(groups, notes, strict=True)}
        return {name: each for name, each in found.items() if each.offset or each.note}

    async def commit(self, partition: int, committed: CommittedPosition) -> None:
        """See ``Partitions.commit``."""
        stream = await self.stream(partition)
        offset = committed.offset or "0-0"
        notes = channels.notes(self._group_name)
        given = (self._group_name, offset, committed.count, partition, committed.note)
        await self.call("EVAL", _COMMIT, 2, stream, notes, *given)

    async def status(self, *, group: str = "") -> Sequence[PartitionStatus]:
        """See ``Partitions.status``."""
        name = group or self._group_name
        partitions = await self.count(fresh=True)
        streams = [await self.stream(partition) for partition in range(partitions)]
        with bus_errors():
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.hgetall(channels.notes(name))
            pipeline.mget([channels.lease(partition, name) for partition in range(partitions)])
            for stream in streams:
                pipeline.xinfo_groups(stream)
                pipeline.xinfo_stream(stream)
            pipeline.time()
            notes, owners, *rest, time = await pipeline.execute(raise_on_error=False)
            for reply in (notes, owners, *rest, time):
                if isinstance(reply, Exception) and not _is_missing(reply):
                    raise reply
        found: list[PartitionStatus] = []
        for partition, owner in enumerate(owners):
            groups, stream_info = rest[2 * partition : 2 * partition + 2]
            there = not isinstance(stream_info, Exception)
            length = stream_info["length"] if there else 0
            written = stream_info["entries-added"] if there else 0
            last = stream_info["last-generated-id"].decode() if there else "0-0"  # also of a stream that is trimmed
            deleted = stream_info["max-deleted-entry-id"].decode() if there else "0-0"  # by XDEL
            fault = fault_of(stream_info, time[0] * 1000, f"graphweft bus mend {partition}")
            now_ms = time[0] * 1000
            if offset_number(last)[0] >= now_ms + FAR_MS:
                read = await self.call("XREVRANGE", streams[partition], end_of_read(now_ms), "-", "COUNT", 1)
                last = read[0][0].decode() if read else "0-0"
            of_group = _named(groups, name)
            position = of_group["last-delivered-id"].decode() if of_group else ""
            if of_group and of_group["entries-read"] == written:  # also behind a tail that was trimmed unread
                position = max(position, last, key=offset_number)
            lag = of_group["lag"] if of_group else length
            found.append(
                PartitionStatus(
                    id=partition,
                    position="" if position == "0-0" else position,
                    end="" if last == "0-0" else last,
                    lag=length if lag is None else int(lag),
                    owner=owner.decode() if owner else None,
                    note=notes.get(str(partition).encode(), b"").decode(),
                    written=written,
                    trimmed=written - length,
                    deleted="" if deleted == "0-0" else deleted,
                    fault=fault,
                )
            )
        return found

    async def aclose(self) -> None:
        """Close the connections; a second call does nothing."""
        await end_tasks(*self._claiming)
        await self._waiter.aclose()
        if self._reading is not None:
            await self._reading.aclose()
        await self._redis.aclose()

    async def _read_now(self, partition: int, after: CommittedPosition, limit: int) -> Batch:
        """Read in requests whose size follows the size of the entries."""
        entries: list[Entry] = []
        lost, size = 0, 0
        while len(entries) < limit and size < _READ_BYTES:
            average, last = self._sizes.get(partition, (_READ_BYTES / _FIRST_COUNT, _FIRST_COUNT))
            count = max(1, min(limit - len(entries), int((_READ_BYTES - size) / average), last * _GROWTH))
            at = entries[-1].offset if entries else after.offset
            found, missing = await self._request(partition, at, after.count + lost + len(entries), count)
            if missing and entries:  # trimmed between two requests: the next call reports it
                break
            lost = lost or missing
            entries += _entries(found)
            if found:
                got = sum(size_of(fields) for _, fields in found)
                self._sizes[partition] = (max(1.0, got / len(found)), len(found))
                size += got
            if len(found) < count:
                break
        return Batch(entries=entries, lost=lost)

    async def _request(self, partition: int, at: str, read: int, count: int) -> tuple[Sequence[Any], int]:
        """Return up to ``count`` raw entries after ``at``, and the number of trimmed ones before them.

        ``read`` is the number of entries up to ``at``. Both commands run in one transaction, so the numbers are exact.
        """
        stream = await self.stream(partition)
        with bus_errors():
            self._now_ms = self._now_ms or await now_ms_of(self._redis)
            limit_ms = self._now_ms + FAR_MS
            start = f"({at}" if at and offset_number(at)[0] < limit_ms else f"{limit_ms}-0" if at else "-"
            reading = ("XRANGE", stream, start, end_of_read(self._now_ms), "COUNT", count)
            looking = ("EVAL_RO", _EXTENT, 1, stream)
            if self._reading is not None and partition in self._held:
                writing = ("SET", channels.REPLICATED, self._group_name)
                reply, extent, _ = await self._reading.replicated(
                    (reading, looking, writing), replicas=self._replicas, wait_s=self._replicas_s
                )
                if not isinstance(reply, Exception):
                    reply = [(offset, dict(batched(fields, 2))) for offset, fields in reply]
            else:
                pipeline = self._redis.pipeline(transaction=True)
                pipeline.execute_command(*reading)
                pipeline.execute_command(*looking)
                async with self._reads:
                    reply, extent = await pipeline.execute(raise_on_error=False)
        if isinstance(reply, Exception):
            raise unavailable(reply, f"partition {partition} cannot be read") from reply
        found: Sequence[Any] = reply or ()
        self._ended.discard(partition)
        if isinstance(extent, Exception):
            if "no such key" not in str(extent):
                raise unavailable(extent, f"partition {partition} cannot be read") from extent
            added, length, first = 0, 0, b""
        else:
            added, length, first = int(extent[0]), int(extent[1]), extent[2]
            self._now_ms = int(extent[4])
            if offset_number(extent[3].decode())[0] >= limit_ms:
                self._ended.add(partition)
        if added < read:
            raise BusUnavailable(
                f"the stream of partition {partition} was deleted or recreated: {added} entries were ever written to "
                f"it and {read} read; its position is read again"
            )
        behind = not length or offset_number(first.decode()) > offset_number(at)
        return found, max(0, added - length - read) if behind else 0

    async def stream(self, partition: int) -> str:
        """Return the stream of a partition."""
        if self._shared is None:
            await self.layout()
        return stream_of(partition, self._shared or 0)

    async def _owner_keys(self) -> list[str]:
        """Return the keys of the live workers and of the leases."""
        leases = [channels.lease(number, self._group_name) for number in range(await self.count())]
        return [channels.workers(self._group_name), *leases]

    async def _group(self, partition: int) -> dict[str, Any] | None:
        with bus_errors():
            try:
                return _named(await self._redis.xinfo_groups(await self.stream(partition)), self._group_name)
            except NoPermissionError:
                raise
            except ResponseError:  # no such key: nothing has been written
                return None

    async def time(self) -> datetime:
        """See ``Bus.time``."""
        with bus_errors():
            return datetime.fromtimestamp(await now_ms_of(self._redis) / 1000, UTC)

    async def call(self, *command: Any) -> Any:
        """Run a command. Raises ``BusUnavailable``."""
        try:
            return await self._redis.execute_command(*command)
        except (RedisError, OSError) as error:
            if type(error) is ResponseError and str(error).startswith("BUSYGROUP"):
                raise
            raise unavailable(error) from error


def _open(claims: Iterable[Iterable[asyncio.Future[bool]]]) -> list[asyncio.Future[bool]]:
    """Return the claims whose callers still wait."""
    return [future for futures in claims for future in futures if not future.done()]


def _committed(group: Mapping[str, Any], note: bytes | None) -> CommittedPosition:
    offset = group["last-delivered-id"].decode()
    return CommittedPosition(
        offset="" if offset == "0-0" else offset,
        count=int(group["entries-read"] or 0),
        note=note.decode() if note else "",
    )


def _named(groups: Any, name: str) -> dict[str, Any] | None:
    if isinstance(groups, Exception):  # no such key
        return None
    return next((group for group in groups if group["name"] == name.encode()), None)


def _is_missing(reply: Exception) -> bool:
    """Tell whether there is no stream under a key."""
    return "no such key" in str(reply) or str(reply).startswith("WRONGTYPE")


def _entries(items: Iterable[Any]) -> list[Entry]:
    """Return the entries of a reply: pairs of an id, whose milliseconds are the time of the server, and its fields."""
    entries: list[Entry] = []
    last = b""
    received = _EPOCH
    for offset, fields in items:
        milliseconds = offset.partition(b"-")[0]
        if milliseconds != last:  # those of a burst are equal
            last = milliseconds
            received = datetime.fromtimestamp(min(int(milliseconds), _LAST_MS) / 1000, UTC)
        entries.append(Entry(offset=offset.decode(), fields=fields, received=received))
    return entries

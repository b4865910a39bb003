"""Streams that take no entries any more: how they are found, and how they are mended.

An entry may have any id that is larger than the last one. After the largest of all ids a stream takes nothing. So a
producer can end a stream, and no right on the server forbids that. Readers do not read ids that lie far ahead of the
server's clock: nobody has a position behind them, and what came with such an id is appended anew when the stream is
mended. The new ids follow the last readable entry. If the limit stood still, an entry just below it would leave no
readable id, so the limit moves with the clock.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

from graphweft.transports.redis.layout import stored_layout, stream_of
from graphweft_contracts import BusUnavailable, InvalidSettings, channels
from graphweft_workers.drivers.redis.short_connection import short_connection
from graphweft_workers.drivers.redis.stream_waiter import offset_number

FAR_MS: Final = 200 * 365 * 86_400_000
"""An id that lies so far ahead of the server's clock is not read: about 200 years."""
LARGEST: Final = 2**64 - 1
"""The largest of both numbers of an id."""
_MEND_MS: Final = 10 * 60_000
"""How much further ahead an id must be to get a new one, so that nobody reads it while the copy is made."""
_AHEAD_MS: Final = 5 * 60_000
"""How far a last id may lie ahead of the server's clock: it does after the clock was set back."""
_PAGE: Final = 500
_IO_S: Final = 30.0
_HOUR_MS: Final = 3_600_000

# KEYS: the stream, its copy. ARGV: the last id of the stream that the copy has, the first time that is moved, the
# last id before it, and how many entries have other ids in the copy. It completes the copy, and replaces the stream by
# it. Entries that were trimmed meanwhile leave the copy too, so that numbers stay as they are.
_REPLACE: Final = """
local function fields_of(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
local old = fields_of(redis.call('XINFO', 'STREAM', KEYS[1]))
local moved = tonumber(ARGV[4])
if old['last-generated-id'] ~= ARGV[1] then
  for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+')) do
    redis.call('XADD', KEYS[2], '*', unpack(entry[2]))
    moved = moved + 1
  end
end
redis.call('XTRIM', KEYS[2], 'MAXLEN', old['length'])
local copy = fields_of(redis.call('XINFO', 'STREAM', KEYS[2]))
if copy['length'] ~= old['length'] then return false end
redis.call('XSETID', KEYS[2], copy['last-generated-id'], 'ENTRIESADDED', old['entries-added'])
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = fields_of(flat)
  local at = group['last-delivered-id']
  local ms = tonumber(string.match(at, '^(%d+)-'))
  local read = group['entries-read']
  if ms >= tonumber(ARGV[2]) then
    at = ARGV[3]
    read = old['entries-added'] - moved
  end
  if read then
    redis.call('XGROUP', 'CREATE', KEYS[2], group['name'], at, 'ENTRIESREAD', read)
  else
    redis.call('XGROUP', 'CREATE', KEYS[2], group['name'], at)
  end
end
redis.call('RENAME', KEYS[2], KEYS[1])
return moved
"""


def fault_of(info: Mapping[str, Any] | Exception, now_ms: int, mend: str) -> str:
    """Return what is wrong with a stream by its XINFO STREAM, and the next step; empty if nothing is.

    ``mend`` is the command for it.
    """
    if (fault := end_of(info, now_ms, mend)) or isinstance(info, Exception):
        return fault
    ahead_ms = _last_ms(info)[1] - now_ms
    if ahead_ms <= _AHEAD_MS:
        return ""
    return (
        f"its last id lies {max(1, round(ahead_ms / _HOUR_MS))} h ahead of the server's clock, and new entries get "
        "that time until then: check the clock, and who may write to the bus"
    )


def end_of(info: Mapping[str, Any] | Exception, now_ms: int, mend: str) -> str:
    """Return why a stream takes no entries, or nobody reads them; see ``fault_of``."""
    if isinstance(info, Exception):
        if str(info).startswith("WRONGTYPE"):
            return f"its key holds no stream, so it takes no entries: `{mend}` sets the key aside"
        return ""
    last, milliseconds = _last_ms(info)
    if milliseconds >= now_ms + FAR_MS + _MEND_MS:
        return f"its last id is {last}, which no clock gives, so what was added since waits: `{mend}` mends it"
    if milliseconds >= now_ms + FAR_MS:
        return f"its last id is {last}, so what was added since waits: it is read within 10 minutes"
    return ""


def _last_ms(info: Mapping[str, Any]) -> tuple[str, int]:
    last = info["last-generated-id"]
    last = last.decode() if isinstance(last, bytes) else last
    return last, offset_number(last)[0]


def end_of_read(now_ms: int) -> str:
    """Return the end of what is read at a time of the server's clock, for XRANGE."""
    return f"({now_ms + FAR_MS}-0"


async def now_ms_of(client: Any) -> int:
    """Return the server's time."""
    seconds, microseconds = await client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


async def request_fault(url: str) -> str:
    """See ``BusDriver.request_fault``."""
    async with short_connection(url, io_timeout_s=_IO_S) as client:
        found = await request_faults(client)
    return "; ".join(f"{stream}: {fault}" for stream, fault in found.items() if fault)


async def request_streams(client: Any) -> list[str]:
    """Return the streams of context requests: that of most apps, and those of apps with streams of their own."""
    layout = await stored_layout(client)
    own = () if layout is None else sorted(layout.own)
    return [channels.CONTEXT_REQUESTS, *map(channels.own_context_requests, own)]


async def request_faults(client: Any) -> dict[str, str]:
    """Return why each stream of context requests takes none; empty if it does, or this user may not look.

    Requests have deadlines of their own, so a last id ahead of the server's clock is no fault of theirs.
    """
    streams = await request_streams(client)
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    for stream in streams:
        pipeline.xinfo_stream(stream)
    time, *infos = await pipeline.execute(raise_on_error=False)
    if isinstance(time, Exception):
        raise time
    return {
        stream: end_of(info, time[0] * 1000, "graphweft bus mend requests")
        for stream, info in zip(streams, infos, strict=True)
    }


async def mend(url: str, partition: int | None) -> str:
    """See ``BusDriver.mend``."""
    async with short_connection(url, io_timeout_s=_IO_S) as client:
        if partition is None:
            return await _mend_requests(client)
        return await _mend_partition(client, partition)


async def _mend_requests(client: Any) -> str:
    ended = [stream for stream, fault in (await request_faults(client)).items() if fault]
    if not ended:
        return ""
    await client.delete(*ended)
    return f"deleted {', '.join(ended)}: the next request makes the stream anew"


async def _mend_partition(client: Any, partition: int) -> str:
    layout = await stored_layout(client)
    count = 0 if layout is None else layout.count
    if layout is None or not 0 <= partition < count:
        raise InvalidSettings(f"the bus has no partition {partition}: expected a number below {count}")
    stream = stream_of(partition, layout.partitions)
    if await client.type(stream) not in (b"stream", b"none"):
        seconds, _ = await client.time()
        aside = f"{stream}:aside:{seconds}"
        await client.rename(stream, aside)
        return f"the key {stream} held no stream: it is named {aside} now, and the next event makes the stream anew"
    info = await client.xinfo_stream(stream) if await client.exists(stream) else None
    first_ms = await now_ms_of(client) + FAR_MS + _MEND_MS
    if info is None or offset_number(info["last-generated-id"].decode())[0] < first_ms:
        return ""
    moved = await _replace(client, stream, channels.stream_copy(partition), first_ms)
    left = fault_of(await client.xinfo_stream(stream), await now_ms_of(client), f"graphweft bus mend {partition}")
    return (
        f"{stream} takes entries again. Entries whose id no clock gives have new ones, at its end: {moved}; all others "
        f"are as before{f'. But {left}' if left else ''}"
    )


async def _replace(client: Any, stream: str, copy: str, first_ms: int) -> int:
    """Replace a stream by a copy with ids before a time; return how many entries got a new id."""
    await client.delete(copy)
    await client.execute_command("XGROUP", "CREATE", copy, "copy", "0-0", "MKSTREAM")  # also if all was trimmed
    await client.execute_command("XGROUP", "DESTROY", copy, "copy")
    last, moved = "0-0", 0
    async for page in _pages(client, stream, "-", f"({first_ms}-0"):
        last = page[-1][0].decode()
        await _add(client, copy, page)
    end = (await client.xinfo_stream(stream))["last-generated-id"]
    positions = [group["last-delivered-id"].decode() for group in await client.xinfo_groups(stream)]
    known = [each for each in positions if offset_number(each)[0] < first_ms]
    if (behind := max([last, *known], key=offset_number)) != last:  # its entries were trimmed, and readers passed them
        await client.execute_command("XSETID", copy, behind)
    async for page in _pages(client, stream, f"{first_ms}-0", end):
        moved += len(page)
        await _add(client, copy, [(b"*", fields) for _, fields in page])
    done = await client.execute_command("EVAL", _REPLACE, 2, stream, copy, end, first_ms, behind, moved)
    if done is None:
        raise BusUnavailable(f"{stream} changed while it was copied, and is as it was: run the command again")
    return int(done)


async def _pages(client: Any, stream: str, first: str, end: str | bytes) -> AsyncGenerator[Sequence[Any]]:
    start = first
    while True:
        page: Sequence[Any] = await client.xrange(stream, start, end, count=_PAGE)
        if page:
            yield page
        if len(page) < _PAGE:  # behind the largest id there is nothing, and the server refuses to look
            return
        start = f"({page[-1][0].decode()}"


async def _add(client: Any, copy: str, entries: Sequence[Any]) -> None:
    pipeline = client.pipeline(transaction=False)
    for offset, fields in entries:
        flat = [part for pair in fields.items() for part in pair]
        pipeline.execute_command("XADD", copy, offset, *flat)
    await pipeline.execute()

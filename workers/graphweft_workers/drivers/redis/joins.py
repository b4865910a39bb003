"""Makes a partition go on behind the archive; see ``BusDriver.join``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from graphweft.transports.redis.layout import stream_of
from graphweft_contracts import BusUnavailable, InvalidSettings, channels
from graphweft_contracts.rules_log import Activation
from graphweft_workers.drivers.redis.short_connection import short_connection
from graphweft_workers.ports.event_log import CommittedPosition

_IO_S: Final = 120.0
_GROUPS: Final = (
    channels.MUTATION_GROUP,
    channels.MEMORY_GROUP,
    channels.CONSOLIDATION_GROUP,
    channels.VERDICTS_GROUP,
    channels.EPISODES_GROUP,
    channels.ARCHIVE_GROUP,
)

# KEYS: the stream, a place for its copy, the activations, and the leases of the partition. ARGV: the partition, the
# fork and its number, the end of the archive and its number, whether the entries get new ids, the begin of the names of
# notes, the mutation group and its note. A partition that somebody reads is left as it is: readers know other numbers.
#
# Without their notes, readers report dead letters and skips behind the fork again: those of lost entries were lost.
_JOIN: Final = """
local function fields_of(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
local function is_after(one, other)
  local ms, sequence = string.match(one, '^(%d+)-(%d+)$')
  local other_ms, other_sequence = string.match(other, '^(%d+)-(%d+)$')
  if ms ~= other_ms then return tonumber(ms) > tonumber(other_ms) end
  if #sequence ~= #other_sequence then return #sequence > #other_sequence end
  return sequence > other_sequence
end
for i = 4, #KEYS do
  local owner = redis.call('GET', KEYS[i])
  if owner then return owner end
end
local partition, fork, fork_count, last, count = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local groups = {}
if redis.call('EXISTS', KEYS[1]) == 1 then groups = redis.call('XINFO', 'GROUPS', KEYS[1]) end
redis.call('DEL', KEYS[2])
redis.call('XGROUP', 'CREATE', KEYS[2], 'copy', '0-0', 'MKSTREAM')
redis.call('XGROUP', 'DESTROY', KEYS[2], 'copy')
redis.call('XSETID', KEYS[2], last, 'ENTRIESADDED', count)
local moved, ids, at = ARGV[6] == '1', {}, fork
while true do
  local page = redis.call('XRANGE', KEYS[1], '(' .. at, '+', 'COUNT', 500)
  for _, entry in ipairs(page) do
    at = entry[1]
    local id = redis.call('XADD', KEYS[2], moved and '*' or at, unpack(entry[2]))
    if moved then ids[at] = id end
  end
  if #page < 500 then break end
end
for _, flat in ipairs(groups) do
  local group = fields_of(flat)
  local at, read = group['last-delivered-id'], group['entries-read'] or 0
  if is_after(at, fork) then at, read = fork, fork_count end
  redis.call('XGROUP', 'CREATE', KEYS[2], group['name'], at, 'ENTRIESREAD', read)
  redis.call('HDEL', ARGV[7] .. group['name'], partition)
end
redis.call('HSET', ARGV[7] .. ARGV[8], partition, ARGV[9])
redis.call('RENAME', KEYS[2], KEYS[1])
if moved then
  for number, text in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
    local record = cjson.decode(text)
    local at = record['positions'][partition]
    if at and ids[at] then
      record['positions'][partition] = ids[at]
      redis.call('LSET', KEYS[3], number - 1, cjson.encode(record))
    end
  end
end
return false
"""
_ACTIVATIONS: Final = """
local there = redis.call('LRANGE', KEYS[1], 0, -1)
local known = tonumber(ARGV[1])
if #there ~= known then return 0 end
redis.call('DEL', KEYS[1])
for i = 2, #ARGV do redis.call('RPUSH', KEYS[1], ARGV[i]) end
return 1
"""


async def join(url: str, partition: int, *, fork: CommittedPosition, end: CommittedPosition, moved: bool) -> None:
    """See ``BusDriver.join``."""
    stream = stream_of(partition, int(await _call(url, "GET", channels.PARTITION_COUNT) or 0))
    keys = (
        stream, channels.stream_copy(partition), channels.ACTIVATIONS,
        *(channels.lease(partition, group) for group in _GROUPS),
    )  # fmt: skip
    given = (
        partition, fork.offset or "0-0", fork.count, end.offset, end.count, int(moved), channels.notes(""),
        channels.MUTATION_GROUP, fork.note,
    )  # fmt: skip
    owner = await _call(url, "EVAL", _JOIN, len(keys), *keys, *given)
    if owner is not None:
        raise InvalidSettings(
            f"{owner.decode()!r} reads partition {partition}: stop all workers, memory workers and archivers, wait "
            "until `graphweft status` shows none, and repeat the command. Clients and responders may go on"
        )


async def replace_activations(url: str, there: Sequence[Activation], merged: Sequence[Activation]) -> None:
    """See ``BusDriver.replace_activations``."""
    texts = [each.encode() for each in merged]
    if not await _call(url, "EVAL", _ACTIVATIONS, 1, channels.ACTIVATIONS, len(there), *texts):
        raise BusUnavailable("somebody has just activated rules: repeat the command")


async def _call(url: str, *command: Any) -> Any:
    async with short_connection(url, io_timeout_s=_IO_S) as client:
        return await client.execute_command(*command)

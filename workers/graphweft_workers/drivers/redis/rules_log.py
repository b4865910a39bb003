"""Rules in the log on Redis: a hash of rule sets, and a list of activations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from graphweft.transports.redis.layout import stream_of
from graphweft_contracts import Layout, channels, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.rules_log import Activation, StoredRules
from graphweft_workers.drivers.redis.streams import FAR_MS

# The entries and the record are written at once, so that a reader of an entry finds the record. KEYS: the activations,
# the orders, and the streams. ARGV: scope, digest, time, the field, how many apps must have a partition of their own,
# how far ahead of the clock an id is not read, and the numbers of the partitions. It returns nothing if
# one was added meanwhile.
#
# A stream that takes no entry, because a producer has ended it, keeps nobody from activating rules: there they apply
# behind its last entry that is read.
_ACTIVATE: Final = """
local orders, own = redis.call('HGETALL', KEYS[2]), 0
for i = 2, #orders, 2 do
  if string.sub(orders[i], 1, 4) == 'own:' then own = own + 1 end
end
if own ~= tonumber(ARGV[5]) then return false end
local function behind_last(stream)
  local time = redis.call('TIME')
  local limit = string.format('(%.0f-0', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[6])
  local last = redis.pcall('XREVRANGE', stream, limit, '-', 'COUNT', 1)
  if last.err or #last == 0 then return '0-1' end
  local ms, sequence = string.match(last[1][1], '^(%d+)-(%d+)$')
  if sequence == '18446744073709551615' then return string.format('%.0f-0', ms + 1) end
  local head, nines = string.match(sequence, '^(%d-)(9*)$')  -- a number of Lua is not exact enough
  local digit = head == '' and 1 or string.sub(head, -1) + 1
  return ms .. '-' .. string.sub(head, 1, -2) .. string.format('%d', digit) .. string.rep('0', #nines)
end
local number = redis.call('LLEN', KEYS[1]) + 1
local entry = cjson.encode({number = number, scope = ARGV[1], rules = ARGV[2]})
local positions = {}
for i = 3, #KEYS do
  local at = redis.pcall('XADD', KEYS[i], '*', ARGV[4], entry)
  if type(at) == 'table' and at.err then
    local why = at.err
    if not (string.find(why, 'The ID specified in XADD', 1, true) or string.find(why, 'exhausted', 1, true) or
        string.find(why, 'WRONGTYPE', 1, true)) then
      return at
    end
    at = behind_last(KEYS[i])
  end
  positions[ARGV[i + 4]] = at
end
local record = cjson.encode({number = number, scope = ARGV[1], rules = ARGV[2], time = ARGV[3], positions = positions})
redis.call('RPUSH', KEYS[1], record)
return record
"""


class RedisRulesLog:
    """``RulesLog`` on one Redis server; ``call`` runs a command and raises ``BusUnavailable``."""

    def __init__(
        self,
        call: Callable[..., Awaitable[Any]],
        layout: Callable[[], Awaitable[Layout]],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._call = call
        self._layout = layout
        self._clock = clock

    async def store(self, digest: str, rules: StoredRules) -> None:
        """See ``RulesLog.store``."""
        if await self._call("HSETNX", channels.RULE_SETS, digest, rules.encode()):
            return
        stored = await self.stored(digest)
        updated = rules if stored is None else stored.updated_by(rules)
        if updated is not None:
            await self._call("HSET", channels.RULE_SETS, digest, updated.encode())

    async def stored(self, digest: str) -> StoredRules | None:
        """See ``RulesLog.stored``."""
        body = await self._call("HGET", channels.RULE_SETS, digest)
        try:
            return None if body is None else StoredRules.decode(body)
        except ValueError:  # damaged: the next push of these rules replaces it
            return None

    async def activate(self, scope: str, digest: str) -> Activation:
        """See ``RulesLog.activate``."""
        while True:
            layout = await self._layout()
            partitions = layout.partitions_of(scope)
            streams = [stream_of(number, layout.partitions) for number in partitions]
            keys = (channels.ACTIVATIONS, channels.ORDERS, *streams)
            given = (
                scope, digest, self._clock.now().isoformat(), wire.ACTIVATION, len(layout.own), FAR_MS, *partitions,
            )  # fmt: skip
            made = await self._call("EVAL", _ACTIVATE, len(keys), *keys, *given)
            if made is not None:
                return Activation.decode(made)

    async def activations(self, *, after: int = 0) -> Sequence[Activation]:
        """See ``RulesLog.activations``."""
        return [Activation.decode(body) for body in await self._call("LRANGE", channels.ACTIVATIONS, after, -1)]

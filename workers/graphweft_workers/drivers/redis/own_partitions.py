"""Gives an app a partition of its own, behind those that apps share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from graphweft.transports.redis.layout import stream_of
from graphweft_contracts import InvalidSettings, Layout, channels, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.layout import ALL_APPS, OwnPartition
from graphweft_contracts.rules_log import Activation, newest
from graphweft_workers.drivers.redis.short_connection import short_connection

GRACE_MS: Final = 60_000
"""How long events of the app still count in its shared partition. Producers follow within 30 s."""

_TAKEN: Final = 2
# KEYS: the orders, the stream, the activations. ARGV: the app, its order with @ for the time from which it counts,
# GRACE_MS, the order that must be stored now (empty: none), the begin of the orders of the number, how many activations
# there must be, the field that announces one, and for each activation to be announced its scope, digest and time. It
# returns 0 if that is not how things are, and 2 if there is such a stream, which keeps its number for good.
#
# Rules that are active must be active in a new partition too, from its begin: so their activations are recorded once
# more, for this partition only.
_GIVE: Final = """
local before = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if before ~= ARGV[4] or redis.call('LLEN', KEYS[3]) ~= tonumber(ARGV[6]) then return 0 end
local orders = redis.call('HGETALL', KEYS[1])
for i = 2, #orders, 2 do
  if string.sub(orders[i], 1, #ARGV[5]) == ARGV[5] then return 0 end
end
if redis.call('EXISTS', KEYS[2]) == 1 then return 2 end
local time = redis.call('TIME')
local since = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3])
redis.call('HSET', KEYS[1], ARGV[1], (string.gsub(ARGV[2], '@', since)))
local number = tonumber(ARGV[6])
for i = 8, #ARGV, 3 do
  number = number + 1
  local said = {number = number, scope = ARGV[i], rules = ARGV[i + 1]}
  local at = redis.call('XADD', KEYS[2], '*', ARGV[7], cjson.encode(said))
  local partition = string.match(ARGV[5], '%d+')
  said['time'], said['positions'] = ARGV[i + 2], {[partition] = at}
  redis.call('RPUSH', KEYS[3], cjson.encode(said))
end
return 1
"""
# KEYS: the orders. ARGV: the app, its order, the begin of the orders of the number. It returns the other app that has
# the number, or the other order of the app.
_RESTORE: Final = """
local orders = redis.call('HGETALL', KEYS[1])
for i = 1, #orders, 2 do
  local own = string.sub(orders[i + 1], 1, 4) == 'own:'
  if orders[i] == ARGV[1] and own and orders[i + 1] ~= ARGV[2] then return orders[i + 1] end
  if orders[i] ~= ARGV[1] and string.sub(orders[i + 1], 1, #ARGV[3]) == ARGV[3] then return orders[i] end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return false
"""
_IO_S: Final = 30.0


async def restore_partitions(url: str, own: Mapping[str, OwnPartition]) -> None:
    """See ``BusDriver.restore_partitions``."""
    async with short_connection(url, io_timeout_s=_IO_S) as client:
        for app_id, each in own.items():
            given = (app_id, each.stored(), f"own:{each.number}:")
            other = await client.execute_command("EVAL", _RESTORE, 1, channels.ORDERS, *given)
            if other is not None:
                raise InvalidSettings(
                    f"the archive says that partition {each.number} is that of {app_id!r}, and the bus has given "
                    f"another one since: {other.decode()!r}. Give this bus an archive of its own "
                    "(GRAPHWEFT_ARCHIVE_URL)"
                )


async def give_partition(
    call: Callable[..., Awaitable[Any]],
    read_layout: Callable[[], Awaitable[Layout]],
    app_id: str,
    *,
    least: int = 0,
    clock: Clock = SYSTEM_CLOCK,
) -> Layout:
    """See ``Partitions.give_partition``. ``call`` runs a command and raises ``BusUnavailable``."""
    while True:
        layout = await read_layout()
        if app_id in layout.own:
            return layout
        number = max(layout.count, least)
        order = layout.order_of(app_id)
        stored = await call("HGET", channels.ORDERS, app_id)
        there = [Activation.decode(body) for body in await call("LRANGE", channels.ACTIVATIONS, 0, -1)]
        active = [each for scope in (ALL_APPS, app_id) if (each := newest(there, scope)) is not None]
        keys = (channels.ORDERS, stream_of(number, layout.partitions), channels.ACTIVATIONS)
        own = OwnPartition(number=number, since=clock.now(), before=order).stored().split(":")
        given = (
            app_id, f"{own[0]}:{own[1]}:@:{own[3]}", GRACE_MS, stored or "", f"{own[0]}:{own[1]}:", len(there),
            wire.ACTIVATION, *(part for each in active for part in (each.scope, each.digest, clock.now().isoformat())),
        )  # fmt: skip
        if await call("EVAL", _GIVE, len(keys), *keys, *given) == _TAKEN:
            least = number + 1

"""The layout of a bus on Redis: written by the first process, read by all."""

from __future__ import annotations

from typing import Any, Final

from graphweft_contracts import Layout, Order, channels
from graphweft_contracts.layout import ALL_APPS

# Both keys are written at once: a number without orders is a bus of an earlier version.
_AGREE: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SET', KEYS[1], ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
end
return {redis.call('GET', KEYS[1]), redis.call('HGETALL', KEYS[2])}
"""


async def agreed_layout(client: Any, wanted: Layout) -> Layout:
    """Return the layout of the bus; a new one gets ``wanted``. Raises ``RedisError`` or ``OSError``.

    Nothing but reading is needed where the bus has a layout, so that a tenant may have no other right.
    """
    reading = client.pipeline(transaction=True)  # both keys at one moment
    reading.get(channels.PARTITION_COUNT)
    reading.hgetall(channels.ORDERS)
    number, orders = await reading.execute()
    if number is not None:
        return Layout.of_stored(int(number), {app_id.decode(): order.decode() for app_id, order in orders.items()})
    given = (wanted.partitions, ALL_APPS, wanted.order)
    number, flat = await client.execute_command("EVAL", _AGREE, 2, channels.PARTITION_COUNT, channels.ORDERS, *given)
    texts = [text.decode() for text in flat]
    return Layout.of_stored(int(number), dict(zip(texts[::2], texts[1::2], strict=True)))


async def store_order(client: Any, app_id: str, order: Order) -> None:
    """Store the order of an app, or with ``*`` of all others. Raises ``RedisError`` or ``OSError``."""
    await client.execute_command("HSET", channels.ORDERS, app_id, order)

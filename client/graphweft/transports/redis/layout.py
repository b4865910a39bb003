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
    stored = await stored_layout(client)
    if stored is not None:
        return stored
    given = (wanted.partitions, ALL_APPS, wanted.order)
    number, flat = await client.execute_command("EVAL", _AGREE, 2, channels.PARTITION_COUNT, channels.ORDERS, *given)
    texts = [text.decode() for text in flat]
    return Layout.of_stored(int(number), dict(zip(texts[::2], texts[1::2], strict=True)))


async def stored_layout(client: Any) -> Layout | None:
    """Return the layout of the bus; None for a new one. Raises ``RedisError`` or ``OSError``."""
    reading = client.pipeline(transaction=True)  # both keys at one moment
    reading.get(channels.PARTITION_COUNT)
    reading.hgetall(channels.ORDERS)
    number, orders = await reading.execute()
    if number is None:
        return None
    return Layout.of_stored(int(number), {_text(app_id): _text(order) for app_id, order in orders.items()})


def _text(value: str | bytes) -> str:
    """Return what a client that decodes replies, or one that does not, has read."""
    return value if isinstance(value, str) else value.decode()


def stream_of(partition: int, shared: int) -> str:
    """Return the event stream of a partition; ``shared`` is the number of partitions that apps share."""
    return channels.events_stream(partition) if partition < shared else channels.own_events_stream(partition)


def requests_of(layout: Layout, app_id: str) -> str:
    """Return the stream of context requests of an app."""
    return channels.own_context_requests(app_id) if app_id in layout.own else channels.CONTEXT_REQUESTS


async def store_order(client: Any, app_id: str, order: Order) -> None:
    """Store the order of an app, or with ``*`` of all others. Raises ``RedisError`` or ``OSError``."""
    await client.execute_command("HSET", channels.ORDERS, app_id, order)

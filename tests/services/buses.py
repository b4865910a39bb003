"""Buses of any product for tests, and the wait until their events are applied."""

from __future__ import annotations

import asyncio

from graphweft_contracts import Layout, channels
from graphweft_workers.drivers import bus_driver
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.driver import BusOptions

__all__ = ("applied", "mutation_bus")


def mutation_bus(url: str, layout: Layout, *, lease_s: float) -> Bus:
    """Return the bus at a URL as the mutation workers open it; ``layout`` is for a new one."""
    own = {"kafka_barrier_s": 5.0, "kafka_instance": None}
    options = BusOptions(group=channels.MUTATION_GROUP, new=layout, lease_s=lease_s, own=own)
    return bus_driver(url).make_bus(url, options)


async def applied(bus: Bus, within_s: float = 60) -> None:
    """Wait until the group of the bus has read all events."""
    async with asyncio.timeout(within_s):
        while sum(each.lag for each in await bus.partitions.status()):  # noqa: ASYNC110 - the server does not tell
            await asyncio.sleep(0.02)

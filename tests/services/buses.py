"""Buses of any product for tests, and the wait until their events are applied."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.services.waiting import until

from graphweft_contracts import Layout, channels
from graphweft_workers.drivers import bus_driver
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.driver import BusOptions
from graphweft_workers.ports.position_note import PositionNote

__all__ = ("applied", "mutation_bus", "why_apps_wait")


def mutation_bus(url: str, layout: Layout, *, lease_s: float) -> Bus:
    """Return the bus at a URL as the mutation workers open it; ``layout`` is for a new one."""
    own = {"kafka_barrier_s": 5.0, "kafka_instance": None}
    options = BusOptions(group=channels.MUTATION_GROUP, new=layout, lease_s=lease_s, own=own)
    return bus_driver(url).make_bus(url, options)


async def applied(*buses: Bus, worker: asyncio.Task[Any] | None = None) -> None:
    """Wait until the groups of the buses have read all events, those included that one makes for another.

    An app with half of its last plan in the graph waits at the end of its partition. ``worker`` must not end meanwhile.
    """
    before: list[tuple[int, str, int, list[str]]] = []

    async def look() -> list[tuple[int, str, int, list[str]]]:
        return [
            (each.id, each.end, each.lag, [*PositionNote.decode(each.note).parked])
            for bus in buses for each in await bus.partitions.status()
        ]  # fmt: skip

    def are_read(found: list[tuple[int, str, int, list[str]]]) -> bool:
        nonlocal before
        # What one group has made of its last events may come between the looks at two.
        settled, before = len(buses) == 1 or found == before, found
        return settled and not any(lag or parked for _, _, lag, parked in found)

    await until(look, are_read, beside=worker, why="all events are applied (partition, end, lag, apps that wait)")


async def why_apps_wait(bus: Bus) -> dict[str, str]:
    """Return, by app, why it waits; the bus has one partition."""
    [partition] = await bus.partitions.status()
    return {app: each.why for app, each in PositionNote.decode(partition.note).parked.items()}

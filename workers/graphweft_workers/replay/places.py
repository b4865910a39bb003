"""Places of the log: the apps that it has events of, and where it was at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

from graphweft_contracts import wire
from graphweft_workers.ports.bus import Bus

_PAGE: Final = 1_000


async def apps_of_log(bus: Bus) -> set[str]:
    """Return the apps that the log holds events of. Reads all of it. Raises ``BusUnavailable``."""
    found: set[str] = set()
    for partition in range(await bus.partitions(fresh=True)):
        offset = ""
        while page := await bus.after(partition, offset, limit=_PAGE):
            for entry in page:
                try:
                    found.add(wire.decode(entry.fields, received=entry.received).appid)
                except Exception:  # noqa: BLE001 - what is no event has no app
                    continue
            offset = page[-1].offset
    return found


async def offsets_at(bus: Bus, partitions: Iterable[int], time: datetime) -> dict[int, str]:
    """Return the offset of the last entry of each partition that the server took at ``time`` or before.

    Partitions without one are left out. Reads the partitions. Raises ``BusUnavailable``.
    """
    found: dict[int, str] = {}
    for partition in partitions:
        offset = ""
        while page := await bus.after(partition, offset, limit=_PAGE):
            for entry in page:
                if entry.received <= time:
                    found[partition] = entry.offset
            offset = page[-1].offset
    return found


async def ends_of(bus: Bus, partitions: Collection[int]) -> dict[int, str]:
    """Return the offset of the last entry of each partition that has one. Raises ``BusUnavailable``."""
    return {each.id: each.end for each in await bus.status() if each.id in partitions and each.end}

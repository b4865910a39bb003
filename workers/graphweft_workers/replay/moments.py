"""Finds the place of a time in the log.

The time of an entry is the one at which the server took it. The servers write it themselves, and it never decreases
within a partition, unless others made the bus so that it holds the times of its producers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import pages

_NUMBERED: Final = re.compile(r"([0-9]{1,18})(-[0-9]{1,20})?", re.ASCII)
"""An offset that begins with a number; the range between two of them can be halved."""
_NEAR: Final = 64
"""Halving ends when two numbers are this close: then entries are read."""


async def place_at(bus: Bus, partition: int, time: datetime) -> str:
    """Return the offset of the last entry of a partition that the server took at ``time`` or before.

    Empty without such an entry. Raises ``BusUnavailable``.
    """
    return (await places_at(bus, [partition], time))[partition]


async def places_at(bus: Bus, partitions: Iterable[int], time: datetime) -> dict[int, str]:
    """Return the place of a time in each of some partitions; see ``place_at``."""
    ends = {each.id: each.end for each in await bus.partitions.status()}
    return {partition: await _place(bus, partition, time, ends.get(partition, "")) for partition in partitions}


async def _place(bus: Bus, partition: int, time: datetime, end: str) -> str:
    last = await bus.log.before(partition, end, limit=1)
    if not last or last[0].received <= time:
        return last[0].offset if last else ""
    first = await bus.log.after(partition, "", limit=1)
    if not first or first[0].received > time:
        return ""
    found = await _halve(bus, partition, time, first[0].offset, last[0].offset)
    async for page in pages(bus.log, partition, found):
        for entry in page:
            if entry.received > time:
                return found
            found = entry.offset
    return found


async def _halve(bus: Bus, partition: int, time: datetime, early: str, late: str) -> str:
    """Return an entry at or before the place, near to it if offsets are numbers; ``early`` is one."""
    low, high = _NUMBERED.fullmatch(early), _NUMBERED.fullmatch(late)
    if low is None or high is None:
        return early
    below, above = int(low[1]), int(high[1])
    zero = "-0" if low[2] else ""
    while above - below > _NEAR:
        middle = (below + above) // 2
        entries = await bus.log.before(partition, f"{middle}{zero}", limit=1)
        if not entries or not is_after(entries[0].offset, early):
            below = middle
        elif entries[0].received <= time:
            early, below = entries[0].offset, middle
        else:
            number = _NUMBERED.fullmatch(entries[0].offset)
            above = middle if number is None else min(middle, int(number[1]))
    return early

"""A bus whose entries know their partition: an event of an app counts only where the app's events are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from graphweft_contracts import Layout
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry, EntryPlace, EventLog
from graphweft_workers.ports.partitions import Partitions

LOOK_S: Final = 5.0
"""How old the layout may be. An app's events count in its shared partition for longer after it gets its own."""


def placed(bus: Bus, clock: Clock = SYSTEM_CLOCK) -> Bus:
    """Return the bus; events in a partition that is not their app's are refused when they are read."""
    return replace(bus, log=PlacedLog(bus.log, bus.partitions, clock)) if bus.gives_partitions else bus


class PlacedLog:
    """``EventLog`` that marks entries with their place."""

    def __init__(self, log: EventLog, partitions: Partitions, clock: Clock) -> None:
        self._log = log
        self._partitions = partitions
        self._clock = clock
        self._layout: Layout | None = None
        self._look_at = 0.0
        self._looking = asyncio.Lock()
        self._asked: set[int] = set()
        """Partitions for which the layout was read again, because it did not name them."""

    async def read(self, partition: int, after: CommittedPosition, *, limit: int, wait_s: float | None = None) -> Batch:
        """See ``EventLog.read``."""
        batch = await self._log.read(partition, after, limit=limit, wait_s=wait_s)
        await self._mark(partition, batch.entries)
        return batch

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        """See ``EventLog.entries``."""
        return await self._mark(partition, await self._log.entries(partition, offsets))

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.after``."""
        return await self._mark(partition, await self._log.after(partition, offset, limit=limit))

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.before``."""
        return await self._mark(partition, await self._log.before(partition, offset, limit=limit))

    async def _mark(self, partition: int, entries: Sequence[Entry]) -> Sequence[Entry]:
        if entries and (layout := await self._known(partition)).own:
            place = EntryPlace(partition=partition, layout=layout)
            for entry in entries:
                entry.place = place  # they are new and nobody else's, as for the judge
        return entries

    async def _known(self, partition: int) -> Layout:
        """Return the layout. Whoever knows a partition can read to whom it was given."""
        if self._layout is not None and not self._is_old(self._layout, partition):
            return self._layout
        async with self._looking:
            if self._layout is None or self._is_old(self._layout, partition):
                self._layout = await self._partitions.layout()
                self._look_at = self._clock.monotonic() + LOOK_S
                self._asked.add(partition)
            return self._layout

    def _is_old(self, layout: Layout, partition: int) -> bool:
        unknown = partition >= layout.count and partition not in self._asked
        return unknown or self._clock.monotonic() >= self._look_at

"""Reads the log from its end backwards, forwards, and as it grows. It needs no lease and commits nothing."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final

from graphweft_contracts import wire
from graphweft_contracts.rules_log import Activation, announced
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry, EventLog
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import PAGE, backwards, size_of
from graphweft_workers.reports.entries import DecodedEntry, see
from graphweft_workers.support.timing import TIMING

_REPORT: Final = 10_000
_TRIES: Final = 5
_MOST_UNKNOWN: Final = 1_000
_NOWHERE: Final[Mapping[int, str]] = MappingProxyType({})


async def ends(bus: Bus, partitions: Collection[int] | None = None) -> dict[int, str]:
    """Return the last offset of each partition that is not empty; of some partitions, or of all."""
    return {
        each.id: each.end
        for each in await bus.partitions.status()
        if each.end and (partitions is None or each.id in partitions)
    }


async def partitions_of(bus: Bus, app_id: str | None) -> Collection[int] | None:
    """Return the partitions that have events of an app. None: all may have some of it, or it is about all apps."""
    if app_id is None:
        return None
    layout = await bus.partitions.layout()
    return None if layout.order_of(app_id) == "chat" else layout.partitions_of(app_id)


async def newest_first(
    log: EventLog, ends: Mapping[int, str], after: Mapping[int, str] = _NOWHERE
) -> AsyncIterator[tuple[int, Entry]]:
    """Yield the entries of partitions up to ``ends``, merged by time of receipt, the newest first.

    The order of a partition is kept, whatever times its producers give. ``after``: offsets that end a partition; they
    are not yielded. Raises ``ValueError`` for an offset of another kind of bus.
    """
    readers = {partition: backwards(log, partition, end) for partition, end in ends.items()}
    heads: list[tuple[float, int]] = []
    entries: dict[int, Entry] = {}

    async def advance(partition: int) -> None:
        entry = await anext(readers[partition], None)
        if entry is not None and is_after(entry.offset, after.get(partition, "")):
            entries[partition] = entry
            heapq.heappush(heads, (-entry.received.timestamp(), partition))

    for partition in sorted(readers):
        if is_after(ends[partition], after.get(partition, "")):
            await advance(partition)
    while heads:
        _, partition = heapq.heappop(heads)
        yield partition, entries.pop(partition)
        await advance(partition)


@dataclass(slots=True, kw_only=True)
class ScanLimits:
    """Where a search of the log ends, and who is told how far it is."""

    entries: int
    """Maximum number of entries."""
    size: int | None = None
    """About the maximum of their bytes; at least one entry is read."""
    since: datetime | None = None
    """Entries that were received before are not read."""
    on_progress: Callable[[int], None] = lambda _: None
    """Called with the number of entries, now and then."""
    scanned: int = 0
    read: int = 0
    """Bytes of the entries."""
    cut: bool = False
    """Whether the log has more entries, which were not read because of ``entries`` or ``size``."""

    def take(self, entry: Entry) -> bool:
        """Count an entry, and return whether it is within the limits."""
        if self.scanned >= self.entries or (self.scanned and self.size is not None and self.read >= self.size):
            self.cut = True
            return False
        self.scanned += 1
        self.read += size_of(entry.fields)
        return True

    async def within(self, source: AsyncIterator[tuple[int, Entry]]) -> AsyncIterator[tuple[int, Entry]]:
        """Yield the entries of a source, the newest first, until a limit."""
        async for partition, entry in source:
            if self.since is not None and entry.received < self.since:
                return
            if not self.take(entry):
                return
            if self.scanned % _REPORT == 0:
                self.on_progress(self.scanned)
            yield partition, entry


class Decoder:
    """Decodes entries as workers do. It reads the activations again when an entry announces a new one."""

    def __init__(self, bus: Bus, activations: Sequence[Activation]) -> None:
        self._bus = bus
        self.activations = list(activations)
        self._unknown: set[int] = set()

    @classmethod
    async def of(cls, bus: Bus) -> Decoder:
        """Return the decoder of a bus."""
        return cls(bus, await bus.rules.activations())

    async def see(self, partition: int, entry: Entry) -> DecodedEntry:
        """Return the entry, decoded."""
        number = announced(entry.fields) if wire.ACTIVATION in entry.fields else None
        if number is not None and number not in self._unknown and len(self._unknown) < _MOST_UNKNOWN:
            await self._catch_up(number)
        return see(partition, entry, self.activations)

    async def _catch_up(self, number: int) -> None:
        if number <= len(self.activations):
            return
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(TIMING.rules.announced_s)
            self.activations = list(await self._bus.rules.activations())
            if number <= len(self.activations):
                return
            if number > len(self.activations) + 1:  # only the next one can be missing
                break
        self._unknown.add(number)


@dataclass(slots=True)
class LogFollower:
    """Reads what is appended to partitions."""

    bus: Bus
    partitions: Collection[int] | None
    """None for all partitions, also those that are added later."""
    reached: dict[int, str] = field(default_factory=dict[int, str])
    """By partition: the offset up to which everything was read."""
    _shown: dict[int, str] = field(default_factory=dict[int, str])
    """By partition: the last entry that was read."""

    async def fresh(self, gap: Callable[[int, str], None]) -> list[tuple[int, Entry]]:
        """Return the next new entries, merged by time of receipt.

        ``gap`` gets the partition and what happened where entries may be missing.
        """
        found: list[tuple[int, Entry]] = []
        reached, shown = dict(self.reached), dict(self._shown)
        for partition, end in (await ends(self.bus, self.partitions)).items():
            last = reached.get(partition, "")
            if last and is_after(last, end):
                gap(partition, "was created anew; its entries are shown from the start")
                last = ""
                shown.pop(partition, None)
            if not is_after(end, last):
                continue
            page = await self.bus.log.after(partition, last, limit=PAGE)
            before = shown.get(partition)
            if page and before is not None and not await self.bus.log.entries(partition, [before]):
                gap(partition, f"lost entries: those after {before} may have been trimmed before they were shown")
            found += [(partition, entry) for entry in page]
            # An end without an entry is one that the bus wrote for itself.
            reached[partition] = page[-1].offset if page else end
            if page:
                shown[partition] = page[-1].offset
        self.reached, self._shown = reached, shown  # only now: after an error all of it is read again
        return sorted(found, key=lambda each: each[1].received)

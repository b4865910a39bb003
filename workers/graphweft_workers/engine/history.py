"""Reads a partition backwards from a position, and the entries between two positions."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

from graphweft_contracts import wire
from graphweft_workers.engine.duplicates import WINDOW, Identity, RecentEvents, identity_of
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry

_PAGE: Final = 500
"""Entries in memory at once: events may be large."""


async def known_before(bus: Bus, partition: int, offset: str) -> RecentEvents:
    """Return the recent events of a worker that has read up to and including ``offset``."""
    found: deque[Identity | None] = deque()
    first = True
    while len(found) < WINDOW:
        page = await bus.before(partition, offset, limit=_PAGE)
        fresh = page if first else page[:-1]  # ``before`` includes the offset, which the last page had too
        first = False
        if not fresh:
            break
        found.extendleft(_identity(entry) for entry in reversed(fresh))
        offset = fresh[0].offset
    recent = RecentEvents()
    for identity in found:
        recent.is_copy(identity)
    return recent


async def between(bus: Bus, partition: int, after: str, end: str) -> AsyncIterator[Sequence[Entry]]:
    """Yield the entries after ``after`` up to and including ``end``, in order and in pages."""
    while True:
        page = await bus.after(partition, after, limit=_PAGE)
        wanted = [entry for entry in page if not bus.is_after(entry.offset, end)]
        if wanted:
            yield wanted
        if len(wanted) < _PAGE:
            return
        after = wanted[-1].offset


async def copies(bus: Bus, partition: int, first: str, last: str) -> AsyncIterator[str]:
    """Yield the offsets from ``first`` to ``last`` of copies: events that workers drop because they saw them before."""
    start = next((entry.offset for entry in await bus.before(partition, first, limit=2) if entry.offset != first), "")
    recent = await known_before(bus, partition, start) if start else RecentEvents()
    async for page in between(bus, partition, start, last):
        for entry in page:
            if recent.is_copy(_identity(entry)):
                yield entry.offset


def _identity(entry: Entry) -> Identity | None:
    try:
        return identity_of(entry, wire.decode(entry.fields, received=entry.received))
    except Exception:  # noqa: BLE001 - its dead letter exists, and it must not keep a partition from opening
        return None

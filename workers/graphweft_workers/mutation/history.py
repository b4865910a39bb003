"""Reading back on a partition: what stood there before, and what lies between two positions."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

from graphweft_contracts import InvalidEvent, wire
from graphweft_workers.bus.log import Bus, Entry
from graphweft_workers.mutation.duplicates import WINDOW, Identity, RecentEvents
from graphweft_workers.mutation.reading import identity_of

__all__ = ("between", "known_before")

_PAGE: Final = 500
"""Entries that are in memory at once: events may be large."""


async def known_before(bus: Bus, partition: int, offset: str) -> RecentEvents:
    """Return the memory of a worker that has read up to and including an offset."""
    found: deque[Identity | None] = deque()
    first = True
    while len(found) < WINDOW:
        page = await bus.before(partition, offset, limit=_PAGE)
        fresh = page if first else page[:-1]  # ``before`` includes the offset, which is known by now
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
    """Yield the entries behind ``after`` up to and including ``end``, in pages."""
    while True:
        page = await bus.after(partition, after, limit=_PAGE)
        wanted = [entry for entry in page if not bus.is_after(entry.offset, end)]
        if wanted:
            yield wanted
        if len(wanted) < _PAGE:
            return
        after = wanted[-1].offset


def _identity(entry: Entry) -> Identity | None:
    try:
        return identity_of(entry, wire.decode(entry.fields, received=entry.received))
    except InvalidEvent:
        return None

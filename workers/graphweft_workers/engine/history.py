"""What a reader of a partition knew at a position, and the copies between two positions."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

from graphweft_workers.engine.duplicates import REACH, READ_BACK, WINDOW, Identity, RecentEvents, identity_of
from graphweft_workers.engine.passed_over import NOTHING, PassedOver
from graphweft_workers.engine.turns import TurnClock
from graphweft_workers.ports.event_log import Entry, EventLog
from graphweft_workers.ports.offsets import is_after, offset_order
from graphweft_workers.ports.pages import pages

_PAGE: Final = 500
"""Entries in memory at once, or fewer if they are large; only their identities stay."""


async def known_before(
    log: EventLog,
    partition: int,
    offset: str,
    passed_over: PassedOver = NOTHING,
    *,
    reach: int = REACH,
    only: str | None = None,
) -> RecentEvents:
    """Return the recent events of a worker that has read up to and including ``offset``.

    It reads ``READ_BACK`` entries back, or ``reach`` entries if that is more; beyond ``REACH``, nothing is known. With
    ``only``, it reads no further than the window of that app.
    """
    found: deque[Identity | None] = deque()
    first, own, end = True, 0, offset
    turns = TurnClock()
    while len(found) < max(READ_BACK, min(reach, REACH)) and own < WINDOW:
        page = await log.before(partition, offset, limit=_PAGE)
        fresh = page if first else page[:-1]  # ``before`` includes the offset, which the last page had too
        first = False
        if not fresh:
            break
        for entry in reversed(fresh):
            identity = _identity(entry, passed_over)
            found.appendleft(identity)
            own += identity is not None and identity[0] == only
            await turns.rest()
        offset = fresh[0].offset
    recent = RecentEvents()
    for identity in found:
        recent.is_copy(identity)
    recent.was_read = lambda offset: not is_after(offset, end)
    return recent


def in_order(offsets: Iterable[str]) -> tuple[str, ...]:
    """Return offsets of one partition in the log's order."""
    return tuple(sorted(offsets, key=offset_order))


async def copies(
    log: EventLog, partition: int, first: str, last: str, *, only: str | None = None
) -> AsyncIterator[str]:
    """Yield the offsets from ``first`` to ``last`` of copies: events that workers drop because they saw them before.

    With ``only``, the copies of other apps may be missing.
    """
    start = next((entry.offset for entry in await log.before(partition, first, limit=2) if entry.offset != first), "")
    recent = await known_before(log, partition, start, only=only) if start else RecentEvents()
    async for page in pages(log, partition, start, to=last):
        for entry in page:
            if recent.is_copy(_identity(entry)):
                yield entry.offset


def _identity(entry: Entry, passed_over: PassedOver = NOTHING) -> Identity | None:
    try:
        event = entry.event()
        return None if passed_over.unread(entry.offset, event.appid) else identity_of(entry, event)
    except Exception:  # noqa: BLE001 - its dead letter exists, and it must not keep a partition from opening
        return None

"""Pages of entries: bounded by bytes, because anybody may write large entries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

from graphweft_workers.ports.event_log import CommittedPosition, Entry, EventLog
from graphweft_workers.ports.offsets import is_after

PAGE: Final = 500
"""Entries of a page that ``pages`` yields."""

PAGE_BYTES: Final = 8 * 1024**2
"""Limit of bytes in a page of ``EventLog.before``, unless it has two entries."""
_FIRST: Final = 16
"""Entries of the first page of ``backwards`` and ``forwards``, before their size is known."""
_READ_BYTES: Final = 4 * 1024**2
_GROWTH: Final = 8
LEAST: Final = 2
"""Entries of a page, whatever their size: the first one is the last one of the page before."""


async def pages(
    log: EventLog, partition: int, after: str = "", *, to: str | None = None, limit: int = PAGE
) -> AsyncGenerator[Sequence[Entry]]:
    """Yield the entries of a partition after ``after`` that exist now, in order and in pages; no page is empty.

    With ``to``, they end with the entry at that offset. Raises what ``EventLog.after`` raises.
    """
    while (to is None or is_after(to, after)) and (page := await log.after(partition, after, limit=limit)):
        after = page[-1].offset
        if to is not None and is_after(after, to):
            page = [entry for entry in page if not is_after(entry.offset, to)]
        if page:
            yield page


async def what_is_there(log: EventLog, partition: int, after: CommittedPosition) -> AsyncGenerator[Sequence[Entry]]:
    """Yield the entries after a position that exist now, like ``pages``, and pass over those that are gone."""
    while (batch := await log.read(partition, after, limit=PAGE)).entries:
        yield batch.entries
        count = after.count + batch.lost + len(batch.entries)
        after = CommittedPosition(offset=batch.entries[-1].offset, count=count)


async def backwards(log: EventLog, partition: int, offset: str, *, most: int = PAGE) -> AsyncGenerator[Entry]:
    """Yield the entries of a partition up to and including ``offset``, the newest first. Reads ``most`` at once."""
    limit, last = min(_FIRST, most), ""
    while offset:
        page = await log.before(partition, offset, limit=limit)
        fresh = page[:-1] if page and page[-1].offset == last else page
        if not fresh:
            return
        for entry in reversed(fresh):
            yield entry
        offset = last = fresh[0].offset
        limit = min(most, _next_limit(fresh, limit))


async def forwards(log: EventLog, partition: int, after: str, end: str) -> AsyncGenerator[Entry]:
    """Yield the entries of a partition after ``after`` up to and including ``end``."""
    limit = _FIRST
    while is_after(end, after):
        page = await log.after(partition, after, limit=limit)
        for entry in page:
            if is_after(entry.offset, end):
                return
            yield entry
        if len(page) < limit:
            return
        after = page[-1].offset
        limit = _next_limit(page, limit)


def _next_limit(page: Sequence[Entry], limit: int) -> int:
    size = sum(size_of(entry.fields) for entry in page)
    fitting = _READ_BYTES * len(page) // max(1, size)
    return max(2, min(PAGE, limit * _GROWTH, fitting))


def size_of(fields: Mapping[bytes, bytes]) -> int:
    """Return the bytes of an entry."""
    return sum(map(len, fields)) + sum(map(len, fields.values()))


def last_page(entries: Sequence[Entry], *, most_bytes: int = PAGE_BYTES) -> Sequence[Entry]:
    """Return the last entries that have at most ``most_bytes`` together, or the last two."""
    size = 0
    for count, entry in enumerate(reversed(entries)):
        size += size_of(entry.fields)
        if size > most_bytes and count >= LEAST:
            return entries[-count:]
    return entries

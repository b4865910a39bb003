"""What a reader of a partition knew at a position, and the copies between two positions."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

from graphweft_contracts import wire
from graphweft_workers.engine.log.duplicates import REACH, WINDOW, Identity, RecentEvents, identity_of
from graphweft_workers.engine.log.effect_ledger import NOTHING, EffectLedger
from graphweft_workers.engine.log.series import AppRecord, SeriesPlace, number_of, raise_marks
from graphweft_workers.engine.log.turns import TurnClock
from graphweft_workers.ports.event_log import Entry, EventLog
from graphweft_workers.ports.offsets import is_after, offset_order
from graphweft_workers.ports.pages import pages
from graphweft_workers.ports.position_note import READ_BACK

_BINARY: Final = wire.PREFIX + b"sequence"
_STRUCTURED: Final = b'"sequence"'
_PAGE: Final = 500
"""Entries in memory at once, or fewer if they are large; only their identities stay."""


async def known_before(
    log: EventLog,
    partition: int,
    offset: str,
    passed_over: EffectLedger = NOTHING,
    *,
    reach: int = REACH,
    only: str | None = None,
    records: Iterable[AppRecord] | None = (),
) -> RecentEvents:
    """Return the recent events of a worker that has read up to and including ``offset``.

    It reads ``READ_BACK`` entries back, or ``reach`` entries if that is more, and to the first one whose number is not
    part of the stored marks; of what lies beyond ``REACH``, only marks are known. With ``only``, it reads no further
    than the window of that app. ``records`` are the stored marks of apps. For None, or if one of them is of later
    positions only, the numbers of all entries before are read.
    """
    stored = None if records is None else {each.app_id: each for each in records if only in (None, each.app_id)}
    marks = {app: each.at(offset) for app, each in (stored or {}).items()}
    first = [each.first for each in marks.values() if each is not None and each.first]
    needed = in_order(first)[0] if first else None
    found: deque[tuple[Identity, SeriesPlace | None, str] | None] = deque()
    whole, own, end = True, 0, offset
    turns = TurnClock()

    def goes_on() -> bool:
        if len(found) >= REACH:
            return False
        if needed is not None and is_after(offset, needed):
            return True
        return len(found) < max(READ_BACK, min(reach, REACH)) and own < WINDOW

    while goes_on():
        page = await log.before(partition, offset, limit=_PAGE)
        fresh = page if whole else page[:-1]  # ``before`` includes the offset, which the last page had too
        whole = False
        if not fresh:
            break
        for entry in reversed(fresh):
            known = _known(entry, passed_over)
            found.appendleft(known)
            own += known is not None and known[0][0] == only
            await turns.rest()
        offset = fresh[0].offset
    base: dict[str, dict[str, int]] = {}
    if stored is None or None in marks.values():
        base = await _numbers_before(log, partition, offset, passed_over, only=only) if end else {}
    for app, each in marks.items():
        if each is not None:
            base[app] = dict(each.marks)
            if each.first and is_after(offset, each.first):  # some of the rest was not read
                raise_marks(base[app], each.rest.items())
    for app, each in marks.items():
        if each is None:
            base.setdefault(app, {})  # so that its record is written anew
    recent = RecentEvents(marks=base)
    for record in (stored or {}).values():
        recent.keep(record)
    for known in found:
        if known is None:
            recent.is_copy(None)
        else:
            recent.is_copy(*known)
    recent.was_read = lambda offset: not is_after(offset, end)
    return recent


async def _numbers_before(
    log: EventLog, partition: int, offset: str, passed_over: EffectLedger, *, only: str | None
) -> dict[str, dict[str, int]]:
    """Return the highest number of each series of each app in all entries before an offset."""
    found: dict[str, dict[str, int]] = {}
    turns = TurnClock()
    async for page in pages(log, partition, to=offset):
        for entry in page:
            await turns.rest()
            if entry.offset == offset or not _may_be_numbered(entry):
                continue
            known = _known(entry, passed_over)
            if known is not None and known[1] is not None and only in (None, known[0][0]):
                raise_marks(found.setdefault(known[0][0], {}), (known[1],))
    return found


def _may_be_numbered(entry: Entry) -> bool:
    """Tell whether an entry names its number in either mode; most do not, and are not decoded."""
    return _BINARY in entry.fields or _STRUCTURED in entry.fields.get(wire.DATA, b"")


def in_order(offsets: Iterable[str]) -> tuple[str, ...]:
    """Return offsets of one partition in the log's order."""
    return tuple(sorted(offsets, key=offset_order))


async def copies(
    log: EventLog,
    partition: int,
    first: str,
    last: str,
    *,
    only: str | None = None,
    records: Iterable[AppRecord] | None = (),
) -> AsyncIterator[str]:
    """Yield the offsets from ``first`` to ``last`` of copies: events that workers drop because they saw them before.

    With ``only``, the copies of other apps may be missing. ``records`` were read before ``first`` was written.
    """  # fmt: skip
    start = next((entry.offset for entry in await log.before(partition, first, limit=2) if entry.offset != first), "")
    recent = RecentEvents()
    if start:
        recent = await known_before(log, partition, start, only=only, records=records)
    async for page in pages(log, partition, start, to=last):
        for entry in page:
            known = _known(entry)
            if known is not None and recent.is_copy(*known):
                yield entry.offset


def _known(entry: Entry, passed_over: EffectLedger = NOTHING) -> tuple[Identity, SeriesPlace | None, str] | None:
    """Return what tells whether an entry is a copy; None if it is no event."""
    try:
        event = entry.event()
        if passed_over.unread(entry.offset, event.appid):
            return None
        return identity_of(entry, event), number_of(entry, event), entry.offset
    except Exception:  # noqa: BLE001 - its dead letter exists, and it must not keep a partition from opening
        return None

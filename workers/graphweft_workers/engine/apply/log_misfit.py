"""Whether a graph was made from the log that is there: a log may have lost its end, or have begun anew."""

from __future__ import annotations

import contextlib
from typing import Final, NamedTuple

from graphweft_contracts import QueryFailed
from graphweft_workers.engine.plan.entry_mark import EntryMark
from graphweft_workers.engine.plan.plan import RestNote
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition, EntriesLost, EventLog
from graphweft_workers.ports.graph_store import GraphStore, Progress
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import pages
from graphweft_workers.ports.partitions import Partitions, status_of

_MOST_GRAPHS: Final = 50
"""Limit of graphs that are asked about a log."""


class Misfit(NamedTuple):
    """How the log does not hold what a graph was made from."""

    why: str
    """In words that follow those about the place of the graph."""
    removed: bool = False
    """Whether only the entry was removed, from between others: by hand, or in a gap of the archive."""


async def misfit_of(
    log: EventLog, partitions: Partitions, number: int, progress: Progress, *, last: str | None = None
) -> Misfit | None:
    """Return how it is known that a log lacks what a graph was made from; None if it is not known.

    ``progress`` is that of the graph in the partition ``number``. An entry that was trimmed is not missing, and neither
    is one that an archive behind the log holds. But events up to ``last`` that are to be applied would count as applied
    if the graph stands behind the end of the bus: then no archive helps. Raises ``BusUnavailable``.
    """
    offset = progress.checkpoint.offset
    if not offset:
        return None
    if last is not None and is_after(offset, last):
        end = (await status_of(partitions, number)).end
        if is_after(offset, end):
            return _ends(end)
    if "-" not in offset:
        return await _of_number(log, partitions, number, offset, RestNote.of(progress).entry)
    return None if await log.entries(number, [offset]) else await _of_pair(log, partitions, number, offset)


class LostEntries(NamedTuple):
    """How many entries up to a position a log lacks."""

    number: int
    exact: bool
    """Otherwise at least so many: some of the entries that are there may be others."""


async def lost_entries(bus: Bus, graph: GraphStore, number: int, position: CommittedPosition) -> LostEntries:
    """Return how many of the entries up to a position, all of which had effects, a log without an archive lacks.

    Raises ``BusUnavailable`` and ``GraphUnavailable``.
    """
    status, had = await status_of(bus.partitions, number), bus.offsets.entries_up_to(position)
    if not status.written:
        return LostEntries(had, exact=True)
    if "-" not in position.offset:
        is_same = await _is_same_log(bus.log, graph, number)
        return LostEntries(had if is_same is False else had - status.written, exact=is_same is not None)
    # New entries are behind the position, unless the clock of the bus went back.
    if not status.trimmed and not await bus.log.before(number, position.offset, limit=1):
        return LostEntries(had, exact=True)
    since = 0
    with contextlib.suppress(EntriesLost):
        # Up to the end that the status names: what came after it is not counted there.
        async for page in pages(bus.log, number, position.offset, to=status.end):
            since += len(page)
    return LostEntries(had - (status.written - since), exact=False)


async def _is_same_log(log: EventLog, graph: GraphStore, number: int) -> bool | None:
    """Tell whether a log begins as the one before, by the marks of graphs; None if none of these says so."""
    for app_id in list(await graph.reached(number))[:_MOST_GRAPHS]:
        with contextlib.suppress(QueryFailed):
            mark = RestNote.of(await graph.progress(app_id, number)).entry
            if mark is not None and (found := await log.entries(number, [mark.offset])):
                return EntryMark.of(found[0]) == mark
    return None


async def _of_pair(log: EventLog, partitions: Partitions, number: int, offset: str) -> Misfit | None:
    """Return the misfit of an offset with a time in it, whose entry is not there."""
    status = await status_of(partitions, number)
    if is_after(offset, status.end):
        return _ends(status.end)
    before = await log.before(number, offset, limit=1)
    if not before:
        began = "which begins behind it and of which nothing was ever trimmed: the log was recreated"
        return None if status.trimmed else Misfit(began)
    if not is_after(offset, status.deleted):
        return Misfit("which holds no such entry: somebody removed it", removed=True)
    try:
        await log.after(number, before[-1].offset, limit=1)
    except EntriesLost:
        return Misfit("which holds no such entry: it is in a gap of the archive", removed=True)
    return Misfit("which holds no such entry: the log lost its end and went on, as after a fail-over")


async def _of_number(
    log: EventLog, partitions: Partitions, number: int, offset: str, mark: EntryMark | None
) -> Misfit | None:
    """Return the misfit of an offset that each log has: a log is told by the time of the entry of the mark.

    Graphs of earlier versions have no mark until the next events.
    """
    at = offset if mark is None else mark.offset
    if found := await log.entries(number, [at]):
        if mark is None or EntryMark.of(found[0]) == mark:
            return None
        return Misfit(f"and was made from a log with another entry at {at}: the log was recreated")
    status = await status_of(partitions, number)
    if is_after(at, status.end):
        return _ends(status.end)
    if mark is None or int(at) < status.trimmed:
        return None
    return Misfit(f"and was made from a log with an entry at {at}, where this one has none: the log was recreated")


def _ends(end: str) -> Misfit:
    return Misfit(f"which ends at {end or 'nothing'}: the log was recreated or lost its end")

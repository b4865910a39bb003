"""A bus whose trimmed entries come from the archive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphweft_contracts.plurals import counted
from graphweft_workers.archive.log_gaps import LogGap, is_accepted
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.segments import SegmentPiece
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch, CommittedPosition, EntriesLost, Entry, EventLog
from graphweft_workers.ports.offsets import offset_order
from graphweft_workers.ports.pages import last_page


def archived(bus: Bus, blobs: BlobStore, *, over_gaps: bool = True) -> Bus:
    """Return the bus with an archive behind it: its log reads from there what the bus no longer holds.

    With ``over_gaps``, ``EventLog.after`` goes on behind lost entries if somebody has accepted the loss.
    """
    return replace(bus, log=ArchivedLog(bus.log, blobs, over_gaps=over_gaps), archive=blobs, unarchived=bus.log)


class ArchivedLog:
    """``EventLog`` that reads from the archive what the bus no longer holds.

    Entries that were erased come from the archive even while the bus still holds them, except for ``read``, and for
    ``entries`` and ``before`` of entries that the bus holds.
    """

    def __init__(self, log: EventLog, blobs: BlobStore, *, over_gaps: bool) -> None:
        self._log = log
        self._over_gaps = over_gaps
        self._reader = ArchiveReader(blobs)
        self._trimmed: dict[int, int] = {}
        """By partition: entries that the bus lacked when the archive was last looked at."""

    async def read(self, partition: int, after: CommittedPosition, *, limit: int, wait_s: float | None = None) -> Batch:
        """See ``EventLog.read``: nothing is lost that the archive holds, before and behind a gap of it."""
        batch = await self._log.read(partition, after, limit=limit, wait_s=wait_s)
        return await self._instead_of_lost(partition, after, batch, limit)

    async def _instead_of_lost(self, partition: int, after: CommittedPosition, batch: Batch, limit: int) -> Batch:
        if not batch.lost:
            return batch
        number = await self._reader.number_up_to(partition, after.offset)
        if number is None:
            await self._reader.refresh(partition)
            number = await self._reader.number_up_to(partition, after.offset)
        if number is None:
            return batch
        pieces = await self._reader.pieces(partition)
        if not any(piece.first <= number + 1 <= piece.last for piece in pieces):
            await self._reader.refresh(partition)
            pieces = await self._reader.pieces(partition)
        holding = next((piece for piece in pieces if piece.first <= number + 1 <= piece.last), None)
        if holding is None:
            behind = _first_behind(pieces, number, batch.lost)
            if behind is None:
                return batch
            return Batch(entries=(await self._reader.read(behind))[:limit], lost=behind.first - number - 1)
        entries = await self._reader.after(partition, after.offset, limit=min(limit, holding.last - number))
        return Batch(entries=entries)

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        """See ``EventLog.entries``."""
        found = {entry.offset: entry for entry in await self._log.entries(partition, offsets)}
        missing = [offset for offset in offsets if offset not in found]
        if missing:
            await self._reader.refresh(partition)
            found |= {entry.offset: entry for entry in await self._reader.entries(partition, missing)}
        return [found[offset] for offset in offsets if offset in found]

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.after``: from the archive as far as it reaches, then from the bus.

        Raises ``EntriesLost`` if entries between two are missing, unless it goes on over gaps that were accepted.
        """
        looked = False
        while True:
            found, position = await self._reader.run_after(partition, offset, limit=limit)
            if position is not None and len(found) == limit:
                return found
            if position is not None:
                batch = await self._log.read(partition, position, limit=limit - len(found))
                if not batch.lost:
                    return [*found, *batch.entries]
                if not looked:
                    await self._reader.refresh(partition)
                    looked = True
                    continue
                if found:
                    return found
                return await self._behind_gap(partition, position, batch, limit)
            there = await self._log.after(partition, offset, limit=limit)
            if await self._is_up_to_date(partition):
                older = found and (not there or offset_order(found[0].offset) < offset_order(there[0].offset))
                return found if older else there

    async def _behind_gap(
        self, partition: int, position: CommittedPosition, batch: Batch, limit: int
    ) -> Sequence[Entry]:
        """Return the first entries behind those that are missing after a position; ``batch`` is what the bus has."""
        behind = _first_behind(await self._reader.pieces(partition), position.count, batch.lost)
        lost = batch.lost if behind is None else behind.first - position.count - 1
        gap = LogGap(partition=partition, first=position.count + 1, last=position.count + lost)
        if not self._over_gaps or not await is_accepted(self._reader.blobs, gap):
            raise _lost(partition, position.offset, lost)
        return batch.entries if behind is None else (await self._reader.read(behind))[:limit]

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.before``: the bus's entries, and those before them from the archive."""
        if not offset:
            return []
        while True:
            found = list(await self._log.before(partition, offset, limit=limit))
            if len(found) >= limit:
                return found
            until = found[0].offset if found else offset
            if len(found) > 1 and len(await self._log.before(partition, until, limit=2)) > 1:
                return found  # the page is short because its entries are large
            older = await self._reader.before(partition, until, limit=limit - len(found) + 1)
            if found and older and older[-1].offset == until:
                older = older[:-1]
            if await self._is_up_to_date(partition):
                return last_page([*older, *found][-limit:])

    async def _is_up_to_date(self, partition: int) -> bool:
        """Look for new segments if the bus has been trimmed since the last look, and return False then."""
        trimmed = (await self._log.read(partition, CommittedPosition(), limit=1)).lost
        if trimmed == self._trimmed.get(partition, 0):
            return True
        await self._reader.refresh(partition)
        self._trimmed[partition] = trimmed
        return False


def _first_behind(pieces: Sequence[SegmentPiece], number: int, lost: int) -> SegmentPiece | None:
    """Return the first piece behind an entry, if it begins before the bus does, which lacks ``lost`` entries there."""
    return next((piece for piece in pieces if number < piece.first <= number + lost), None)


def _lost(partition: int, offset: str, number: int) -> EntriesLost:
    were, are, they = ("was", "is", "it is") if number == 1 else ("were", "are", "they are")
    return EntriesLost(
        f"{counted(number, 'entry')} of partition {partition} after {offset or 'the start'} {were} trimmed from the "
        f"bus and {are} not in the archive: {they} lost. `graphweft archive verify` lists what is missing, and "
        "with --accept-lost lets replays go on without it"
    )

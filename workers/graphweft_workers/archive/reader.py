"""Reads the archive: which entries it holds, and these entries."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from graphweft_workers.archive import segments as format_
from graphweft_workers.archive.blobs import ArchiveUnavailable
from graphweft_workers.archive.segments import DamagedSegment, Segment, SegmentPiece
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.event_log import CommittedPosition, Entry
from graphweft_workers.ports.offsets import offset_order
from graphweft_workers.ports.pages import last_page

_KEPT: Final = 4
"""Decoded segments in memory; one is about 8 MB unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Entries that the archive lacks between, or before, those that it holds."""

    first: int
    """The number of the first one that is missing."""
    last: int


class SegmentGone(ArchiveUnavailable):
    """A segment was rewritten or merged by another process meanwhile: after ``refresh`` the others hold its entries."""


class ArchiveReader:
    """Reads segments of one archive. Every method raises ``ArchiveUnavailable``, also for a damaged segment."""

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs
        self._pieces: dict[int, list[SegmentPiece]] = {}
        self._segments: dict[int, list[Segment]] = {}
        self._kept: dict[str, list[Entry]] = {}
        """By name: entries of the segments last read, the latest last."""
        self._loading: dict[str, asyncio.Lock] = {}

    async def refresh(self, partition: int) -> None:
        """Look for new segments of a partition."""
        names = await self.blobs.names(format_.folder_of(partition))
        self._know(partition, [found for name in names if (found := format_.parse_name(name)) is not None])

    async def segments(self, partition: int) -> Sequence[Segment]:
        """Return the segments of a partition as of the last ``refresh``, or now; also those that others replace."""
        if partition not in self._segments:
            await self.refresh(partition)
        return self._segments[partition]

    async def pieces(self, partition: int) -> Sequence[SegmentPiece]:
        """Return the entries that the archive holds, in order, as of the last ``refresh``, or now."""
        await self.segments(partition)
        return self._pieces[partition]

    async def partitions(self) -> list[int]:
        """Return the partitions that have a segment now, in order."""
        names = await self.blobs.names(f"{format_.FOLDER}/")
        by_number: dict[int, list[Segment]] = {}
        for name in names:
            if (found := format_.parse_name(name)) is not None:
                by_number.setdefault(found.partition, []).append(found)
        for number, found_there in by_number.items():
            self._know(number, found_there)
        return sorted(by_number)

    def add(self, segment: Segment, entries: Sequence[Entry]) -> None:
        """Take note of a segment that this process has just written."""
        self._know(segment.partition, [*self._segments.get(segment.partition, []), segment])
        self._keep(segment.name, list(entries))

    def forget(self, segment: Segment) -> None:
        """Drop the entries of a segment that was deleted from memory."""
        self._kept.pop(segment.name, None)

    def _know(self, partition: int, found: list[Segment]) -> None:
        self._segments[partition] = found
        self._pieces[partition] = format_.pieces(found)

    async def end(self, partition: int) -> CommittedPosition:
        """Return the last entry of the partition in the archive, and its number."""
        pieces = await self.pieces(partition)
        if not pieces:
            return CommittedPosition()
        last = pieces[-1]
        if last.last == last.segment.last:
            return CommittedPosition(offset=last.segment.last_offset, count=last.last)
        return CommittedPosition(offset=(await self.read(last))[-1].offset, count=last.last)

    async def gaps(self, partition: int) -> Sequence[Gap]:
        """Return the entries that are missing before the end."""
        found: list[Gap] = []
        number = 0
        for piece in await self.pieces(partition):
            if piece.first > number + 1:
                found.append(Gap(first=number + 1, last=piece.first - 1))
            number = piece.last
        return found

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """Return up to ``limit`` consecutive entries after an offset. What is missing before the first is skipped."""
        return (await self.run_after(partition, offset, limit=limit))[0]

    async def run_after(
        self, partition: int, offset: str, *, limit: int
    ) -> tuple[list[Entry], CommittedPosition | None]:
        """Return up to ``limit`` consecutive entries after an offset, and the position after them.

        The position is None if the archive does not know the number of ``offset``, so that entries may be missing
        between it and the first one returned.
        """
        pieces = await self.pieces(partition)
        wanted = offset_order(offset)
        found: list[Entry] = []
        position = None if offset else CommittedPosition()
        start = bisect_left(pieces, wanted, key=lambda piece: offset_order(piece.segment.last_offset))
        number = 0
        for piece in pieces[start:]:
            entries = await self.read(piece)
            at = bisect_left(entries, wanted, key=lambda entry: offset_order(entry.offset))
            if at < len(entries) and entries[at].offset == offset:
                at += 1
                number = piece.first + at - 1
                position = CommittedPosition(offset=offset, count=number)
            elif not found and at == len(entries):
                continue
            if piece.first + at != number + 1:  # entries are missing before this piece
                if found or (position is not None and position.offset):
                    break
                position = None
            taken = entries[at : at + limit - len(found)]
            found += taken
            number = piece.first + at + len(taken) - 1
            if position is not None and taken:
                position = CommittedPosition(offset=taken[-1].offset, count=number)
            if len(found) >= limit:
                break
        return found, position

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """Return the last ``limit`` entries up to and including ``offset``: see ``EventLog.before``."""
        wanted = offset_order(offset)
        found: list[Entry] = []
        for piece in reversed(await self.pieces(partition)):
            if offset_order(piece.segment.first_offset) > wanted:
                continue
            entries = await self.read(piece)
            at = bisect_left(entries, wanted, key=lambda entry: offset_order(entry.offset))
            if at < len(entries) and entries[at].offset == offset:
                at += 1
            found[:0] = entries[max(0, at - limit + len(found)) : at]
            page = last_page(found)
            if len(found) >= limit or len(page) < len(found):
                return page
        return last_page(found)

    async def entries(self, partition: int, offsets: Iterable[str]) -> Sequence[Entry]:
        """Return the entries with these offsets that the archive holds; ``offsets`` are in order."""
        found: list[Entry] = []
        for offset in offsets:
            near = await self.before(partition, offset, limit=1)
            if near and near[0].offset == offset:
                found.append(near[0])
        return found

    async def number_of(self, partition: int, offset: str) -> int | None:
        """Return the number of the entry with this offset; None if the archive does not hold it, 0 for no offset."""
        if not offset:
            return 0
        wanted = offset_order(offset)
        for piece in await self.pieces(partition):
            low, high = offset_order(piece.segment.first_offset), offset_order(piece.segment.last_offset)
            if low <= wanted <= high:
                for number, entry in enumerate(await self.read(piece), piece.first):
                    if entry.offset == offset:
                        return number
        return None

    async def number_up_to(self, partition: int, offset: str) -> int | None:
        """Return the number of the last entry up to an offset, 0 before the first; None behind the end of the archive.

        The offset need not be that of an entry: on some buses the end of a transaction has one.
        """
        if not offset:
            return 0
        pieces = await self.pieces(partition)
        wanted = offset_order(offset)
        start = bisect_left(pieces, wanted, key=lambda piece: offset_order(piece.segment.last_offset))
        number = pieces[start - 1].last if start else 0
        for piece in pieces[start:]:
            entries = await self.read(piece)
            at = bisect_right(entries, wanted, key=lambda entry: offset_order(entry.offset))
            number = piece.first + at - 1 if at else number
            if at < len(entries) or entries[-1].offset == offset:
                return number
        return None

    async def load(self, segment: Segment) -> list[Entry]:
        """Return all entries of a segment."""
        async with self._loading.setdefault(segment.name, asyncio.Lock()):
            kept = self._kept.get(segment.name)
            if kept is None:
                data = await self._bytes(segment)
                try:
                    kept = await asyncio.to_thread(format_.decode, segment, data)
                except DamagedSegment as error:
                    raise ArchiveUnavailable(f"the archive is damaged: {error}") from error
                self._keep(segment.name, kept)
        self._loading.pop(segment.name, None)
        return kept

    def _keep(self, name: str, entries: list[Entry]) -> None:
        self._kept[name] = entries
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]

    async def _bytes(self, segment: Segment) -> bytes:
        data = await self.blobs.get(segment.name)
        if data is None:  # rewritten or merged by another process
            self._segments.pop(segment.partition, None)
            raise SegmentGone(f"the segment {segment.name} is gone: another one replaces it, try again")
        return data

    async def read(self, piece: SegmentPiece) -> list[Entry]:
        """Return the entries of a piece."""
        entries = await self.load(piece.segment)
        if piece.first == piece.segment.first and piece.last == piece.segment.last:
            return entries
        return entries[piece.first - piece.segment.first : piece.last - piece.segment.first + 1]

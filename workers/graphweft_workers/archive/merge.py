"""Merges small segments: a quiet partition gets one every few seconds, and each costs a request to read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from graphweft_workers.archive import segments as format_
from graphweft_workers.archive.erasure import erase_again
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.segments import SegmentPiece
from graphweft_workers.ports.event_log import Entry

SMALL: Final = 1_000
"""Entries; a segment with fewer is small."""
TOGETHER: Final = 16
"""Small segments in a row that are merged."""
_MOST_ENTRIES: Final = 10_000


async def merge_small(reader: ArchiveReader, partition: int) -> bool:
    """Merge the last small segments of a partition, if there are many; return whether it has.

    The merged segment is written before the small ones are deleted, so a reader finds each entry at any time.
    """
    row = _small_at_end(await reader.pieces(partition))
    if len(row) < TOGETHER:
        return False
    entries: list[Entry] = []
    for piece in row:
        entries += await reader.read(piece)
    generation = max(piece.segment.generation for piece in row)
    first = row[0].first
    segment, data = await asyncio.to_thread(format_.encode, partition, first, entries, generation=generation)
    await reader.blobs.put(segment.name, data)
    covered = [
        each.name
        for each in await reader.segments(partition)
        if segment.first <= each.first and each.last <= segment.last and each.generation <= generation
    ]
    await reader.blobs.delete([name for name in covered if name != segment.name])
    await erase_again(reader, segment, entries)
    return True


def _small_at_end(pieces: Sequence[SegmentPiece]) -> list[SegmentPiece]:
    """Return the consecutive pieces at the end that together fit into one segment, without gaps."""
    row: list[SegmentPiece] = []
    total = 0
    for piece in reversed(pieces):
        total += piece.last - piece.first + 1
        if piece.segment.count >= SMALL or total > _MOST_ENTRIES or (row and row[-1].first != piece.last + 1):
            break
        row.append(piece)
    return row[::-1]

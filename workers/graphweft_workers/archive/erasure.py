"""Erases entries from the archive: segments are rewritten with their content gone.

An erased entry keeps its place, its offset and its time, so numbers, positions and the order of all others stay as they
are. It has no effect in a replay.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from graphweft_workers.archive import segments as format_
from graphweft_workers.archive.reader import ArchiveReader, SegmentGone
from graphweft_workers.archive.segments import Segment
from graphweft_workers.archive.subject import Subject
from graphweft_workers.ports.event_log import Entry

_MOST_PASSES: Final = 9
_MOST_MERGES: Final = 9


@dataclass(slots=True, kw_only=True)
class ErasedSegments:
    """What was done to one partition of the archive."""

    entries: int = 0
    """Entries that were erased now."""
    rewritten: int = 0
    """Segments that were rewritten."""
    left: int = 0
    """Entries that still hold something of the subject: 0, unless other processes go on writing old ones."""


async def learn(reader: ArchiveReader, partition: int, subject: Subject) -> None:
    """Let the subject see all entries of a partition."""

    async def look() -> None:
        for piece in await reader.pieces(partition):
            subject.learn(await reader.read(piece))

    await _look_again_after_merges(reader, partition, look)


async def _look_again_after_merges[T](reader: ArchiveReader, partition: int, look: Callable[[], Awaitable[T]]) -> T:
    """Return what a look at all segments finds. While the archive is merged, it looks again."""
    for _ in range(_MOST_MERGES):
        await reader.refresh(partition)
        with contextlib.suppress(SegmentGone):
            return await look()
    await reader.refresh(partition)
    return await look()


async def erase_entries(
    reader: ArchiveReader, partition: int, subject: Subject, *, tell: Callable[[int], None] = lambda _: None
) -> ErasedSegments:
    """Erase the subject's entries from all segments of a partition; ``tell`` gets the number of segments looked at.

    A new segment is written before the old one is deleted. After an interruption a further call goes on. Raises
    ``ArchiveUnavailable``.
    """
    done = ErasedSegments()
    found = 0
    for _ in range(_MOST_PASSES):
        await _delete_covered(reader, partition)
        gone = await erased_offsets(reader, partition)
        segments = sorted(await reader.segments(partition), key=lambda each: (each.first, each.generation))
        newest, found = max((each.generation for each in segments), default=0), 0
        for number, segment in enumerate(segments, 1):
            try:
                entries = await reader.load(segment)
            except SegmentGone:  # it was merged: the next pass finds its entries in another one
                found += 1
                continue
            # What another segment holds as erased stays so: an old copy may have been written later.
            erased = [
                _without_content(entry)
                if not entry.erased and (entry.offset in gone or subject.holds(entry))
                else entry
                for entry in entries
            ]
            here = sum(one is not other for one, other in zip(entries, erased, strict=True))
            if here:
                found += here
                done.entries += here
                await _replace(reader, segment, erased, newest + 1)
                done.rewritten += 1
            tell(number)
        await _delete_covered(reader, partition)
        if not found:
            break
    else:
        done.left = found
    return done


async def erase_again(reader: ArchiveReader, segment: Segment, entries: Sequence[Entry]) -> None:
    """Erase from a segment that was just written what newer ones hold as erased.

    Whoever writes a segment of entries that it has read before calls this behind the write: an erasure may have ended
    between the two, and nobody else would find the old content. Raises ``ArchiveUnavailable``.
    """
    await reader.refresh(segment.partition)
    gone: set[str] = set()
    newest = segment.generation
    for each in await reader.segments(segment.partition):
        overlaps = each.first <= segment.last and segment.first <= each.last
        if overlaps and each.generation > segment.generation:
            with contextlib.suppress(SegmentGone):  # it was merged into one that is looked at too
                gone.update(entry.offset for entry in await reader.load(each) if entry.erased)
                newest = max(newest, each.generation)
    if not any(entry.offset in gone and not entry.erased for entry in entries):
        return
    erased = [_without_content(entry) if entry.offset in gone else entry for entry in entries]
    await _replace(reader, segment, erased, newest)
    await reader.refresh(segment.partition)


async def erased_offsets(reader: ArchiveReader, partition: int) -> set[str]:
    """Return the offsets of all erased entries of a partition."""

    async def look() -> set[str]:
        found: set[str] = set()
        for piece in await reader.pieces(partition):
            found.update(entry.offset for entry in await reader.read(piece) if entry.erased)
        return found

    return await _look_again_after_merges(reader, partition, look)


async def count_undecided(reader: ArchiveReader, partition: int, subject: Subject) -> int:
    """Return how many entries name no user and stay, in chats that the user shares with others."""

    async def look() -> int:
        return sum([sum(map(subject.may_hold, await reader.read(each))) for each in await reader.pieces(partition)])

    return await _look_again_after_merges(reader, partition, look)


async def count_entries(reader: ArchiveReader, partition: int, subject: Subject) -> int:
    """Return how many entries of the subject the archive holds, in all segments of a partition."""

    async def look() -> int:
        segments = await reader.segments(partition)
        return sum([sum(map(subject.holds, await reader.load(each))) for each in segments])

    return await _look_again_after_merges(reader, partition, look)


def _without_content(entry: Entry) -> Entry:
    return replace(entry, fields={}, erased=True)


async def _replace(reader: ArchiveReader, segment: Segment, entries: Sequence[Entry], generation: int) -> None:
    made, data = await asyncio.to_thread(
        format_.encode, segment.partition, segment.first, entries, generation=generation
    )  # fmt: skip
    await reader.blobs.put(made.name, data)
    await reader.blobs.delete([segment.name])
    reader.forget(segment)


async def _delete_covered(reader: ArchiveReader, partition: int) -> None:
    """Delete segments of which nothing is read, because others hold the same entries."""
    await reader.refresh(partition)
    read = {piece.segment.name for piece in await reader.pieces(partition)}
    await reader.blobs.delete([each.name for each in await reader.segments(partition) if each.name not in read])
    await reader.refresh(partition)

"""Checks an archive: hashes, order, gaps, and entries that two segments hold differently."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from graphweft_contracts import BusUnavailable
from graphweft_contracts.plurals import counted
from graphweft_workers.archive import segments as format_
from graphweft_workers.archive.continuation import breaks
from graphweft_workers.archive.log_gaps import LogGap, accepted_gaps, split_by
from graphweft_workers.archive.reader import ArchiveReader, Gap
from graphweft_workers.archive.segments import DamagedSegment, Segment, SegmentPiece
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry


@dataclass(slots=True, kw_only=True)
class VerifiedPartition:
    """What the archive holds of a partition, and what is wrong with it."""

    partition: int
    segments: int = 0
    bytes: int = 0
    entries: int = 0
    """Each entry once."""
    erased: int = 0
    end: str = ""
    """The last offset."""
    gaps: Sequence[Gap] = ()
    accepted: list[str] = field(default_factory=list[str])
    """What is missing and was accepted as lost, in words."""
    faults: list[str] = field(default_factory=list[str])


async def verify(
    blobs: BlobStore, bus: Bus | None, *, tell: Callable[[VerifiedPartition], None] = lambda _: None
) -> AsyncIterator[VerifiedPartition]:
    """Read all segments, and yield the result for each partition that has some, or that lacks entries.

    With ``bus``, which is the bus alone, entries that are neither archived nor on the bus are faults too. ``tell`` gets
    the partition in hand after each segment. Raises ``ArchiveUnavailable`` and ``BusUnavailable``.
    """
    reader = ArchiveReader(blobs)
    archived = await reader.partitions()
    for number in archived:
        found = VerifiedPartition(partition=number)
        await _check(blobs, reader, found, tell)
        if bus is not None and not found.faults:
            await _compare(bus, reader, found)
        yield found
    for status in await bus.partitions.status() if bus is not None else ():
        if bus is not None and status.trimmed and status.id not in archived:
            found = VerifiedPartition(partition=status.id)
            await _compare(bus, reader, found)
            yield found


async def verify_presence(blobs: BlobStore, bus: Bus | None) -> list[str]:
    """Return a fault for an archive of nothing, unless the bus, which may be None, never had an entry either."""
    if await ArchiveReader(blobs).partitions() or await ArchivedState(blobs).known_layout() is not None:
        return []
    if bus is not None and not any(each.written for each in await bus.partitions.status()):
        return []
    return [
        "the archive holds no entries: check that GRAPHWEFT_ARCHIVE_URL names that of the archive role; if nothing "
        "was ever archived, run `graphweft archive now`"
    ]


async def verify_rules(blobs: BlobStore) -> list[str]:
    """Return what is wrong with the archived rules: activations that are missing, or without their rule set."""
    state = ArchivedState(blobs)
    faults: list[str] = []
    for expected, activation in enumerate(await state.activations(), 1):
        if activation.number != expected:
            faults.append(f"rules: the activation {expected} is missing")
            break
        try:
            there = await state.stored_rules(activation.digest) is not None
        except ValueError:
            there = False
        if not there:
            faults.append(
                f"rules: the rule set {activation.digest[:12]} of activation {expected} is missing or damaged"
            )
    return faults


async def _check(
    blobs: BlobStore, reader: ArchiveReader, found: VerifiedPartition, tell: Callable[[VerifiedPartition], None]
) -> None:
    segments = await reader.segments(found.partition)
    pieces = await reader.pieces(found.partition)
    whole: dict[str, list[Entry]] = {}
    for segment in sorted(segments, key=lambda each: (each.first, -each.last)):
        data = await blobs.get(segment.name)
        found.segments += 1
        if data is None:
            found.faults.append(f"{segment.name}: gone while it was checked")
            continue
        found.bytes += len(data)
        try:
            entries = format_.decode(segment, data)
        except DamagedSegment as error:
            found.faults.append(str(error))
            continue
        whole = {name: kept for name, kept in whole.items() if _last_of(name) >= segment.first}
        for name, others in whole.items():
            found.faults += _differences(segment, entries, name, others)
        whole[segment.name] = entries
        for piece in pieces:
            if piece.segment == segment:
                _count(found, piece, entries)
        tell(found)
    found.gaps = await reader.gaps(found.partition)
    if pieces:
        found.end = pieces[-1].segment.last_offset
    gaps = [LogGap(partition=found.partition, first=gap.first, last=gap.last) for gap in found.gaps]
    found.faults += [
        f"partition {found.partition}: the entries {gap.first} to {gap.last} are missing"
        for gap in await _not_accepted(blobs, found, gaps)
    ]


async def _not_accepted(blobs: BlobStore, found: VerifiedPartition, gaps: Sequence[LogGap]) -> list[LogGap]:
    """Return the parts of gaps that nobody has accepted as lost, and note the others."""
    parts = split_by(await accepted_gaps(blobs, found.partition), gaps)
    found.accepted += [str(part) for part in parts if part.accepted is not None]
    return [part for part in parts if part.accepted is None]


def _count(found: VerifiedPartition, piece: SegmentPiece, entries: Sequence[Entry]) -> None:
    held = entries[piece.first - piece.segment.first : piece.last - piece.segment.first + 1]
    found.entries += len(held)
    found.erased += sum(entry.erased for entry in held)


def _differences(segment: Segment, entries: Sequence[Entry], name: str, others: Sequence[Entry]) -> list[str]:
    """Return a fault if two segments hold an entry differently; an erased one may differ from what it was."""
    by_offset = {entry.offset: entry for entry in others}
    for entry in entries:
        other = by_offset.get(entry.offset)
        if other is not None and other != entry and not (other.erased or entry.erased):
            return [f"{segment.name}: its entry {entry.offset} differs from that of {name}"]
    return []


def _last_of(name: str) -> int:
    segment = format_.parse_name(name)
    return segment.last if segment is not None else 0


async def _compare(bus: Bus, reader: ArchiveReader, found: VerifiedPartition) -> None:
    broken = await breaks(bus, reader, [found.partition])
    if broken:
        found.faults += broken.values()
        return
    end = await reader.end(found.partition)
    try:
        lost = (await bus.log.read(found.partition, end, limit=1)).lost
    except BusUnavailable as error:
        found.faults.append(f"partition {found.partition}: the bus does not continue the archive: {error}")
        return
    if lost:
        await reader.refresh(found.partition)  # what was archived meanwhile may have been trimmed
        archived = max(end.count, (await reader.end(found.partition)).count)
        gap = LogGap(partition=found.partition, first=archived + 1, last=end.count + lost)
        found.faults += [
            f"partition {found.partition}: {counted(part.entries, 'entry')} after {end.offset or 'the beginning'} "
            f"{'is' if part.entries == 1 else 'are'} neither archived nor on the bus"
            for part in await _not_accepted(reader.blobs, found, [gap])
        ]

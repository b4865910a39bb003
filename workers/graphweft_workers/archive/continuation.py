"""Whether the bus continues the archive: a bus that lost its end holds other entries under the same numbers."""

from __future__ import annotations

from collections.abc import Collection

from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.partitions import PartitionStatus, status_of


async def breaks(bus: Bus, reader: ArchiveReader, partitions: Collection[int]) -> dict[int, str]:
    """Return how the bus does not continue the archive, by partition, in order. ``bus`` is the bus alone.

    A number is not enough: as soon as a bus that lost its end has as many entries again, it looks complete. Entries
    that are added, archived or trimmed meanwhile make no difference: the end of the archive is read before the bus.
    Raises ``ArchiveUnavailable`` and ``BusUnavailable``.
    """
    ends = {number: end for number in partitions if (end := await reader.end(number)).offset}
    found: dict[int, str] = {}
    for status in await bus.partitions.status() if ends else ():
        if status.id in ends and (why := await _break_at(bus, reader, status, ends[status.id])):
            found[status.id] = (
                f"partition {status.id}: the bus does not continue the archive, which ends at {ends[status.id].offset} "
                f"(`graphweft bus mend {status.id}` joins the two, or says what to do on a bus that cannot): {why}"
            )
    return found


async def _break_at(bus: Bus, reader: ArchiveReader, status: PartitionStatus, end: CommittedPosition) -> str:
    """Return how a partition does not go on behind the end of the archive; empty if it does, as far as is known."""
    archived = bus.offsets.entries_up_to(end)
    if status.trimmed >= archived:  # what the archive ends with may have been trimmed
        return ""
    if status.written < archived:
        return f"it had {status.written} entries, of {archived} that are archived"
    there = await bus.log.entries(status.id, [end.offset])
    if not there:
        now = await status_of(bus.partitions, status.id)
        lost = now.trimmed < archived  # otherwise it was trimmed meanwhile
        return "it lost its end, and holds other entries under the same numbers" if lost else ""
    copy = await reader.entries(status.id, [end.offset])
    changed = bool(copy) and not copy[0].erased and there[0].fields != copy[0].fields
    return "it holds another entry there" if changed else ""

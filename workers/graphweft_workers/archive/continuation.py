"""Whether the bus continues the archive: a bus that lost its end holds other entries under the same numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.partitions import PartitionStatus


async def breaks_at(bus: Bus, reader: ArchiveReader, partitions: Collection[int]) -> list[str]:
    """Return ``breaks`` of partitions, by their numbers."""
    return await breaks(bus, reader, [each for each in await bus.partitions.status() if each.id in partitions])


async def breaks(bus: Bus, reader: ArchiveReader, partitions: Iterable[PartitionStatus]) -> list[str]:
    """Return how the bus does not continue the archive, by partition in order. ``bus`` is the bus alone.

    A number is not enough: as soon as a bus that lost its end has as many entries again, it looks complete. Raises
    ``ArchiveUnavailable`` and ``BusUnavailable``.
    """
    found: list[str] = []
    for status in partitions:
        end = await reader.end(status.id)
        archived = bus.offsets.entries_up_to(end)
        if not end.offset or status.trimmed >= archived:  # what the archive ends with may have been trimmed
            continue
        where = (
            f"partition {status.id}: the bus does not continue the archive, which ends at {end.offset} (`graphweft bus "
            f"mend {status.id}` joins the two, or says what to do on a bus that cannot)"
        )
        if status.written < archived:
            found.append(f"{where}: it had {status.written} entries, of {archived} that are archived")
            continue
        there = await bus.log.entries(status.id, [end.offset])
        if not there:
            found.append(f"{where}: it lost its end, and holds other entries under the same numbers")
            continue
        copy = await reader.entries(status.id, [end.offset])
        if copy and not copy[0].erased and there[0].fields != copy[0].fields:
            found.append(f"{where}: it holds another entry there")
    return found

"""Removes from the bus what is archived and applied."""

from __future__ import annotations

from dataclasses import dataclass

from graphweft_contracts import channels
from graphweft_workers.archive.blobs import ArchiveUnavailable
from graphweft_workers.archive.continuation import breaks
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.offsets import later, offset_order
from graphweft_workers.ports.position_note import PositionNote


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimPlace:
    """How far a partition can be trimmed, and what holds it there."""

    partition: int
    offset: str
    """The last entry that nobody needs on the bus; empty: none."""
    held_by: str
    """The group of readers that is the furthest behind, or ``archive``."""


async def trim_place(bus: Bus, reader: ArchiveReader, partition: int) -> TrimPlace:
    """Return how far a partition can be trimmed: what is archived, and what each group of readers has done.

    A group without a position in the partition does not count, except the workers that apply events. An app that is
    parked, or waits in a job, holds nothing, because its events are read from the archive. Raises ``BusUnavailable``
    and ``ArchiveUnavailable``.
    """
    places = {channels.MUTATION_GROUP: ""}
    for name, committed in (await bus.partitions.positions(partition)).items():
        if place := later(PositionNote.decode(committed.note).done, committed.offset):
            places[name] = place
    places.pop(channels.ARCHIVE_GROUP, None)  # the archive itself says how far it is
    places["archive"] = (await reader.end(partition)).offset
    held_by = min(places, key=lambda name: (offset_order(places[name]), name))
    return TrimPlace(partition=partition, offset=places[held_by], held_by=held_by)


async def trim(bus: Bus, reader: ArchiveReader, partition: int) -> TrimPlace:
    """Trim a partition as far as it can be, see ``trim_place``, and return how far that is. ``bus`` is the bus alone.

    Raises ``BusUnavailable``, and ``ArchiveUnavailable`` also if the bus does not continue the archive.
    """
    place = await trim_place(bus, reader, partition)
    if place.offset:
        first = await bus.log.after(partition, "", limit=1)
        if first and offset_order(first[0].offset) <= offset_order(place.offset):
            # An entry of another log may have a number that the archive has.
            if broken := (await breaks(bus, reader, [partition])).get(partition):
                raise ArchiveUnavailable(f"{broken}. Nothing was removed from the bus")
            await bus.partitions.trim(partition, place.offset)
    return place

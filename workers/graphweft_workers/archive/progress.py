"""How far an archive is, without a look into segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphweft_workers.archive.reader import ArchiveReader
    from graphweft_workers.ports.bus import Bus
    from graphweft_workers.ports.partitions import PartitionStatus

ARCHIVE = "archive"
"""The name of the archive among the readers that hold entries on the bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveProgress:
    """Numbers of entries, of all partitions."""

    behind: int = 0
    """Entries on the bus that are not archived yet."""
    trimmable: int = 0
    """Entries on the bus that nobody needs there."""
    held_by: Mapping[str, int] = field(default_factory=dict[str, int])
    """Other entries on the bus, by the reader that is the furthest behind in their partition."""
    lost: int = 0
    """Entries that were trimmed before they were archived."""


async def progress(
    reader: ArchiveReader,
    bus: Bus,
    partitions: Sequence[PartitionStatus],
    groups: Mapping[str, Sequence[PartitionStatus]],
) -> ArchiveProgress:
    """Return how far the archive is beside the groups that read the bus. ``partitions`` is the status of any group.

    It lists the archive once. Raises ``ArchiveUnavailable``.
    """
    await reader.partitions()
    behind = trimmable = lost = 0
    held_by: dict[str, int] = {}
    for each in partitions:
        archived = bus.offsets.entries_up_to(await reader.end(each.id))
        gaps = await reader.gaps(each.id)
        lost += sum(max(0, min(gap.last, each.trimmed) - gap.first + 1) for gap in gaps)
        lost += max(0, each.trimmed - archived)
        behind += max(0, each.written - max(archived, each.trimmed))
        done = {ARCHIVE: archived}
        for name, statuses in groups.items():
            for status in statuses:
                if status.id == each.id:
                    done[name] = each.written - status.lag
        held = min(done, key=lambda name: (done[name], name))
        trimmable += max(0, done[held] - each.trimmed)
        if waiting := each.written - max(done[held], each.trimmed):
            held_by[held] = held_by.get(held, 0) + waiting
    return ArchiveProgress(behind=behind, trimmable=trimmable, held_by=held_by, lost=lost)

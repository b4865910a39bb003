"""What tools tell about the archive that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from graphweft_contracts import Transient, channels
from graphweft_contracts.plurals import counted
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import has_archive, make_archive, make_bus

if TYPE_CHECKING:
    from graphweft_workers.archive.reader import ArchiveReader

_MOST_NAMES: Final = 10
_ARCHIVE: Final = "archive"
"""The name of the archive among the readers that hold entries on the bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveState:
    """The archive, in numbers of entries of all partitions."""

    enabled: bool
    """Whether the settings name an archive."""
    behind: int = 0
    """Entries on the bus that are not archived yet."""
    trimmable: int = 0
    """Entries on the bus that nobody needs there."""
    held_by: Mapping[str, int] = field(default_factory=dict[str, int])
    """Other entries on the bus, by the reader that is the furthest behind in their partition."""
    lost: int = 0
    """Entries that were trimmed before they were archived."""
    breaks: Sequence[str] = ()
    """How the bus does not continue the archive; such a partition is not archived any more."""
    to_rebuild: Sequence[str] = ()
    """Apps whose graphs went on without events that the bus had lost."""
    error: str = ""
    """Why the archive or the bus does not say how far it is."""

    def text(self) -> str:
        """Return one line for people."""
        lost = counted(
            self.lost, "entry was trimmed before it was archived", "entries were trimmed before they were archived"
        )
        if not self.enabled:
            return f"no archive; {lost}" if self.lost else "no archive"
        if self.error:
            return f"archive: not known: {self.error}"
        if self.breaks:  # the numbers are those of another log
            return "archive: " + "; ".join(self.breaks)
        parts = [f"{counted(self.behind, 'entry')} behind" if self.behind else "up to date"]
        parts.append(f"{counted(self.trimmable, 'entry')} on the bus can be trimmed")
        if self.held_by:
            parts.append("others wait for " + ", ".join(f"{name} ({n:,})" for name, n in sorted(self.held_by.items())))
        if self.lost:
            parts.append(lost)
        if self.to_rebuild:
            names = ", ".join(self.to_rebuild[:_MOST_NAMES]) + (", …" if len(self.to_rebuild) > _MOST_NAMES else "")
            parts.append(f"graphs that may lack events since the bus had lost its end: {names}")
        return "archive: " + "; ".join(parts)


async def archive_state(settings: Settings, bus: Bus, partitions: Sequence[PartitionStatus]) -> ArchiveState:
    """Return the state of the archive, for the status of any group of ``bus``. It lists the archive once.

    An archive that does not answer is an ``error`` of the state.
    """
    if not has_archive(settings):  # all that was trimmed is lost
        return ArchiveState(enabled=False, lost=sum(each.trimmed for each in partitions))
    from graphweft_workers.archive.continuation import breaks
    from graphweft_workers.archive.joins import to_rebuild
    from graphweft_workers.archive.reader import ArchiveReader
    from graphweft_workers.wiring import features as jobs

    try:
        groups = {name: await _status(settings, name) for name in (channels.MUTATION_GROUP, *jobs.groups(settings))}
        reader = ArchiveReader(make_archive(settings))
        found = await _progress(reader, bus, partitions, groups)
        rebuild = await to_rebuild(make_archive(settings))
        async with contextlib.aclosing(make_bus(settings, archived=False)) as alone:
            broken = await breaks(alone, reader, partitions)
    except Transient as error:
        return ArchiveState(enabled=True, error=" ".join(str(error).split()))
    return ArchiveState(enabled=True, breaks=broken, to_rebuild=rebuild, **found)


async def _progress(
    reader: ArchiveReader,
    bus: Bus,
    partitions: Sequence[PartitionStatus],
    groups: Mapping[str, Sequence[PartitionStatus]],
) -> Mapping[str, Any]:
    """Return the numbers of ``ArchiveState``; ``groups`` are the other readers of the bus. Lists the archive once.

    Raises ``ArchiveUnavailable``.
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
        done = {_ARCHIVE: archived}
        for name, statuses in groups.items():
            for status in statuses:
                if status.id == each.id:
                    done[name] = each.written - status.lag
        held = min(done, key=lambda name: (done[name], name))
        trimmable += max(0, done[held] - each.trimmed)
        if waiting := each.written - max(done[held], each.trimmed):
            held_by[held] = held_by.get(held, 0) + waiting
    return {"behind": behind, "trimmable": trimmable, "held_by": held_by, "lost": lost}


async def _status(settings: Settings, group: str) -> Sequence[PartitionStatus]:
    async with contextlib.aclosing(make_bus(settings, group=group, archived=False)) as bus:
        status = await bus.partitions.status()
    # Partitions without a position of a job do not hold up trimming.
    return [each for each in status if each.position or group == channels.MUTATION_GROUP]

"""What tools tell about the archive that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from graphweft_contracts import Transient, channels
from graphweft_contracts.plurals import counted
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition
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
    """Entries that were trimmed before they were archived, unless somebody has accepted that they are lost."""
    accepted: int = 0
    """Entries that somebody has accepted as lost."""
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
        if self.accepted:
            parts.append(counted(self.accepted, "entry is accepted as lost", "entries are accepted as lost"))
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
        groups = {name: await _status(bus, name) for name in (channels.MUTATION_GROUP, *jobs.groups(settings))}
        reader = ArchiveReader(make_archive(settings))
        await reader.partitions()  # one listing for all
        rebuild = await to_rebuild(make_archive(settings))
        async with contextlib.aclosing(make_bus(settings, archived=False)) as alone:
            broken = await breaks(alone, reader, [each.id for each in partitions])
            found = await _progress(reader, alone, [each for each in partitions if each.id not in broken], groups)
    except Transient as error:
        return ArchiveState(enabled=True, error=" ".join(str(error).split()))
    return ArchiveState(enabled=True, breaks=list(broken.values()), to_rebuild=rebuild, **found)


async def _progress(
    reader: ArchiveReader,
    bus: Bus,
    partitions: Sequence[PartitionStatus],
    groups: Mapping[str, Sequence[PartitionStatus]],
) -> Mapping[str, Any]:
    """Return the numbers of ``ArchiveState`` for partitions that continue the archive.

    ``bus`` is the bus alone, and ``groups`` are its other readers. Raises ``ArchiveUnavailable`` and
    ``BusUnavailable``.
    """
    from graphweft_workers.archive.log_gaps import LogGap, accepted_gaps, gaps_of_archive, split_by

    behind = trimmable = lost = accepted = 0
    held_by: dict[str, int] = {}
    for each in partitions:
        end = await reader.end(each.id)
        archived = bus.offsets.entries_up_to(end)
        gaps = gaps_of_archive(each.id, await reader.gaps(each.id), each.trimmed)
        if each.trimmed > archived:
            gaps.append(LogGap(partition=each.id, first=archived + 1, last=each.trimmed))
        for gap in split_by(await accepted_gaps(reader.blobs, each.id), gaps) if gaps else ():
            lost += 0 if gap.accepted else gap.entries
            accepted += gap.entries if gap.accepted else 0
        written = each.written
        if archived < written and await _is_end(bus, each.id, end):
            written = archived  # what is behind it are no entries, such as the end of a transaction
        behind += max(0, written - max(archived, each.trimmed))
        done = {_ARCHIVE: archived}
        for name, statuses in groups.items():
            for status in statuses:
                if status.id == each.id:
                    done[name] = each.written - status.lag
        held = min(done, key=lambda name: (done[name], name))
        trimmable += max(0, done[held] - each.trimmed)
        if (waiting := written - max(done[held], each.trimmed)) > 0:
            held_by[held] = held_by.get(held, 0) + waiting
    return {"behind": behind, "trimmable": trimmable, "held_by": held_by, "lost": lost, "accepted": accepted}


async def _is_end(bus: Bus, partition: int, position: CommittedPosition) -> bool:
    """Tell whether a partition has no entry behind a position, and never lost one there."""
    batch = await bus.log.read(partition, position, limit=1)
    return not batch.entries and not batch.lost


async def _status(bus: Bus, group: str) -> Sequence[PartitionStatus]:
    status = await bus.partitions.status(group=group)
    # Partitions without a position of a job do not hold up trimming.
    return [each for each in status if each.position or group == channels.MUTATION_GROUP]

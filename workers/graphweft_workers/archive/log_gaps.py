"""Entries of the log that nobody can read any more, and whether somebody has accepted that they are lost.

The archive keeps what was accepted, by the numbers of the entries: what is lost later needs a consent of its own. Whose
these entries were is not known: nothing that is left names their apps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from graphweft_contracts import InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.plurals import counted
from graphweft_workers.archive.blobs import ArchiveUnavailable
from graphweft_workers.archive.reader import ArchiveReader, Gap
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus

_FOLDER: Final = "losses"
_NAMED: Final = 10
"""Limit of gaps in a message."""
_LACKING: Final = (
    "entry, which was trimmed and is not in an archive",
    "entries, which were trimmed and are not in an archive",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Who has accepted that entries are lost, and when."""

    time: datetime
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGap:
    """Consecutive entries of a partition that neither the bus nor its archive holds."""

    partition: int
    first: int
    """The number of the first one, from 1."""
    last: int
    accepted: Acceptance | None = None
    """None: nobody has accepted that they are lost."""

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.last - self.first + 1

    @property
    def numbers(self) -> str:
        """The numbers of the entries, in words."""
        return f"{self.first} to {self.last}" if self.entries > 1 else f"number {self.first}"

    def __str__(self) -> str:
        """Return it in words: ``149 entries of partition 0 (402 to 550), accepted as lost by ann on 2026-11-29``."""
        said = f"{counted(self.entries, 'entry')} of partition {self.partition} ({self.numbers})"
        if self.accepted is None:
            return said
        return f"{said}, accepted as lost by {self.accepted.by} on {self.accepted.time.date().isoformat()}"


async def log_gaps(bus: Bus, partitions: Iterable[int]) -> list[LogGap]:
    """Return what can no longer be read of partitions, in order: neither the bus nor its archive holds it.

    Raises ``BusUnavailable``.
    """
    trimmed = {each.id: each.trimmed for each in await bus.partitions.status()}
    found: list[LogGap] = []
    for number in partitions:
        gaps = await _missing(bus, number, trimmed.get(number, 0))
        if gaps and bus.archive is not None:
            gaps = split_by(await accepted_gaps(bus.archive, number), gaps)
        found += gaps
    return found


async def missing_entries(bus: Bus, partitions: Sequence[int]) -> dict[int, int]:
    """Return how many entries of each partition can no longer be read, accepted or not. Raises ``BusUnavailable``."""
    gaps = await log_gaps(bus, partitions)
    return {number: sum(each.entries for each in gaps if each.partition == number) for number in partitions}


async def accept_gaps(bus: Bus, partitions: Iterable[int], *, by: str, clock: Clock = SYSTEM_CLOCK) -> list[LogGap]:
    """Record in the archive that what partitions lack now is lost; return what was not accepted before.

    ``bus`` has the archive behind it. Raises ``BusUnavailable``.
    """
    assert bus.archive is not None
    accepted = Acceptance(time=clock.now(), by=by)
    found: list[LogGap] = []
    for gap in await log_gaps(bus, partitions):
        if gap.accepted is None:
            body = json.dumps({"time": accepted.time.isoformat(), "by": by}).encode()
            await bus.archive.put(f"{_folder(gap.partition)}{gap.first:012}-{gap.last:012}.json", body)
            found.append(LogGap(partition=gap.partition, first=gap.first, last=gap.last, accepted=accepted))
    return found


async def is_accepted(blobs: BlobStore, gap: LogGap) -> bool:
    """Tell whether the loss of all entries of a gap was accepted. Raises ``ArchiveUnavailable``."""
    return all(each.accepted is not None for each in split_by(await accepted_gaps(blobs, gap.partition), [gap]))


def check_accepted(gaps: Iterable[LogGap], impossible: str, *, archived: bool) -> None:
    """Raise ``InvalidSettings`` unless the loss of all gaps was accepted; ``impossible`` says what stops without them.

    ``archived`` is whether the bus has an archive behind it.
    """
    missing = [each for each in gaps if each.accepted is None]
    missing = [each for each in missing if each.partition == missing[0].partition]  # one partition is enough to say
    if not missing:
        return
    numbers = ", ".join(each.numbers for each in missing[:_NAMED])
    lacking = counted(sum(each.entries for each in missing), *_LACKING)
    raise InvalidSettings(
        f"partition {missing[0].partition} of the log lacks {lacking} "
        f"({numbers}{', …' if len(missing) > _NAMED else ''}), so {impossible}. "
        + (
            "Put back what the archive lacks, or accept the loss by `graphweft archive verify --accept-lost`"
            if archived
            else "If there is an archive, set GRAPHWEFT_ARCHIVE_URL"
        )
    )


def without(gaps: Sequence[LogGap]) -> str:
    """Return in words which entries a result is without; empty for none."""
    if not gaps:
        return ""
    named = "; ".join(map(str, gaps[:_NAMED])) + ("; …" if len(gaps) > _NAMED else "")
    return f"without {named}. It is not known whose they were"


def split_by(accepted: Sequence[LogGap], gaps: Iterable[LogGap]) -> list[LogGap]:
    """Return gaps of a partition, cut where what was accepted begins or ends. Pure."""
    found: list[LogGap] = []
    for gap in gaps:
        first = gap.first
        while first <= gap.last:
            by = next((each for each in accepted if each.first <= first <= each.last), None)
            later = [each.first - 1 for each in accepted if first < each.first]
            last = min([gap.last, *([by.last] if by is not None else later)])
            consent = None if by is None else by.accepted
            found.append(LogGap(partition=gap.partition, first=first, last=last, accepted=consent))
            first = last + 1
    return found


def gaps_of_archive(partition: int, gaps: Iterable[Gap], trimmed: int) -> list[LogGap]:
    """Return what the archive lacks before its end and the bus, of which ``trimmed`` entries are gone, cannot fill."""
    found = [LogGap(partition=partition, first=each.first, last=min(each.last, trimmed)) for each in gaps]
    return [each for each in found if each.entries > 0]


async def _missing(bus: Bus, partition: int, trimmed: int) -> list[LogGap]:
    if not trimmed:
        return []
    if bus.archive is None:
        return [LogGap(partition=partition, first=1, last=trimmed)]
    reader = ArchiveReader(bus.archive)
    found = gaps_of_archive(partition, await reader.gaps(partition), trimmed)
    end = await reader.end(partition)
    if lost := (await bus.log.read(partition, end, limit=1)).lost:
        found.append(LogGap(partition=partition, first=end.count + 1, last=end.count + lost))
    return found


async def accepted_gaps(blobs: BlobStore, partition: int) -> list[LogGap]:
    """Return what was accepted of a partition, in order. Raises ``ArchiveUnavailable``."""
    found: list[LogGap] = []
    for name in await blobs.names(_folder(partition)):
        first, _, last = name.rpartition("/")[2].partition(".")[0].partition("-")
        try:
            body: Any = json.loads(await blobs.get(name) or b"")
            accepted = Acceptance(time=datetime.fromisoformat(body["time"]), by=str(body["by"]))
        except (ValueError, LookupError, TypeError) as error:
            raise ArchiveUnavailable(
                f"the archive is damaged: {name} does not say who accepted a loss, and when: delete it, and run "
                "`graphweft archive verify --accept-lost`"
            ) from error
        found.append(LogGap(partition=partition, first=int(first), last=int(last), accepted=accepted))
    return found


def _folder(partition: int) -> str:
    return f"{_FOLDER}/p{partition:05}/"

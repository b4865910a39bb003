"""What a check of the archive found, and how far the bus was trimmed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from graphweft_contracts.plurals import counted
from graphweft_workers.archive.trim import TrimPlace
from graphweft_workers.archive.verify import VerifiedPartition
from graphweft_workers.reports.report import Notice, Part, TextTable

_MOST_FAULTS: Final = 50
_MOST_ROWS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveCheck:
    """The partitions of an archive, and its faults."""

    partitions: Sequence[VerifiedPartition]
    faults: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {"partitions": [asdict(each) for each in self.partitions], "faults": list(self.faults)}

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        if self.partitions:
            rows = [
                (str(p.partition), p.segments, p.entries, p.erased, f"{p.bytes / 1e6:.1f}", p.end)
                for p in sorted(self.partitions, key=lambda each: -each.entries)[:_MOST_ROWS]
            ]
            yield TextTable(("partition", "segments", "entries", "erased", "MB", "end"), rows)
            yield from _others(len(self.partitions))
        else:
            yield "the archive is empty"
        for gap in [gap for each in self.partitions for gap in each.accepted][:_MOST_FAULTS]:
            yield f"lacks {gap}"
        yield from map(Notice, self.faults[:_MOST_FAULTS])
        if (more := len(self.faults) - _MOST_FAULTS) > 0:
            yield Notice(f"and {counted(more, 'other fault')}: run `graphweft archive verify --json`")
        if not self.faults:
            yield f"{counted(sum(each.entries for each in self.partitions), 'entry')}, no fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimReport:
    """Up to where each partition of the bus is trimmed."""

    places: Sequence[tuple[TrimPlace, int]]
    """Each place, and the number of entries that were removed."""
    refused: Mapping[int, str]
    """Partitions that could not be trimmed, with the reason."""

    @property
    def removed(self) -> int:
        """How many entries were removed in all."""
        return sum(removed for _, removed in self.places)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        rows = [{**asdict(place), "removed": removed} for place, removed in self.places]
        return {"partitions": rows, "removed": self.removed, "refused": dict(self.refused)}

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        shown = sorted((row for row in self.places if row[0].offset or row[1]), key=lambda row: -row[1])
        if shown:
            rows = [(str(each.partition), each.offset, each.held_by, removed) for each, removed in shown[:_MOST_ROWS]]
            yield TextTable(("partition", "up to", "held there by", "removed"), rows)
            yield from _others(len(shown))
        yield f"{counted(self.removed, 'entry')} removed from the bus"
        for number, why in self.refused.items():
            yield Notice(f"partition {number} could not be trimmed: {why}")


def _others(partitions: int) -> Iterator[Part]:
    if partitions > _MOST_ROWS:
        yield f"and {counted(partitions - _MOST_ROWS, 'other partition')}; --json shows all"

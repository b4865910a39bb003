"""What became of the items of a file: counts, and the items that were refused with the reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

MOST_LISTED: Final = 100
"""Refused items that are listed with their place. All are counted."""
_MOST_NAMES: Final = 100
_OTHERS: Final = "others"


class RefusedItem(Exception):
    """An item cannot be imported. The text names the field and the fault, and quotes no value of the item."""


@dataclass(slots=True)
class ImportReport:
    """Counts of an import. All are bounded, however large the file is."""

    events: Counter[str] = field(default_factory=Counter[str])
    """Events by what they are: memories, episodes, entities, facts."""
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])
    """How many items were refused for each reason."""
    listed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Place and reason of the first ``MOST_LISTED`` refused items."""
    repeated: int = 0
    """Items that repeat an earlier one of the file."""
    without_zone: int = 0
    """Times without a zone, which are read as UTC."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Fields and items that have no place here, by name."""
    in_pages: int = 0
    """Items of objects that are pages of an answer."""
    announced: int = 0
    """The largest number of items that a page says there are."""
    has_more: bool = False
    """Whether the last page says that another one follows."""
    first: datetime | None = None
    last: datetime | None = None

    @property
    def missing(self) -> str:
        """Why the file does not hold everything; empty if it says nothing of the kind."""
        if self.announced > self.in_pages:
            return (
                f"it says that there are {self.announced:,} items, but holds {self.in_pages:,}: it is one page of "
                "several: fetch the others, and import them too"
            )
        if self.has_more:
            return (
                f"its last page, after {self.in_pages:,} items, names a next one: fetch the others, and import them too"
            )
        return ""

    def page(self, items: int, announced: int, *, has_more: bool) -> None:
        """Count a page of an answer: its items, how many it says there are, and whether another page follows."""
        self.in_pages += items
        self.announced = max(self.announced, announced)
        self.has_more = has_more

    def refuse(self, place: str, reason: str) -> None:
        """Count a refused item, and list it if there is room."""
        self.refused += 1
        _count(self.reasons, reason, 1)
        if len(self.listed) < MOST_LISTED:
            self.listed.append((place, reason))

    def leave_out(self, name: str, number: int = 1) -> None:
        """Count fields or items that are not imported."""
        _count(self.left_out, name, number)

    def made(self, kind: str, time: datetime | None) -> None:
        """Count an event, and the time that its item has."""
        self.events[kind] += 1
        if time is not None:
            self.first = time if self.first is None else min(self.first, time)
            self.last = time if self.last is None else max(self.last, time)


def _count(counts: Counter[str], name: str, number: int) -> None:
    counts[name if name in counts or len(counts) < _MOST_NAMES else _OTHERS] += number

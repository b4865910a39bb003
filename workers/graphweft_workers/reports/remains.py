"""What remains of a user or an app in each place, before and after an erasure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from graphweft_workers.reports.report import Notice, Part, TextTable

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_workers.replay.remains import PlaceOfRemains


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainsReport:
    """What remains in each place, and which command removes it there."""

    what: str
    """Whose data it is, in words."""
    places: Sequence[PlaceOfRemains]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        left = sum(place.left for place in self.places)
        return {"places": [asdict(place) for place in self.places], "left": left}

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        rows = [(place.name, place.left, place.removed_by or place.note) for place in self.places]
        yield TextTable(("place", "remains", "removed by"), rows, title=f"Data of {self.what}")
        if not any(place.left for place in self.places):
            yield "nothing remains: no place holds anything of this name. Check its spelling if you expected something."


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReport(RemainsReport):
    """What was erased in each place, and what is left."""

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        rows = [(place.name, place.found, place.left, place.note) for place in self.places]
        yield TextTable(("place", "found", "left", ""), rows, title=f"Erased: {self.what}")
        if not any(place.found for place in self.places):
            yield Notice("nothing was found: events name a user by userid, or by user_id in data or in data.context")
        elif not any(place.unfinished for place in self.places):
            yield "it is erased, and no replay brings it back"

"""The note that a mutation worker keeps with a partition's position: what is told, and which apps are parked.

The position itself is the smallest one of all apps. The note says how far the partition was read beyond it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """An app whose events behind ``at`` have not taken effect, while those of other apps have."""

    at: str
    told: str | None = None
    """Up to here its skips and dead letters are written; None: as far as those of the other apps."""
    why: str = "slow"
    """``slow``, or ``unavailable``: its graph does not answer, or refuses work."""
    since: int = 0
    """Unix time in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionNote:
    """What stands beside a position. ``encode`` and ``decode`` are each other's inverse; bad text reads as nothing."""

    told: str = ""
    """Up to here all skips and dead letters are written, parked apps excepted."""
    parked: Mapping[str, Parked] = field(default_factory=dict[str, Parked])
    done: str = ""
    """Where apps are parked: up to here the events of all others took effect."""

    def told_of(self, app_id: str | None) -> str:
        """Return up to which offset skips and dead letters of an app are written."""
        mine = self.parked.get(app_id or "")
        return self.told if mine is None or mine.told is None else mine.told

    def encode(self) -> str:
        """Return the note as short text."""
        parked = {app_id: [each.at, each.told, each.why, each.since] for app_id, each in self.parked.items()}
        return json.dumps(
            {"told": self.told, **({"parked": parked, "done": self.done} if parked else {})}, separators=(",", ":")
        )

    @classmethod
    def decode(cls, text: str) -> PositionNote:
        """Read a note."""
        try:
            read: Any = json.loads(text) if text else {}
            parked = {
                str(app_id): Parked(at=at, told=told, why=why, since=since)
                for app_id, (at, told, why, since) in cast("dict[str, Any]", read.get("parked", {})).items()
            }
            return cls(told=str(read.get("told", "")), parked=parked, done=str(read.get("done", "")))
        except (ValueError, AttributeError, TypeError):
            return cls()

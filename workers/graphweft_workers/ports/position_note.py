"""The note that a worker commits with a partition's position: written dead letters and parked apps.

The position is the smallest one of all apps. The note says how far the partition was read beyond it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from graphweft_workers.ports.offsets import is_after, later, offset_order

READ_BACK: Final = 10_500
"""Entries that a worker reads back at least when it opens a partition, which takes about 0.1 s."""
MOST_PARKED: Final = 24
"""Parked apps of a partition; the note must hold their names."""
_STEP: Final = 1_000
"""``reach`` is rounded up, so that it seldom changes the note alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedApp:
    """An app whose events after ``at`` have not taken effect, while those of other apps have."""

    at: str
    reported: str | None = None
    """Its skips and dead letters are written up to this offset; None: as far as those of other apps."""
    why: str = "slow"
    """``slow``: its graph takes its time; ``slow_writes``: it rests, see ``write_budget``; ``dear_events``: see
    ``app_costs``; ``unavailable``: its graph does not answer or refuses work; ``rules_lost``: see ``lost_rules``;
    ``other_graph``, ``needs_rebuild``: see ``older_graph``; or ``waits``: a job's, see ``job_progress``."""
    since: int = 0
    """Unix time in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionNote:
    """The note beside a position. ``decode`` reverses ``encode`` and reads invalid text as an empty note."""

    reported: str = ""
    """All skips and dead letters of apps that are not parked are written up to this offset."""
    parked: Mapping[str, ParkedApp] = field(default_factory=dict[str, ParkedApp])
    done: str = ""
    """While apps are parked: the events of all other apps took effect up to this offset."""
    reach: int = 0
    """How many entries the windows of copies reach back; see ``duplicates``. Not stored up to ``READ_BACK``."""
    at: str = ""
    """The last entry up to the position, which may be that of a record of the bus behind it; empty if unknown."""
    again: str = ""
    """While events take effect again because a graph was older than the log: up to this offset they had before."""
    again_at: str = ""
    """Up to this offset they have taken effect again; the position may be after it."""

    def reported_of(self, app_id: str | None) -> str:
        """Return the offset up to which skips and dead letters of an app are written."""
        own = self.parked.get(app_id or "")
        return self.reported if own is None or own.reported is None else own.reported

    def resumed(self, reported: str, parked: Mapping[str, ParkedApp], at: str) -> tuple[str, Mapping[str, ParkedApp]]:
        """Return what a later note says of reports while it reads again what this one says was reported.

        ``reported`` and ``parked`` are what the reader knows itself, and ``at`` is its position. Apps that had reported
        less keep their own places.
        """
        if not is_after(self.reported, reported):
            return reported, parked
        found: dict[str, ParkedApp] = {}
        for app_id in (*parked, *(self.parked.keys() - parked.keys())):
            each = parked.get(app_id) or replace(self.parked[app_id], at=at)
            own = reported if app_id not in parked or each.reported is None else each.reported
            found[app_id] = replace(each, reported=later(self.reported_of(app_id), own))
        return (self.reported, found) if len(found) <= MOST_PARKED else (reported, parked)

    def applied(self, position: str, apps: Collection[str] | None = None) -> str:
        """Return the offset up to which the events of some apps, or of all, took effect; ``position`` is the note's."""
        if self.again and is_after(position, self.again_at):
            position = self.again_at
        if not self.parked or apps is None:
            return position
        parked = [self.parked[app_id].at for app_id in apps if app_id in self.parked]
        reached = min(parked, key=offset_order) if parked else self.done
        return reached if is_after(reached, position) else position

    def encode(self) -> str:
        """Return the note as short text."""
        parked = {app_id: [each.at, each.reported, each.why, each.since] for app_id, each in self.parked.items()}
        note: dict[str, object] = {"told": self.reported}
        if parked:
            note |= {"parked": parked, "done": self.done}
        if self.reach > READ_BACK:
            note["reach"] = -(-self.reach // _STEP) * _STEP
        if self.at:
            note["at"] = self.at
        if self.again:
            note["again"] = [self.again, self.again_at]
        return json.dumps(note, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> PositionNote:
        """Return the note that ``encode`` wrote."""
        try:
            read: Any = json.loads(text) if text else {}
            parked = {
                str(app_id): ParkedApp(at=at, reported=reported, why=why, since=since)
                for app_id, (at, reported, why, since) in cast("dict[str, Any]", read.get("parked", {})).items()
            }
            again, at = map(str, read.get("again", ("", "")))
            return cls(
                reported=str(read.get("told", "")), parked=parked, done=str(read.get("done", "")),
                reach=int(read.get("reach", 0)), at=str(read.get("at", "")), again=again, again_at=at,
            )  # fmt: skip
        except (ValueError, AttributeError, TypeError):
            return cls()

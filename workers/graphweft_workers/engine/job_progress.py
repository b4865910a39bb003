"""How far a job is in a partition: up to where it has read, and which apps wait at an earlier place. Pure.

As with the workers that apply events, the committed position is the smallest one of all apps, and its note says how far
the others are. After a restart, the next owner reads from that position and leaves out what was done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphweft_contracts import Event
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.job import JobEvent
from graphweft_workers.ports.offsets import is_after, later, offset_order
from graphweft_workers.ports.position_note import MOST_PARKED, ParkedApp, PositionNote


@dataclass(slots=True, kw_only=True)
class WaitingApp:
    """An app whose events wait, while those of other apps go on."""

    at: CommittedPosition
    """Its events up to here are done."""
    end: CommittedPosition
    """Its events after ``at`` and up to here are in ``seen``."""
    seen: Sequence[JobEvent]
    since: int
    """Unix time in seconds."""
    due: float = 0.0
    """The monotonic time of the next try."""
    attempt: int = 0
    """How often it has failed in a row."""
    unread: int = 0
    """Its events behind ``end``, up to where the partition was read."""
    trimmed: int = 0
    """Entries behind its first place, of whichever app, that left the log before they were read again."""

    def note_read(self, trimmed: int, *, is_all: bool) -> int:
        """Note that ``seen`` was read behind so many entries that left the log.

        Return how many of its events are lost, once all are read that are there (``is_all``).
        """
        self.unread -= len(self.seen)
        self.trimmed += trimmed
        if not is_all:
            return 0
        lost = min(max(0, self.unread), self.trimmed)
        self.unread = self.trimmed = 0
        return lost


@dataclass(slots=True)
class JobProgress:
    """The places of a job in one partition."""

    position: CommittedPosition
    """Up to here all events are done but those of ``waiting``. It begins with what the bus holds, note included."""
    waiting: dict[str, WaitingApp] = field(default_factory=dict[str, WaitingApp])
    """By app."""
    unsent: dict[str, list[Event]] = field(default_factory=dict[str, list[Event]])
    """By app: what follows from its events in hand, but the bus has not taken yet. A restart asks the job again."""
    _before: PositionNote = field(init=False)

    def __post_init__(self) -> None:
        self._before = PositionNote.decode(self.position.note)

    def room(self, apps: Collection[str], end: CommittedPosition) -> bool:
        """Tell whether these apps may wait as well while the position goes on to ``end``: the note must hold all names.

        The apps of an earlier owner count once, and only while the position is not behind what that owner had read.
        """
        return len(self.waiting.keys() | self._open(end).keys() | set(apps)) <= MOST_PARKED

    def is_done(self, app_id: str, offset: str) -> bool:
        """Tell whether an earlier owner of the partition was done with an event."""
        return not is_after(offset, self._before.applied("", (app_id,)))

    def due(self) -> tuple[str, WaitingApp] | None:
        """Return the waiting app that is tried next."""
        return min(self.waiting.items(), key=lambda item: item[1].due, default=None)

    def go_on(self, app_id: str, now: float) -> None:
        """Note that a waiting app is done with its events in hand; it waits no longer if there are no others.

        Its next events are due ``now``, behind those of apps that were due before.
        """
        app = self.waiting[app_id]
        app.at, app.seen, app.attempt, app.due = app.end, (), 0, now
        if not is_after(self.position.offset, app.at.offset):
            del self.waiting[app_id]

    def committed(self) -> CommittedPosition:
        """Return what the bus is to hold."""
        places = [self.position, *(each.at for each in self.waiting.values())]
        parked = {
            app_id: ParkedApp(at=later(self._before.applied("", (app_id,)), place.offset), why="waits", since=since)
            for app_id, place, since in (
                *((each, self.position, app.since) for each, app in self._open(self.position).items()),
                *((each, app.at, app.since) for each, app in self.waiting.items()),
            )
        }
        note = (
            PositionNote(parked=parked, done=later(self._before.done, self.position.offset)).encode() if parked else ""
        )
        return replace(min(places, key=lambda each: offset_order(each.offset)), note=note)

    def _open(self, at: CommittedPosition) -> Mapping[str, ParkedApp]:
        """Return the apps that waited under an earlier owner, if that owner had read beyond a position."""
        return self._before.parked if is_after(self._before.done, at.offset) else {}

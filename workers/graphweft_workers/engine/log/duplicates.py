"""Recognises copies of events.

A producer that gets no answer to a write repeats it, so the log may hold an event twice. An entry is a copy if one of
the last ``WINDOW`` entries of its app in the partition has the same source and id. This depends on the log of the app
alone, so every reader decides alike, in whatever order it takes the apps, and no app pushes out what another one sent.
Beyond the window, numbered events are known by their numbers, see ``series``.

The windows of a partition hold ``MOST`` entries together, which is enough for five apps with full ones. Beyond that
the largest windows shrink, so that all have room for the same number; then the apps that were silent longest go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from graphweft_contracts import wire
from graphweft_workers.engine.log.series import AppRecord, SeriesMarks, SeriesPlace, StoredMarks
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.position_note import READ_BACK

if TYPE_CHECKING:  # commands that only read positions do without rules
    from graphweft_rules.matching.parameters import EventView

WINDOW: Final = 10_000
"""Entries of one app."""
MOST: Final = 5 * WINDOW
"""Entries of all apps of a partition."""
_MARK: Final = READ_BACK - WINDOW
"""Entries of an app between two notes of where they lie."""
REACH: Final = 10 * WINDOW
"""Entries that it reads back at most, if windows of the partition's apps reach back further than ``READ_BACK``."""

type Identity = tuple[str, ...]
"""The app, then what names the event within it."""


def identity_of(entry: Entry, event: EventView) -> Identity:
    """Return a value that is equal for two entries of the same event of the same app; a retry is an event of its own.

    The retry of an entry that was not a valid event is that event.

    Raises ``InvalidEvent`` if the entry is a retry but does not say of which mutation.
    """
    if wire.RETRY in entry.fields:
        retried = wire.retry_of(entry.fields)
        if retried is not None and retried.rule != wire.WHOLE:
            return (event.appid, retried.letter)
    return (event.appid, event.source, event.id)


def _never(offset: str) -> bool:
    return False


class _Window:
    """The last entries of one app."""

    __slots__ = ("last", "marks", "order", "seen", "series")

    def __init__(self, series: SeriesMarks | None = None) -> None:
        self.seen = 0
        """Entries of the app so far."""
        self.order: deque[Identity] = deque()
        """Of the entries in the window."""
        self.last: dict[Identity, int] = {}
        """By identity: the number of its last entry among those of the app."""
        self.marks: deque[tuple[int, int, str]] = deque()
        """Of some entries: their numbers among those of the app and of the partition, and their offsets."""
        self.series = series
        """None for an app without numbered events."""

    def pop(self) -> None:
        """Forget the oldest entry."""
        number = self.seen - len(self.order)
        oldest = self.order.popleft()
        if self.last[oldest] == number:
            del self.last[oldest]
        if self.series is not None:
            self.series.leave(number)

    def stored(self, floor: str, window: int) -> StoredMarks | None:
        """Return the marks of the app's series at a position; None if there is nothing to store."""
        if self.series is None:
            return None
        reached = next((number for number, _, offset in reversed(self.marks) if not is_after(offset, floor)), 0)
        return self.series.stored(floor, reached - window, self.seen)


class RecentEvents:
    """The identities of the last entries of each app of one partition."""

    def __init__(
        self, window: int = WINDOW, most: int = MOST, *, marks: Mapping[str, Mapping[str, int]] | None = None
    ) -> None:
        """``marks`` are those of the series of each app before its first entry here."""
        self._window = window
        self._most = most
        self._apps: dict[str, _Window] = {app: _Window(SeriesMarks(of)) for app, of in (marks or {}).items()}
        """By app; those that were silent longest come first once ``_shrink`` needs it."""
        self._entries = 0
        self._reach: tuple[int, str | None, int] = (0, None, 0)
        """After how many entries and for which position ``reach_at`` was counted, and the result."""
        self._records: dict[str, AppRecord] = {}
        """By app: what is stored of its series."""
        self.size: int = 0
        """Entries in all windows."""
        self.was_read: Callable[[str], bool] = _never
        """Whether the entry at an offset was read back when a partition was opened, and not while it was applied."""

    def is_copy(self, identity: Identity | None, number: SeriesPlace | None = None, offset: str = "") -> bool:
        """Add the next entry of the partition; return whether it is a copy of an earlier one.

        The entries of one app must come in their order. Entries without an identity, which could not be decoded, are
        in no window and are never copies.
        """
        self._entries += 1
        if identity is None:
            return False
        window = self._apps.get(identity[0])
        if window is None:
            window = self._apps[identity[0]] = _Window()
        seen, last, order = window.seen, window.last, window.order
        if not seen % _MARK:
            window.marks.append((seen, self._entries, offset))
        window.seen = seen + 1
        known = identity in last
        if number is not None:
            if window.series is None:
                window.series = SeriesMarks()
            known = known or window.series.is_below(number)
            window.series.add(seen, offset, number)
        last[identity] = seen
        order.append(identity)
        if len(order) > self._window:
            window.pop()
        else:
            self.size += 1
            if self.size > self._most:
                self._shrink()
        return known

    def is_only_its_own_copy(self, identity: Identity, offset: str) -> bool:
        """Tell whether the newest entry is a copy of nothing but the entry at ``offset``, which it retries.

        That one was refused, and had no effect. A worker that was started since, perhaps with other keys, takes it for
        an event all the same when it reads back.
        """
        window = self._apps.get(identity[0])
        return window is not None and self.was_read(offset) and window.order.count(identity) <= 2

    def is_repeated(self, identity: Identity) -> bool:
        """Tell whether the window of an app holds an event more than once."""
        window = self._apps.get(identity[0])
        return window is not None and window.order.count(identity) > 1

    @property
    def has_series(self) -> bool:
        """Whether any app has numbered events."""
        return any(window.series is not None for window in self._apps.values())

    @property
    def records(self) -> Iterable[AppRecord]:
        """What is stored of the marks of the apps' series."""
        return self._records.values()

    def keep(self, record: AppRecord) -> None:
        """Take note of what is stored of an app."""
        self._records[record.app_id] = record

    def due(self, least: int) -> list[str]:
        """Return the apps whose marks are to be stored, at least so many of their entries after the last time."""
        return [
            app for app, window in self._apps.items()
            if window.series is not None and window.series.is_due(window.seen, least)
        ]  # fmt: skip

    def record_of(self, app_id: str, floor: str) -> AppRecord | None:
        """Return what to store of an app before its partition's position becomes ``floor``; see ``keep``."""
        window, before = self._apps.get(app_id), self._records.get(app_id)
        last = None if window is None else window.stored(floor, self._window)
        if last is None:
            return None
        return AppRecord(app_id=app_id, last=last, before=None if before is None else before.at(floor))

    @property
    def reach(self) -> int:
        """Entries of the partition from the oldest one in a window up to now, or up to ``_MARK`` of its app more."""
        return self.reach_at(None)

    def reach_at(self, position: str | None) -> int:
        """Return the same for the windows at a position, which later calls do not go back behind; None is now."""
        if self._reach[:2] == (self._entries, position):
            return self._reach[2]
        first = here = self._entries + 1
        for window in self._apps.values():
            marks = window.marks
            if not marks:  # it has marks of series, and no entry here
                continue
            reached = window.seen
            if position is not None:
                reached = 0
                for number, entries, offset in reversed(marks):
                    if not is_after(offset, position):
                        reached = number
                        break
                    here = min(here, entries)
            while len(marks) > 1 and marks[1][0] <= reached - self._window:
                marks.popleft()
            first = min(first, marks[0][1])
        self._reach = (self._entries, position, max(0, here - first))
        return self._reach[2]

    def _shrink(self) -> None:
        """Forget a tenth of all entries: of the largest windows first, and then whole apps."""
        goal = self._most - self._most // 10
        sizes = sorted(len(window.order) for window in self._apps.values())
        left, room = len(sizes), goal
        for size in sizes:
            if size * left > room:
                break
            room, left = room - size, left - 1
        share = max(1, room // max(1, left))
        for window in self._apps.values():
            while len(window.order) > share:
                window.pop()
        if len(self._apps) > goal:
            latest = sorted(self._apps.items(), key=lambda item: item[1].marks[-1][1] if item[1].marks else 0)[-goal:]
            self._apps = dict(latest)
        self.size = sum(len(window.order) for window in self._apps.values())

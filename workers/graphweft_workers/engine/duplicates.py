"""Recognises copies of events.

A producer that gets no answer to a write repeats it, so the log may hold an event twice. An entry is a copy if one of
the last ``WINDOW`` entries of its app in the partition has the same source and id. This depends on the log of the app
alone, so every reader decides alike, in whatever order it takes the apps, and no app pushes out what another one sent.

The windows of a partition hold ``MOST`` entries together, which is enough for five apps with full ones. Beyond that
the largest windows shrink, so that all have room for the same number; then the apps that were silent longest go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from graphweft_contracts import Event, wire
from graphweft_workers.ports.event_log import Entry

WINDOW: Final = 10_000
"""Entries of one app."""
MOST: Final = 5 * WINDOW
"""Entries of all apps of a partition."""
_MARK: Final = 500
"""Entries of an app between two notes of where they lie."""
READ_BACK: Final = WINDOW + _MARK
"""Entries that a worker reads back at least when it opens a partition, which takes about 0.1 s."""
REACH: Final = 10 * WINDOW
"""Entries that it reads back at most, if windows of the partition's apps reach back further than ``READ_BACK``."""

type Identity = tuple[str, ...]
"""The app, then what names the event within it."""


def identity_of(entry: Entry, event: Event) -> Identity:
    """Return a value that is equal for two entries of the same event of the same app; a retry is an event of its own.

    The retry of an entry that was not a valid event is that event.

    Raises ``InvalidEvent`` if the entry is a retry but does not say of which mutation.
    """
    retried = wire.retry_of(entry.fields)
    if retried is not None and retried.rule != wire.WHOLE:
        return (event.appid, retried.letter)
    return (event.appid, event.source, event.id)


def _never(offset: str) -> bool:
    return False


class _Window:
    """The last entries of one app."""

    __slots__ = ("last", "marks", "order", "seen")

    def __init__(self) -> None:
        self.seen = 0
        """Entries of the app so far."""
        self.order: deque[Identity] = deque()
        """Of the entries in the window."""
        self.last: dict[Identity, int] = {}
        """By identity: the number of its last entry among those of the app."""
        self.marks: deque[tuple[int, int]] = deque()
        """Numbers of some entries, among those of the app and of the partition."""

    def pop(self) -> None:
        """Forget the oldest entry."""
        number = self.seen - len(self.order)
        oldest = self.order.popleft()
        if self.last[oldest] == number:
            del self.last[oldest]


class RecentEvents:
    """The identities of the last entries of each app of one partition."""

    def __init__(self, window: int = WINDOW, most: int = MOST) -> None:
        self._window = window
        self._most = most
        self._apps: dict[str, _Window] = {}
        """By app; those that were silent longest come first once ``_shrink`` needs it."""
        self._entries = 0
        self._reach = (0, 0)
        """After how many entries ``reach`` was counted, and the result."""
        self.size: int = 0
        """Entries in all windows."""
        self.was_read: Callable[[str], bool] = _never
        """Whether the entry at an offset was read back when a partition was opened, and not while it was applied."""

    def is_copy(self, identity: Identity | None) -> bool:
        """Add the next entry of the partition; return whether it is a copy of a recent one.

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
            window.marks.append((seen, self._entries))
        window.seen = seen + 1
        known = identity in last
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
    def reach(self) -> int:
        """Entries of the partition from the oldest one in a window up to now, or up to ``_MARK`` of its app more."""
        if self._reach[0] == self._entries:
            return self._reach[1]
        first = self._entries + 1
        for window in self._apps.values():
            marks = window.marks
            oldest = window.seen - self._window
            while len(marks) > 1 and marks[1][0] <= oldest:
                marks.popleft()
            first = min(first, marks[0][1])
        self._reach = (self._entries, self._entries - first + 1)
        return self._reach[1]

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
            latest = sorted(self._apps.items(), key=lambda item: item[1].marks[-1][1])[-goal:]
            self._apps = dict(latest)
        self.size = sum(len(window.order) for window in self._apps.values())

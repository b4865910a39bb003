"""The entries of a partition that are read and not yet matched, by app: which are next. Pure.

The log keeps the order of an app; between apps the order is free. So each batch takes from all apps in turn, by cost,
and what one app has sent does not hold up the others. The window is bounded: an entry that lies behind more than
``MOST_ENTRIES`` entries, or ``MOST_BYTES``, that are not taken yet is not seen before some of these are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from graphweft_workers.engine.log.read import LoggedEvent, ReadEntry
from graphweft_workers.ports.event_log import CommittedPosition

MOST_ENTRIES: Final = 12_000
MOST_BYTES: Final = 16 * 1024**2
FEW_ENTRIES: Final = 1_000
"""What a window holds at least, while the windows of a worker are full together: four times the limits of one."""
APP_COST: Final = 1024**2
"""Of the entries of one app in a batch; a single entry may cost more."""
_BATCH_COST: Final = 4 * APP_COST
_TURN_COST: Final = 64 * 1024
"""What an app may take before it is the turn of the next one."""
_ENTRY_COST: Final = 256
"""Of an entry, in addition to its bytes."""
_NO_APP: Final = ""

type _Waiting = tuple[int, str, int, int, ReadEntry]
"""Number in the window's order, offset and count of the position before the entry, cost, and the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenEntries:
    """Entries that are next, in the order of the log."""

    entries: Sequence[ReadEntry]
    end: CommittedPosition
    """All entries up to here are taken."""
    ends: dict[str, CommittedPosition] = field(default_factory=dict[str, CommittedPosition])
    """By app: all its entries up to here are taken."""
    count: int
    """Entries that are taken, those without an event included."""


@dataclass(slots=True)
class WindowsTogether:
    """What the windows of all partitions of a worker hold."""

    entries: int = 0
    cost: int = 0

    @property
    def are_full(self) -> bool:
        """Whether each window is to hold ``FEW_ENTRIES`` only."""
        return self.entries >= 4 * MOST_ENTRIES or self.cost >= 4 * MOST_BYTES


class ReadingWindow:
    """The entries after a position; ``add`` and ``take`` keep the order of each app."""

    def __init__(self, position: CommittedPosition, together: WindowsTogether | None = None) -> None:
        self.cursor: CommittedPosition = position
        """The position of the last entry that was added."""
        self._apps: dict[str, deque[_Waiting]] = {}
        """By app, in the order of their turns."""
        self._together = together or WindowsTogether()
        self._number = 0
        self._cost = 0
        self._entries = 0
        self._void = 0

    def __len__(self) -> int:
        """Return the number of entries that wait."""
        return self._entries

    @property
    def is_full(self) -> bool:
        """Whether to take entries before more are added."""
        entries = FEW_ENTRIES if self._together.are_full else MOST_ENTRIES
        return self._entries >= entries or self._cost >= MOST_BYTES

    def clear(self) -> None:
        """Forget all entries: the partition is given up."""
        self._apps.clear()
        self._hold(0, 0)

    def add(self, entries: Sequence[ReadEntry], *, lost: int = 0) -> int:
        """Add the next entries of the log, after ``lost`` ones that it no longer has. Return their cost."""
        offset, count = self.cursor.offset, self.cursor.count + lost
        before, apps = self._cost, self._apps
        held, size = self._entries, self._cost
        for each in entries:
            app_id = each.plain.appid if isinstance(each, LoggedEvent) else _NO_APP if each.error else None
            if app_id is None:
                self._void += 1
            else:
                cost = each.size + _ENTRY_COST
                waiting = apps.get(app_id)
                if waiting is None:
                    waiting = apps[app_id] = deque()
                waiting.append((self._number, offset, count, cost, each))
                self._number += 1
                held += 1
                size += cost
            offset, count = each.entry.offset, count + 1
        self.cursor = CommittedPosition(offset=offset, count=count)
        self._hold(held, size)
        return self._cost - before

    def take(self, limit: int, *, free: Collection[str] = ()) -> TakenEntries:
        """Take up to ``limit`` entries, from all apps in turn; those of the apps in ``free`` all, and beyond the limit.

        At least one entry is taken if there is any.
        """
        found: list[_Waiting] = []
        last: dict[str, _Waiting] = {}
        everything = self._entries <= limit and self._cost <= APP_COST
        for app_id in list(self._apps) if everything else [app_id for app_id in self._apps if app_id in free]:
            waiting = self._apps.pop(app_id)
            found += waiting
            last[app_id] = waiting[-1]
        if self._apps:
            self._take_in_turn(found, last, len(found) + limit)
        left = self._entries - len(found)
        self._hold(left, self._cost - sum([each[3] for each in found]) if left else 0)
        if len(last) > 1:
            found.sort()  # by number
        void, self._void = self._void, 0
        ends = {
            app_id: CommittedPosition(offset=each.entry.offset, count=count + 1)
            for app_id, (_, _, count, _, each) in last.items()
        }
        return TakenEntries(entries=[each[4] for each in found], end=self._end(), ends=ends, count=len(found) + void)

    def _hold(self, entries: int, cost: int) -> None:
        self._together.entries += entries - self._entries
        self._together.cost += cost - self._cost
        self._entries, self._cost = entries, cost

    def _take_in_turn(self, found: list[_Waiting], last: dict[str, _Waiting], limit: int) -> None:
        turns = deque(self._apps)
        spent = dict.fromkeys(turns, 0)
        total = 0
        while turns and len(found) < limit and total < _BATCH_COST:
            app_id = turns.popleft()
            waiting = self._apps.pop(app_id)
            turn = 0
            while waiting and len(found) < limit:
                cost = waiting[0][3]
                if spent[app_id] and spent[app_id] + cost > APP_COST:
                    spent[app_id] = APP_COST
                    break
                if turn and turn + cost > _TURN_COST:
                    break
                found.append(waiting.popleft())
                turn += cost
                spent[app_id] += cost
            total += turn
            if turn:
                last[app_id] = found[-1]
            if waiting:
                self._apps[app_id] = waiting  # behind the others, in the next batch too
                if spent[app_id] < APP_COST:
                    turns.append(app_id)

    def _end(self) -> CommittedPosition:
        first = min((waiting[0] for waiting in self._apps.values()), key=lambda each: each[0], default=None)
        return self.cursor if first is None else CommittedPosition(offset=first[1], count=first[2])

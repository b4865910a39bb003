"""The state machine of one app of a partition: what it does, which events wait for it, and why it is behind.

::

                 give, park                   a slot is free
        IDLE ───────────────▶ WAITING ─────────────────────────▶ APPLYING
         ▲ ▲                    ▲  ▲       done, more waits        │ │ │
         │ │                    │  └───────────────────────────────┘ │ │
         │ └────────────────────┼──────── done, nothing waits ───────┘ │ takes long, or is set apart
         │                      │ set apart no longer                  ▼
         └──────────────────────┴──────────────────────────────────── SLOW
              done                                                     │ ▲
                                                             it fails  ▼ │ it tries again
                          UNAVAILABLE · NEEDS_REBUILD · OTHER_GRAPH · RULES_LOST · RESTING

An app that had trouble is *set apart* for a while: it needs no slot, and the others do not wait for it. Beside its
state, an app is *parked* or not. One that is parked reads its events from the log again, and takes none meanwhile: it
does so in any of the states but ``IDLE``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from graphweft_contracts.clock import Clock
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import LoggedEvent, Skip
from graphweft_workers.ports.event_log import CommittedPosition, Entry
from graphweft_workers.ports.offsets import is_after, later
from graphweft_workers.ports.position_note import ParkedApp
from graphweft_workers.support.timing import QueueTiming

REREAD_EVENTS: Final = 200
"""Entries that a parked app reads at once at most, unless it is alone: more would let it hold the server for longer."""
_DEAR: Final = "dear_events"


class State(Enum):
    """What an app does. The value is what ``status`` says of an app that is behind."""

    IDLE = "idle"
    """It has no events that have not taken effect."""
    WAITING = "waiting"
    """It waits for a slot: so many apps of a partition are written at the same time."""
    APPLYING = "applying"
    """It reads or applies events, and has a slot."""
    SLOW = "slow"
    """It does so without a slot."""
    UNAVAILABLE = "unavailable"
    """Its graph did not answer or refused work: it waits before it tries again."""
    NEEDS_REBUILD = "needs_rebuild"
    """It looks from time to time whether its graph was rebuilt."""
    OTHER_GRAPH = "other_graph"
    """It looks from time to time whether the graph under its name is its own again."""
    RULES_LOST = "rules_lost"
    """It looks from time to time for a lost rule set."""
    RESTING = "slow_writes"
    """Its writes kept the graph server from others: it waits until it may go on."""


_SLOW: Final = frozenset(State) - {State.IDLE, State.WAITING, State.APPLYING}
_BEHIND_AT_ONCE: Final = frozenset(
    state.value for state in (State.UNAVAILABLE, State.NEEDS_REBUILD, State.OTHER_GRAPH, State.RESTING)
)
"""Troubles for which an app counts as behind before it has been for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedBatch:
    """The events of one app in one batch; ``start`` is the position before the batch."""

    start: CommittedPosition
    events: Sequence[LoggedEvent] = ()
    skips: Sequence[Skip] = ()
    """Counted once the events have taken effect: until then a restart may bring other rules."""
    size: int = 0
    """Bytes of the entries."""


@dataclass(slots=True, kw_only=True)
class Parking:
    """What a parked app reads from the log again."""

    position: CommittedPosition
    """It has applied its events up to here, with those in hand."""
    reported: str = ""
    """Skips and dead letters up to this offset are written."""
    recent: RecentEvents | None = None
    """Its recent events at ``position``; None before the first page that needs them."""
    page: int = REREAD_EVENTS
    """Entries to read at once, by their size."""
    most: int = REREAD_EVENTS
    """Entries to read at once at most."""
    end: CommittedPosition | None = None
    """The end of the page in hand; None if the events in hand were there before the app was parked."""


class RereadPage(NamedTuple):
    """Events that a parked app has read again."""

    batch: QueuedBatch | None
    """None without any."""
    end: CommittedPosition


@dataclass(slots=True, kw_only=True, eq=False)
class AppQueue:
    """One app of one partition. Each transition is one method."""

    app_id: str
    slots: asyncio.Semaphore
    """Of the partition: an app has one exactly while it is ``APPLYING``."""
    clock: Clock
    timing: QueueTiming
    state: State = State.IDLE
    parking: Parking | None = None
    """None while it is not parked."""
    waiting: deque[QueuedBatch] = field(default_factory=deque[QueuedBatch])
    waiting_events: int = 0
    waiting_bytes: int = 0
    """Of the entries in ``waiting``."""
    applying: list[QueuedBatch] = field(default_factory=list[QueuedBatch])
    """The batches in hand; they stay until all of their events have taken effect."""
    taken: CommittedPosition | None = None
    """Its events up to here were given to the queue, or dropped while it was parked; None if none were."""
    busy_since: float = 0.0
    """When it got events, or last got on, on the monotonic clock."""
    given_before: int = 0
    """Events that the partition had given to its apps by then; those of the same batch do not count."""
    apart_until: float = 0.0
    """Until then it is set apart, on the monotonic clock."""
    why: str = State.SLOW.value
    """Its last trouble, for ``status``."""
    behind_since: float = 0.0
    """Unix time at which it fell behind; 0 while it has not."""
    failures: int = 0
    """Calls that failed since it last got on."""
    task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it has events that have not taken effect."""
        return self.state is not State.IDLE

    @property
    def is_parked(self) -> bool:
        """Whether it takes no events, and reads them from the log later."""
        return self.parking is not None

    @property
    def floor(self) -> CommittedPosition | None:
        """The position before the first event that has not taken effect."""
        if self.applying:
            return self.applying[0].start
        if self.parking is not None:
            return self.parking.position
        return self.waiting[0].start if self.waiting else None

    def is_apart(self, now: float) -> bool:
        """Tell whether the others do not wait for it since it had trouble not long ago."""
        return self.apart_until > now

    @property
    def is_slow(self) -> bool:
        """Whether the others do not wait for it."""
        return self.state in _SLOW

    def is_stuck(self, now: float) -> bool:
        """Tell whether it may be parked to make room for the events of others."""
        return self.is_apart(now) or now - self.busy_since >= self.timing.park_s

    def shown(self, now: float) -> ParkedApp | None:
        """Return what ``status`` says of it; None unless it is behind."""
        if not (self.is_parked or self._is_behind(now)) or (floor := self.floor) is None:
            return None
        reported = self.reported_of_parked if self.is_parked else None
        if reported is None:
            self._falls_behind()
        return ParkedApp(at=floor.offset, reported=reported, why=self.why, since=int(self.behind_since))

    def _is_behind(self, now: float) -> bool:
        if self.why not in _BEHIND_AT_ONCE and now - self.busy_since < self.timing.park_s:
            return False
        return self.is_slow or self._takes_long(now)

    def _takes_long(self, now: float) -> bool:
        return self.is_apart(now) or now - self.busy_since > self.timing.batch_s

    @property
    def reported_of_parked(self) -> str:
        """The offset up to which its skips and dead letters are written; skips in hand are not counted yet."""
        assert self.parking is not None
        if self.parking.end is None and any(batch.skips for batch in self.applying):
            return self.applying[0].start.offset
        return self.parking.reported

    # Transitions

    def give(self, batch: QueuedBatch, events: int) -> None:
        """Let a batch wait; the partition has given ``events`` before it."""
        self._begin(events)
        self.waiting.append(batch)
        self.waiting_events += len(batch.events)
        self.waiting_bytes += batch.size

    def park(self, given: CommittedPosition, reported: str, events: int) -> None:
        """Read again what waits, and what comes after ``given``; see ``Parking.reported`` and ``give``."""
        self._begin(events)
        position = self.waiting[0].start if self.waiting else given
        self.parking = Parking(position=position, reported=later(reported, position.offset))
        self._drop()

    def park_dear(self, given: CommittedPosition, reported: str, events: int) -> None:
        """Park an app whose events take much of the worker's time: it goes on at a pace of its own."""
        self._set_apart(_DEAR)
        self._falls_behind()
        self.park(given, reported, events)

    def look(self, now: float) -> None:
        """Note whether it is slow: if it applies for long, it goes on without its slot."""
        if self.state is State.APPLYING and self._takes_long(now):
            self._move(State.SLOW)
        if self.is_slow:
            self._falls_behind()

    async def wait_for_slot(self) -> None:
        """Return when it may apply events. Set apart it needs no slot: any number of apps may have trouble."""
        if self.state is State.APPLYING:
            return
        if self.is_apart(self.clock.monotonic()):
            self._move(State.SLOW)
            return
        self._move(State.WAITING)
        await self.slots.acquire()
        self._move(State.APPLYING)
        self.busy_since = self.clock.monotonic()

    def take(self) -> None:
        """Take what waits in hand."""
        self.applying.extend(self.waiting)
        self._drop()

    def take_page(self, page: RereadPage) -> None:
        """Take in hand what a parked app has read again."""
        assert self.parking is not None
        self.parking.end = page.end
        if page.batch is not None:
            self.applying.append(page.batch)

    def done(self, given: CommittedPosition, events: int) -> bool:
        """What was in hand has taken effect: it waits for its next turn, if it has more. Tell whether it caught up.

        ``given`` is where a parked app has caught up; ``events``: see ``give``.
        """
        now, parking = self.clock.monotonic(), self.parking
        if now - self.busy_since >= self.timing.park_s:
            self._set_apart(_DEAR if self.why == _DEAR else State.SLOW.value)
        self.applying.clear()
        self.busy_since, self.given_before, self.failures = now, events, 0
        caught_up = False
        if parking is not None and parking.end is not None:
            parking.position, parking.end = parking.end, None
            parking.reported = later(parking.reported, parking.position.offset)
            caught_up = not is_after(given.offset, parking.position.offset)
            if caught_up:
                self.parking, self.why = None, State.SLOW.value
        if self.waiting or self.parking is not None:
            self._move(State.SLOW if self.is_apart(now) else State.WAITING)
        else:
            self._move(State.IDLE)
            if not self.is_apart(now):
                self.behind_since = 0.0
        return caught_up

    def halt(self, state: State) -> None:
        """Wait for something outside of the app, set apart."""
        self._move(state)
        self._set_apart(state.value)
        self._falls_behind()

    def rested(self) -> None:
        """Go on after a rest."""
        self.busy_since = self.clock.monotonic()

    def rejoin(self) -> None:
        """Go on with a slot, as if nothing had been: any number of apps may have waited for the same."""
        self.apart_until, self.why = 0.0, State.SLOW.value

    def begin_again(self, reported: str) -> None:
        """Read all events again, parked; see ``Parking.reported``."""
        if self.parking is not None:
            reported = later(self.parking.reported, reported)
        self.applying.clear()
        self._drop()
        self.parking = Parking(position=CommittedPosition(), reported=reported)

    def leave_slot(self) -> None:
        """Give up its slot: its task ends."""
        if self.state is State.APPLYING:
            self._move(State.WAITING)

    def _begin(self, events: int) -> None:
        if self.state is State.IDLE:
            now = self.clock.monotonic()
            self.busy_since, self.given_before = now, events
            if not self.is_apart(now):
                self.why = State.SLOW.value
            self._move(State.SLOW if self.is_apart(now) else State.WAITING)

    def _drop(self) -> None:
        self.waiting.clear()
        self.waiting_events = self.waiting_bytes = 0

    def _set_apart(self, why: str) -> None:
        self.apart_until, self.why = self.clock.monotonic() + self.timing.cool_down_s, why
        if self.state is State.APPLYING:
            self._move(State.SLOW)

    def _falls_behind(self) -> None:
        self.behind_since = self.behind_since or self.clock.now().timestamp()

    def _move(self, state: State) -> None:
        if self.state is State.APPLYING and state is not State.APPLYING:
            self.slots.release()
        self.state = state


def size_of(entries: Iterable[Entry]) -> int:
    """Return the bytes of the values of entries."""
    return sum([sum(map(len, entry.fields.values())) for entry in entries])

"""The queue of one app of a partition: which events wait, and how far the app's graph is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from graphweft_workers.engine.duplicates import RecentEvents
from graphweft_workers.engine.read import MatchedEvent, Skip
from graphweft_workers.ports.event_log import Committed, Entry
from graphweft_workers.ports.graph_store import Checkpoint

REREAD_EVENTS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedBatch:
    """The events of one app in one batch; ``start`` is the position before the batch."""

    start: Committed
    events: Sequence[MatchedEvent] = ()
    skips: Sequence[Skip] = ()
    """Counted once the events have taken effect: until then a restart may bring other rules."""
    size: int = 0
    """Bytes of the entries."""


@dataclass(slots=True, kw_only=True, eq=False)
class AppQueue:
    """One app of one partition."""

    app_id: str
    checkpoint: Checkpoint | None = None
    """Where the graph stands; None while that is unknown."""
    waiting: deque[QueuedBatch] = field(default_factory=deque[QueuedBatch])
    waiting_events: int = 0
    waiting_bytes: int = 0
    """Of the entries in ``waiting``."""
    applying: list[QueuedBatch] = field(default_factory=list[QueuedBatch])
    busy_since: float = 0.0
    given_before: int = 0
    """Events that the partition had given to its apps before the batch with which this one began, or last got on."""
    slow_until: float = 0.0
    trouble: str = "slow"
    troubled_at: float = 0.0
    """Wall-clock time at which the app fell behind; 0 while it has not."""
    behind: Committed | None = None
    """Set while the app is parked: its events after this position are read again."""
    taken: Committed | None = None
    """Its events up to here were given to the queue, or dropped while it was parked; None if none were."""
    page: int = REREAD_EVENTS
    """Entries to read again at once, by their size."""
    reported: str = ""
    """Of a parked app: skips and dead letters up to this offset are written."""
    recent: RecentEvents | None = None
    reread_end: Committed | None = None
    """The end of the events that were read again for ``applying``; None if they came from ``waiting``."""
    has_slot: bool = False
    awaits_slot: bool = False
    restatement: int = 0
    """The last one that was known before the app last looked whether its events need lost rules."""
    rules_checked: bool = False
    """Whether the rules cover the plan that the graph held when the worker opened it."""
    task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether the app has events that have not taken effect."""
        return bool(self.applying or self.waiting or self.behind is not None)

    @property
    def floor(self) -> Committed | None:
        """The position before the first event that has not taken effect."""
        if self.applying:
            return self.applying[0].start
        if self.behind is not None:
            return self.behind
        return self.waiting[0].start if self.waiting else None

    @property
    def reported_while_parked(self) -> str:
        """Like ``reported``, but before the skips of ``applying``, which are not counted yet."""
        if self.reread_end is None and any(batch.skips for batch in self.applying):
            return self.applying[0].start.offset
        return self.reported

    def give(self, batch: QueuedBatch) -> None:
        """Let a batch wait."""
        self.waiting.append(batch)
        self.waiting_events += len(batch.events)
        self.waiting_bytes += batch.size

    def begin(self) -> None:
        """Apply what waits."""
        self.applying.extend(self.waiting)
        self.drop()

    def drop(self) -> None:
        """Forget what waits."""
        self.waiting.clear()
        self.waiting_events = self.waiting_bytes = 0


def size_of(entries: Iterable[Entry]) -> int:
    """Return the bytes of the values of entries."""
    return sum([sum(map(len, entry.fields.values())) for entry in entries])

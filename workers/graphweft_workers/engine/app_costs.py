"""What the events of apps cost the worker itself: the time in which they are matched.

All apps of a worker share one processor. An app whose events take much of it leaves the batches that it shares with
others: it is parked, and reads its events again at a pace of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.timing import TIMING, CostTiming
from graphweft_workers.work_pace import WorkPace

FIRST_PAGE: Final = 8
"""Entries that a parked app with dear events reads first; then as many as fit its time."""
_MANY: Final = 1_000
"""Apps with a debt; beyond that, those are forgotten that have paid."""


class AppCosts:
    """The debts of apps in seconds. They last as long as the process, and nothing but the pace depends on them."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, timing: CostTiming = TIMING.costs) -> None:
        self._clock = clock
        self._timing = timing
        self._debts: dict[str, tuple[float, float]] = {}
        """By app: its debt, and when that was so."""
        self.pace: WorkPace = WorkPace(clock, least_s=timing.least_s, rest=timing.rest, most_rest_s=timing.most_rest_s)
        """Of the parked apps: one at a time does its work, so that half of the time is for the others."""
        self.least_s: float = timing.least_s
        """Events that take less are not counted."""

    def charge(self, app_id: str, seconds: float) -> None:
        """Count what an event took."""
        if len(self._debts) >= _MANY:
            self._debts = {each: debt for each, debt in self._debts.items() if self._left(each)}
        self._debts[app_id] = (self._left(app_id) + seconds, self._clock.monotonic())

    def over(self) -> Collection[str]:
        """Return the apps that have taken more than their share."""
        if not self._debts:
            return ()
        return {app_id for app_id in self._debts if self._left(app_id) > self._timing.burst_s}

    def page(self, entries: int, seconds: float) -> int | None:
        """Return how many entries a parked app reads next if so many took so long; None for any number."""
        if seconds <= self._timing.page_s:
            return None
        return max(1, int(entries * self._timing.page_s / seconds))

    def _left(self, app_id: str) -> float:
        debt, since = self._debts.get(app_id, (0.0, 0.0))
        return max(0.0, debt - self._timing.share * (self._clock.monotonic() - since))

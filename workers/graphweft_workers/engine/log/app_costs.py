"""What the events of apps cost the worker itself: the time of a processor that matching them takes.

All apps of a worker share one processor. An app whose events take much of it leaves the batches that it shares with
others: it is parked, and reads its events again at a pace of its own. One event may take a second, so that who waits
for its end waits too long. So an app leaves before the first event whose conditions may take much, unless its events
have taken much less than theirs might.

The time is that of the processor: an app pays neither for a busy machine nor for what others do meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules.matching.condition_cost import MOST_STEPS
from graphweft_workers.support.timing import TIMING, CostTiming
from graphweft_workers.support.work_pace import WorkPace

_MANY: Final = 1_000
"""Apps with a debt; beyond that, those are forgotten that have paid."""


class AppCosts:
    """The debts of apps in seconds. They last as long as the process, and nothing but the pace depends on them."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, timing: CostTiming = TIMING.costs) -> None:
        self._clock = clock
        self._timing = timing
        self._debts: dict[str, tuple[float, float]] = {}
        """By app: its debt, and when that was so."""
        self._steps_s: BoundedDict[str, float] = BoundedDict()
        """By app: about the longest time that a step of its latest events took, of those that they might have taken."""
        self.pace: WorkPace = WorkPace(clock, least_s=timing.least_s, rest=timing.rest, most_rest_s=timing.most_rest_s)
        """Of the parked apps: one at a time does its work, so that half of the time is for the others."""
        self.least_s: float = timing.least_s
        """Events that take less are not counted."""

    def charge(self, app_id: str, seconds: float, steps: int = 0) -> None:
        """Count what an event took, whose conditions might have taken so many steps."""
        if steps > MOST_STEPS:
            self._steps_s[app_id] = max(seconds / steps, self._timing.fading * self._step_s(app_id))
        if seconds < self.least_s:
            return
        if len(self._debts) >= _MANY:
            self._debts = {each: debt for each, debt in self._debts.items() if self._left(each)}
        owed = min(self._timing.most_s, self._left(app_id) + seconds)
        self._debts[app_id] = (owed, self._clock.monotonic())

    def may_be_dear(self, app_id: str, steps: int) -> bool:
        """Tell whether one event, whose conditions may take so many steps, may take more than an app's share."""
        return steps * self._step_s(app_id) > self._timing.burst_s

    def over(self) -> Collection[str]:
        """Return the apps that have taken more than their share."""
        if not self._debts:
            return ()
        return {app_id for app_id in self._debts if self._left(app_id) > self._timing.burst_s}

    def _step_s(self, app_id: str) -> float:
        return self._steps_s.get(app_id, self._timing.step_s)

    def _left(self, app_id: str) -> float:
        debt, since = self._debts.get(app_id, (0.0, 0.0))
        return max(0.0, debt - self._timing.share * (self._clock.monotonic() - since))

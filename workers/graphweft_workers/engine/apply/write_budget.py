"""How long the writes of an app may keep a graph server from the work of others.

On a server where nothing else runs while a write does its work, an app whose writes take long rests afterwards: what
it costs the others stays a small share of the time. From then on, its partitions write one after the other: else each
of them would have a long write between two rests. A write that ran into its time limit is tried once more, alone and
with more time, when the app has rested. One that fails again becomes a dead letter.
"""

from __future__ import annotations

import asyncio

from graphweft_contracts import GraphUnavailable
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.graph_store import WriteLimit
from graphweft_workers.support.timing import TIMING, WriteTiming


class SlowWrites(GraphUnavailable):
    """The writes of an app took too long: it goes on after ``retry_after_s`` seconds."""


class WriteBudget:
    """Which apps rest, and which of their mutations get more time. It lasts as long as the process."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, timing: WriteTiming = TIMING.writes) -> None:
        self._clock = clock
        self._timing = timing
        self._free_at: BoundedDict[str, float] = BoundedDict()
        """By app: when it may write again, on the monotonic clock."""
        self._turns: BoundedDict[str, asyncio.Lock] = BoundedDict()
        """By app whose writes took long."""
        self._ran_long: BoundedDict[tuple[str, str], None] = BoundedDict()
        """App and statement of mutations that ran into the short limit."""

    def rest_s(self, app_id: str) -> float:
        """Return for how many seconds the app is to write nothing."""
        free_at = self._free_at.get(app_id)
        left = 0.0 if free_at is None else free_at - self._clock.monotonic()
        if free_at is not None and left <= 0:
            del self._free_at[app_id]
        return max(0.0, left)

    def turn(self, app_id: str) -> asyncio.Lock | None:
        """Return what to hold for a write, and for its charge; None for an app whose writes took not long so far."""
        return self._turns.get(app_id)

    def charge(self, app_id: str, held_s: float) -> None:
        """Let an app rest for a write of a single row that kept the server from other work, and for all before it."""
        timing = self._timing
        if held_s >= timing.least_s:
            is_long = held_s >= timing.long_s
            self._rest(app_id, self.rest_s(app_id) + held_s * (timing.long_rest if is_long else timing.rest))
            if is_long and app_id not in self._turns:
                self._turns[app_id] = asyncio.Lock()

    def limit(self, app_id: str, statement: str) -> WriteLimit:
        """Return how long a row of a statement may take that is alone."""
        return "long" if (app_id, statement) in self._ran_long else "short"

    def timed_out(self, app_id: str, statement: str, limit: WriteLimit) -> bool:
        """Note that a lone row ran into its limit; tell whether it is to be tried once more, after a rest.

        Those with the short limit are, also if another partition has found meanwhile that the statement needs more.
        """
        self._rest(app_id, self._timing.again_s)
        self._ran_long[app_id, statement] = None
        return limit == "short"

    def was_quick(self, app_id: str, statement: str) -> None:
        """Note that a row with the long limit needed no more than the short one."""
        self._ran_long.pop((app_id, statement), None)

    def slow_writes(self, app_id: str) -> SlowWrites:
        """Return the error that lets the app rest."""
        left = self.rest_s(app_id)
        return SlowWrites(
            f"writes of {app_id!r} take long, and on some graph servers nobody else can read or write meanwhile: the "
            f"app goes on in {left:.1f} s. `graphweft lint` names mutations that compute after their first write",
            retry_after_s=left,
        )

    def _rest(self, app_id: str, seconds: float) -> None:
        now = self._clock.monotonic()
        self._free_at[app_id] = max(self._free_at.get(app_id, now), now + seconds)

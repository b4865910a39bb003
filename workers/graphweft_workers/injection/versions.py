"""The versions of apps' graphs: what all marks of a graph say, read by one small query that requests share.

A request may rely on marks only if they were read after it came: else they could miss a write that was confirmed to
its sender before. So it shares a query that has not been sent yet, and none that is under way: of an app there is one
at the graph and one that waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from graphweft_contracts import GraphUnavailable
from graphweft_workers.graph.store import GraphStore, Mark
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker

_LIMIT_S: Final = 1.0
"""Of one query for marks, which takes a millisecond."""
_PATIENCE_S: Final = 0.05
"""How long the next query waits for the one at the graph. With the limit it bounds what a graph that stands still
collects: 20 queries for an app."""
_REMEMBERED: Final = 10_000
"""Apps; their names come from outside, so there is no end of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Version:
    """What a graph was at. As long as nothing is written it is the same object, so it is compared with ``is``."""

    marks: Mapping[int, Mark]
    seen: float
    """Monotonic time at which it was first seen."""


@dataclass(slots=True, kw_only=True)
class _App:
    last: Version | None = None
    last_sent: int = 0
    """The number of the query that ``last`` was seen by."""
    sent: int = 0
    flying: asyncio.Task[Version] | None = None
    waiting: asyncio.Task[Version] | None = None


@dataclass(slots=True)
class Versions:
    """Reads versions, and knows those last seen."""

    graph: GraphStore
    breaker: Breaker
    background: Background
    _apps: OrderedDict[str, _App] = field(default_factory=OrderedDict[str, _App])

    def last(self, app_id: str) -> Version | None:
        """Return the version last seen; None when there is none."""
        app = self._apps.get(app_id)
        return app.last if app else None

    def read(self, app_id: str) -> asyncio.Task[Version]:
        """Return a task that gives the version at a time from now on, or raises what ``GraphStore.marks`` raises.

        It is shared: wait for it with ``asyncio.wait``, or shielded.
        """
        app = self._apps.get(app_id)
        if app is None:
            app = self._apps[app_id] = _App()
            if len(self._apps) > _REMEMBERED:
                self._apps.popitem(last=False)
        if app.waiting is None:
            app.waiting = self.background.start(self._fly(app_id, app, app.flying))
        return app.waiting

    def is_told(self, version: Version | None, at: float) -> bool:
        """Return whether rows that are asked for at a time ``at`` are the version's rows as long as it is the last one.

        Never for a graph without marks: whatever is written there is not written by the engine.
        """
        return version is not None and bool(version.marks) and at >= version.seen + self.graph.settle_s

    async def _fly(self, app_id: str, app: _App, before: asyncio.Task[Version] | None) -> Version:
        if before is not None and not before.done():
            await asyncio.wait([before], timeout=_PATIENCE_S)
        # From here on it may be too early for whoever comes.
        app.flying, app.waiting = app.waiting, None
        app.sent += 1
        number = app.sent
        try:
            marks = await self.graph.marks(app_id, timeout_s=_LIMIT_S)
        except GraphUnavailable:
            self.breaker.failed(app_id)
            raise
        self.breaker.succeeded(app_id)
        # What was sent later has seen at least as much, and later than whoever waits for this one came.
        if app.last is None or number > app.last_sent:
            app.last_sent = number
            if app.last is None or app.last.marks != marks:
                app.last = Version(marks=marks, seen=time.monotonic())
        return app.last

"""The versions of apps' graphs: all checkpoints of a graph, read by one small query that requests share.

A request may rely only on checkpoints that were read after it arrived; earlier ones could miss a write that its sender
knows of. So it shares a query that is not sent yet, never one under way. Per app, one query is at the graph and one
waits for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from graphweft_contracts import GraphUnavailable
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore
from graphweft_workers.support.timing import TIMING, ContextTiming


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Version:
    """The state of a graph. Until the next write it stays the same object, so compare it with ``is``."""

    checkpoints: Mapping[int, Checkpoint]
    seen: float
    """Monotonic time of the first read that returned it."""


@dataclass(slots=True, kw_only=True)
class _App:
    last: Version | None = None
    last_sent: int = 0
    """The number of the query that returned ``last``."""
    sent: int = 0
    """Number of queries so far."""
    sent_at: float = -math.inf
    """Monotonic time of the last query."""
    running: asyncio.Task[Version] | None = None
    waiting: asyncio.Task[Version] | None = None


@dataclass(slots=True)
class GraphVersions:
    """Reads versions, and keeps the last one of each app."""

    graph: GraphStore
    breaker: Breaker
    background: Background
    clock: Clock = SYSTEM_CLOCK
    timing: ContextTiming = TIMING.context
    _apps: BoundedDict[str, _App] = field(default_factory=BoundedDict[str, _App])

    def last(self, app_id: str) -> Version | None:
        """Return the last version that was read, if any."""
        app = self._apps.get(app_id)
        return app.last if app else None

    def refresh(self, app_id: str) -> None:
        """Read the version in the background, unless the last one is recent.

        This is enough for rows to be stored: they may be newer than the version that they are stored with.
        """
        app = self._apps.get(app_id)
        if app is None or app.last is None or self.clock.monotonic() >= app.sent_at + self.timing.version_recent_s:
            self.read(app_id)

    def read(self, app_id: str) -> asyncio.Task[Version]:
        """Return a task that reads the version from now on; it raises as ``GraphStore.checkpoints`` does.

        Requests share the task: wait for it with ``asyncio.wait``, or shielded.
        """
        app = self._apps.get(app_id)
        if app is None:
            app = self._apps[app_id] = _App()
        if app.waiting is None:
            app.waiting = self.background.start(self._read(app_id, app, app.running))
        return app.waiting

    def is_settled(self, version: Version | None, at: float) -> bool:
        """Tell whether rows of a query that is sent at ``at`` stay valid as long as ``version`` is the last one.

        False for a graph without checkpoints: the engine does not write it.
        """
        return version is not None and bool(version.checkpoints) and at >= version.seen + self.graph.settle_s

    async def _read(self, app_id: str, app: _App, before: asyncio.Task[Version] | None) -> Version:
        if before is not None and not before.done():
            await asyncio.wait([before], timeout=self.timing.version_turn_s)
        # Requests that arrive from here on must not share this query.
        app.running, app.waiting = app.waiting, None
        app.sent += 1
        number = app.sent
        app.sent_at = self.clock.monotonic()
        try:
            checkpoints = await self.graph.checkpoints(app_id, timeout_s=self.timing.version_s)
        except GraphUnavailable:
            self.breaker.failed(app_id)
            raise
        self.breaker.succeeded(app_id)
        # A later query has returned at least this state, and was sent after the requests of this one arrived.
        if app.last is None or number > app.last_sent:
            app.last_sent = number
            if app.last is None or app.last.checkpoints != checkpoints:
                app.last = Version(checkpoints=checkpoints, seen=self.clock.monotonic())
        return app.last

"""Whether the graphs of apps are as new as the bus says: an older copy may hold what was erased, or a restated past.

The graph says what it was made of. That is read at most once a second, and only of apps for which the bus says what
their graph needs to have: those of which something was erased, or whose past was restated.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.injection.purges import PurgeFollower
from graphweft_workers.ports.graph_basis import GraphBasis, why_older
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, ContextTiming

logger = get_logger("graphweft.injection")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Age:
    """What a graph said of itself."""

    needed: GraphBasis
    """What it was compared with."""
    seen: float
    """Monotonic time at which it was asked."""
    older: str
    """Why it is older; empty: it is not."""


@dataclass(slots=True)
class GraphAges:
    """Compares graphs with what the bus says of them."""

    graph: GraphStore
    purges: PurgeFollower
    breaker: Breaker
    background: Background
    clock: Clock = SYSTEM_CLOCK
    timing: ContextTiming = TIMING.context
    _ages: BoundedDict[str, _Age] = field(default_factory=BoundedDict[str, _Age])
    _asking: dict[str, asyncio.Task[_Age]] = field(default_factory=dict[str, "asyncio.Task[_Age]"])

    async def older(self, app_id: str, until: float) -> str:
        """Return why an app's graph must not be served; empty: it may be.

        Raises ``GraphUnavailable`` if that is not known by the monotonic time ``until``. The graph has said so within
        ``ContextTiming.age_s``.
        """
        if not self.purges.has_read:
            await asyncio.wait([self.purges.read()], timeout=max(0.0, until - self.clock.monotonic()))
        if not self.purges.has_read:
            raise GraphUnavailable("the bus has not said yet whether something was erased: ask again")
        needed = self.purges.needed.get(app_id)
        if needed is None:
            return ""
        age, now = self._ages.get(app_id), self.clock.monotonic()
        if age is not None and age.needed != needed:
            age = None
        if age is not None and now < age.seen + self.timing.age_recent_s:
            return age.older
        asking = self._asking.get(app_id)
        if asking is None:
            asking = self._asking[app_id] = self.background.start(self._ask(app_id, needed))
            asking.add_done_callback(lambda _: self._asking.pop(app_id, None))
        if age is not None and not age.older and now < age.seen + self.timing.age_s:
            return ""
        await asyncio.wait([asking], timeout=max(0.0, until - self.clock.monotonic()))
        if not asking.done() or asking.cancelled():
            raise GraphUnavailable("the graph did not say in time whether it is older than an erasure")
        return asking.result().older

    async def _ask(self, app_id: str, needed: GraphBasis) -> _Age:
        seen = self.clock.monotonic()
        try:
            older = await why_older(self.graph, app_id, needed, timeout_s=self.timing.version_s)
        except GraphUnavailable:
            self.breaker.failed(app_id)
            raise
        except QueryFailed as error:
            raise GraphUnavailable(f"the graph did not say whether it is older than an erasure: {error}") from error
        self.breaker.succeeded(app_id)
        if older:
            self.purges.drop(app_id)
            if (before := self._ages.get(app_id)) is None or not before.older:
                logger.error("graph_is_older", app_id=app_id, message=older)
        age = self._ages[app_id] = _Age(needed=needed, seen=seen, older=older)
        return age

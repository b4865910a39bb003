"""Whether the graphs of apps are as new as the bus says: an older copy may hold what was erased, or a restated past.

The graph says what it was made of. That is read at most once a second, and only of apps for which the bus says what
their graph needs to have: those of which something was erased, or whose past was restated.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.injection.purges import PurgeFollower
from graphweft_workers.ports.graph_basis import GraphBasis, why_older
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.recent_answers import RecentAnswers
from graphweft_workers.support.timing import TIMING, ContextTiming

logger = get_logger("graphweft.injection")


@dataclass(slots=True)
class GraphAges:
    """Compares graphs with what the bus says of them."""

    graph: GraphStore
    purges: PurgeFollower
    breaker: Breaker
    background: Background
    clock: Clock = SYSTEM_CLOCK
    timing: ContextTiming = TIMING.context
    _answers: RecentAnswers[tuple[str, GraphBasis], str] = field(init=False)
    """By app, and by what its graph needs to have: why the graph is older; empty: it is not."""

    def __post_init__(self) -> None:
        self._answers = RecentAnswers(clock=self.clock, fresh_s=self.timing.age_recent_s)

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
        key = app_id, needed
        if (recent := self._answers.last(key, self.timing.age_recent_s)) is not None:
            return recent
        asking = self.background.begin(self._answers.get(key, partial(self._ask, app_id, needed)))
        if self._answers.last(key, self.timing.age_s) == "":
            return ""
        await asyncio.wait([asking], timeout=max(0.0, until - self.clock.monotonic()))
        if not asking.done() or asking.cancelled() or (older := asking.result()) is None:
            raise GraphUnavailable("the graph did not say in time whether it is older than an erasure")
        return older

    async def _ask(self, app_id: str, needed: GraphBasis) -> None:
        key = app_id, needed
        with self._answers.asking(key):
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
                if not self._answers.last(key):
                    logger.error("graph_is_older", app_id=app_id, message=older)
            self._answers.note(key, older)

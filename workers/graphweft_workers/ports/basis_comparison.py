"""Whether graphs are from before an erasure or a restatement, for whoever reads them beside workers and responders."""

from __future__ import annotations

from functools import partial

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.graph_basis import GraphBasis, why_older
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.purges import PurgeReader
from graphweft_workers.ports.records import RecordLog
from graphweft_workers.support.recent_answers import RecentAnswers
from graphweft_workers.support.timing import TIMING, ContextTiming


class BasisComparison:
    """Compares graphs with what the bus says of them."""

    def __init__(
        self,
        graph: GraphStore,
        purges: RecordLog,
        *,
        clock: Clock = SYSTEM_CLOCK,
        timing: ContextTiming = TIMING.context,
    ) -> None:
        """``purges`` are those of the bus. Closes neither."""
        self._graph = graph
        self._purges = PurgeReader(purges)
        self._timeout_s = timing.age_s
        self._heard = RecentAnswers[str, bool](clock=clock, fresh_s=timing.age_recent_s)
        self._answers = RecentAnswers[tuple[str, GraphBasis], str](clock=clock, fresh_s=timing.age_recent_s)

    async def older(self, app_id: str) -> str:
        """Return why the graph of an app must not be read, and what to do; empty: it may be.

        Bus and graph have said so within a second. Raises ``BusUnavailable``, and as ``why_older`` does.
        """
        await self._heard.get("purges", self._hear)
        needed = self._purges.needed.get(app_id)
        if needed is None:
            return ""
        return await self._answers.get((app_id, needed), partial(self._ask, app_id, needed)) or ""

    async def _hear(self) -> None:
        with self._heard.asking("purges"):
            await self._purges.read()
            self._heard.note("purges", True)

    async def _ask(self, app_id: str, needed: GraphBasis) -> None:
        key = app_id, needed
        with self._answers.asking(key):
            self._answers.note(key, await why_older(self._graph, app_id, needed, timeout_s=self._timeout_s))

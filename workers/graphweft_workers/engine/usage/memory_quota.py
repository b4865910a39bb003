"""Refuses rows while the graph of an app takes more memory than the app may have."""

from __future__ import annotations

from collections.abc import Callable

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.usage.usage_reporter import MeasuredGraphs
from graphweft_workers.support.timing import TIMING, QuotaTiming


class MemoryQuota:
    """Knows how much memory the graphs of apps with a quota take.

    A graph is measured now and then, not before each write: meanwhile it may grow beyond the quota.
    """

    def __init__(
        self,
        graph: MeasuredGraphs,
        limit: Callable[[str], int | None],
        *,
        clock: Clock = SYSTEM_CLOCK,
        timing: QuotaTiming = TIMING.quota,
    ) -> None:
        """``limit`` returns the quota of an app in bytes; None is no quota."""
        self._graph = graph
        self._limit = limit
        self._clock = clock
        self._timing = timing
        self._measured: BoundedDict[str, tuple[int, float]] = BoundedDict()
        """By app: the bytes of its graph, and when it is measured again."""

    async def refusal(self, app_id: str) -> str | None:
        """Return why an app may add nothing to its graph now; None if it may. Raises ``GraphUnavailable``."""
        limit = self._limit(app_id)
        if limit is None:
            return None
        used, until = self._measured.get(app_id, (0, 0.0))
        if self._clock.monotonic() >= until:
            try:
                used = await self._graph.memory_of(app_id)
            except QueryFailed as error:
                raise GraphUnavailable(f"the memory of the graph of {app_id!r} is not known: {error}") from error
            self._measured[app_id] = (used, self._clock.monotonic() + self._timing.measure_s)
        if used <= limit:
            return None
        return (
            f"the graph of {app_id!r} takes {used:,} bytes of the server's memory, and its quota is {limit:,}: erase "
            "what is not needed, or raise `quotas: {graph_bytes: …}` of the app, then retry this dead letter"
        )

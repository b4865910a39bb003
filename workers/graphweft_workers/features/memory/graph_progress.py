"""Lets a job read graphs that hold what the job has read of the log."""

from __future__ import annotations

from collections.abc import Mapping

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.basis_comparison import BasisComparison
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore, OtherGraph
from graphweft_workers.ports.job import AppWait
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.support.timing import TIMING, MemoryTiming


class MutationsBehind(GraphUnavailable):
    """The mutation workers have not applied an event yet."""


class GraphProgress:
    """What the mutation workers have applied. ``bus`` is open for their group, whose offsets it reads."""

    def __init__(
        self, graph: GraphStore, bus: Bus, *, clock: Clock = SYSTEM_CLOCK, timing: MemoryTiming = TIMING.memory
    ) -> None:
        self._graph = graph
        self._bus = bus
        self._clock = clock
        self._timing = timing
        self._comparison = BasisComparison(graph, bus.purges, clock=clock)

    async def behind(self, last: Mapping[str, str]) -> list[AppWait]:
        """Return the apps whose graph must not be read yet; the other graphs may be read.

        A graph must hold all events up to a position, must be the app's own, and must not be from before an erasure.
        """
        found = [
            AppWait(app_id=app_id, error=error)
            for app_id, position in last.items()
            if (error := await self._error(app_id, position)) is not None
        ]
        if len(found) < len(last):
            await self._clock.sleep(self._graph.settle_s)
        return found

    async def older(self, app_id: str) -> str:
        """Return why the graph of an app must not be read, whatever it holds of the log; see ``BasisComparison``."""
        return await self._comparison.older(app_id)

    async def _error(self, app_id: str, position: str) -> GraphUnavailable | None:
        """Return why the graph of an app must not be read yet; None if it may be."""
        try:
            if older := await self._comparison.older(app_id):
                return GraphUnavailable(older, retry_after_s=self._timing.older_s)
            if await self._holds(app_id, position):
                return None
        except OtherGraph as other:
            return GraphUnavailable(str(other), retry_after_s=self._timing.behind_s)
        behind = f"the mutation workers have not applied {position} of {app_id!r} yet"
        return MutationsBehind(behind, retry_after_s=self._timing.behind_s)

    async def _holds(self, app_id: str, position: str) -> bool:
        number, _, offset = position.partition(":")
        try:
            marks = await self._graph.checkpoints(app_id, timeout_s=self._timing.query_s)
        except OtherGraph:
            raise
        except QueryFailed:
            return True  # the app has no graph, and its events are dead letters
        mark = marks.get(int(number))
        if mark is not None and not is_after(offset, mark.offset):
            return True
        # An event without effect moves no checkpoint, but the position, or the app's place in its note, is behind it.
        committed = await self._bus.partitions.committed(int(number))
        return not is_after(offset, PositionNote.decode(committed.note).applied(committed.offset, (app_id,)))

"""Looks from time to time whether servers still hold what partitions rely on."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Final

from graphweft_contracts import QueryFailed, Transient
from graphweft_contracts.clock import Clock
from graphweft_workers.engine.log.series_store import is_outdated, read_marks
from graphweft_workers.engine.partition import Partition
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import START, GraphStore, MarksLost
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.mutation")

_REPLACED: Final = "the graph server was emptied, restored or replaced"
_KEPT_AGAIN: Final = "the graph server keeps positions again, as its user has the right"
_LOOKS: Final = 24
"""In how many looks all graphs had their turn."""
_ERASED: Final = "entries were erased"
"""Else the recent events of a partition would hold what the log no longer has."""


class GraphWatch:
    """Looks whether graphs, and the past of partitions, are what they were; if not, events are read again."""

    def __init__(
        self, bus: Bus, graph: GraphStore, partitions: Mapping[int, Partition], *, clock: Clock, every_s: float
    ) -> None:
        """``partitions`` are those that the worker holds now."""
        self._bus = bus
        self._graph = graph
        self._partitions = partitions
        self._clock = clock
        self._every_s = every_s
        self._round: deque[tuple[int, str, str]] = deque()
        """Graphs that are looked at in turn, as (partition, app, reached): an app may be quiet when one is deleted."""
        self._share = 0
        """How many of them have their turn in one look."""
        self._keeps_positions = True
        """Whether the graph server says which graphs it has, and how far they are."""

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            if not self._round:
                partitions = self._partitions.items()
                self._round.extend((number, *each) for number, held in partitions for each in held.reached.items())
                self._share = -(-len(self._round) // _LOOKS)
            await self._clock.sleep(self._every_s)
            before = {number: (each, each.positions.kept) for number, each in self._partitions.items()}
            with contextlib.suppress(Transient):
                await self._look_at_graphs(before)
            await self._look_at_next_graphs()
            if any(partition.recent.has_series for partition, _ in before.values()):
                with contextlib.suppress(Transient):
                    stored = await read_marks(self._bus.series)
                    for number, (partition, _) in before.items():
                        if is_outdated(stored, number, partition.recent):
                            partition.reopen(_ERASED)

    async def _look_at_next_graphs(self) -> None:
        """Look at the share of one look. A server that is slow gets fewer questions."""
        until = self._clock.monotonic() + self._every_s
        for _ in range(min(self._share, len(self._round))):
            if self._clock.monotonic() >= until:
                return
            number, app_id, reached = self._round.popleft()
            partition = self._partitions.get(number)
            # An app that had an event since then has noticed by itself; a reader may not see its latest write yet.
            if partition is not None and partition.reached.get(app_id) == reached:
                with contextlib.suppress(Transient, QueryFailed):
                    await self._look_at_graph(partition, number, app_id, reached)

    async def _look_at_graph(self, partition: Partition, number: int, app_id: str, reached: str) -> None:
        """Compare where a graph stands with what it had reached."""
        try:
            at = (await self._graph.checkpoints(app_id, timeout_s=self._every_s)).get(number, START).offset
        except MarksLost as error:
            await self._graph.progress(app_id, number)
            logger.warning("graph_marks_lost", app_id=app_id, message=f"{error}. They are there again")
            return
        if not is_after(reached, at):
            return
        # The server names an app no more whose graph graphweft itself has deleted.
        if self._keeps_positions and not is_after((await self._graph.reached(number)).get(app_id, ""), at):
            return
        await partition.read_again(app_id, at)

    async def _look_at_graphs(self, before: Mapping[int, tuple[Partition, CommittedPosition | None]]) -> None:
        """Compare what the graph server says of partitions with what it was told."""
        found = await self._graph.positions()
        self._keeps_positions = found is not None
        if found is None:
            return
        for number, (partition, kept) in before.items():
            if kept is None:
                partition.reopen(_KEPT_AGAIN)
            is_current = kept is not None and partition.is_at_rest and partition.positions.kept is kept
            if is_current and found.get(number) != kept:
                partition.reopen(_REPLACED)

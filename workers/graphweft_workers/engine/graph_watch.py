"""Looks from time to time whether servers still hold what partitions rely on."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

from graphweft_contracts import Transient
from graphweft_contracts.clock import Clock
from graphweft_workers.engine.log.series_store import is_outdated, read_marks
from graphweft_workers.engine.partition import Partition
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import GraphStore

_REPLACED: Final = "the graph server was emptied, restored or replaced"
_ERASED: Final = "entries were erased"
"""Else the recent events of a partition would hold what the log no longer has."""


class GraphWatch:
    """Lets the partitions of a worker be opened anew whose graphs, or whose past, are not what they were."""

    def __init__(
        self, bus: Bus, graph: GraphStore, partitions: Mapping[int, Partition], *, clock: Clock, every_s: float
    ) -> None:
        """``partitions`` are those that the worker holds now."""
        self._bus = bus
        self._graph = graph
        self._partitions = partitions
        self._clock = clock
        self._every_s = every_s

    async def run(self) -> None:
        """Look until it is cancelled."""
        while True:
            await self._clock.sleep(self._every_s)
            before = {number: (each, each.positions.kept) for number, each in self._partitions.items()}
            with contextlib.suppress(Transient):
                await self._look_at_graphs(before)
            if any(partition.recent.has_series for partition, _ in before.values()):
                with contextlib.suppress(Transient):
                    stored = await read_marks(self._bus.series)
                    for number, (partition, _) in before.items():
                        if is_outdated(stored, number, partition.recent):
                            partition.reopen(_ERASED)

    async def _look_at_graphs(self, before: Mapping[int, tuple[Partition, CommittedPosition | None]]) -> None:
        """Compare what the graph server says of partitions with what it was told."""
        found = await self._graph.positions()
        if found is None:
            return
        for number, (partition, kept) in before.items():
            is_current = kept is not None and partition.is_at_rest and partition.positions.kept is kept
            if is_current and found.get(number) != kept:
                partition.reopen(_REPLACED)

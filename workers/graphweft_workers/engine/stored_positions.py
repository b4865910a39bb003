"""The positions of a partition on the bus and on the graph server, and what their notes say."""

from __future__ import annotations

from dataclasses import replace

from graphweft_workers.engine.apply.app_queues import AppQueues
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.opening import Opening
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.offsets import is_after, later
from graphweft_workers.ports.position_note import PositionNote


class StoredPositions:
    """What is stored of a partition, and what is to be stored next."""

    def __init__(self, opening: Opening) -> None:
        self.kept: CommittedPosition | None = opening.kept
        """On the graph server; None if its store keeps no positions."""
        self._before = opening.before
        self._again = opening.again
        self._committed = opening.committed
        """On the bus."""
        self._at = opening.before.at or opening.committed.offset
        """The last entry up to it."""

    def is_new(self, graph: CommittedPosition, bus: CommittedPosition) -> bool:
        """Tell whether what ``next`` returned is not stored yet."""
        kept = self.kept
        return _as_tuple(bus) != _as_tuple(self._committed) or (
            kept is not None and _as_tuple(graph) != _as_tuple(kept)
        )

    def next(self, queues: AppQueues, recent: RecentEvents) -> tuple[CommittedPosition, CommittedPosition]:
        """Return the positions to store on the graph server and on the bus, which never goes back.

        ``recent`` are the recent events of the partition, whose reach is noted.
        """
        floor, parked = queues.floor, queues.status()
        done = queues.floor_without(parked).offset if parked else ""
        reported, shown = self._before.resumed(queues.reported_without(parked), parked, floor.offset)
        again = later(self._again, queues.again)
        if not is_after(again, floor.offset):
            again = ""
        is_behind = is_after(self._at, floor.offset)
        note = PositionNote(
            reported=reported,
            parked=shown,
            done=done or (floor.offset if shown else ""),
            reach=recent.reach_at(floor.offset),
            at=self._at if is_behind else floor.offset,
            again=again,
            again_at=floor.offset if again else "",
        ).encode()
        on_bus = self._committed if is_behind else floor
        return replace(floor, note=done), replace(on_bus, note=note)

    def kept_on_graph(self, graph: CommittedPosition) -> None:
        """Take note of what is stored on the graph server."""
        if self.kept is not None:
            self.kept = graph

    def committed_on_bus(self, graph: CommittedPosition, bus: CommittedPosition) -> None:
        """Take note of what is stored on the bus, after ``graph`` on the graph server."""
        self._committed, self._at = bus, later(self._at, graph.offset)


def _as_tuple(committed: CommittedPosition) -> tuple[str, int, str]:
    return committed.offset, committed.count, committed.note

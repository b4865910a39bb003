"""Sealed graphs: another graph is about to take the place of an app's, see ``graph_marks``."""

from __future__ import annotations

import contextlib

from graphweft_contracts import Fenced, GraphUnavailable
from graphweft_contracts.clock import Clock
from graphweft_workers.engine.plan.graph_marks import have_same_seal, is_sealed, of_generation
from graphweft_workers.ports.graph_store import Checkpoint, PartitionGraph, Write
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import Timing

logger = get_logger("graphweft.mutation")


class Seals:
    """The seals that a worker has seen, and since when."""

    def __init__(self, graph: PartitionGraph, clock: Clock, timing: Timing) -> None:
        self._graph = graph
        self._clock = clock
        self._timing = timing
        self._seen: dict[tuple[int, str], tuple[Checkpoint, float]] = {}
        """By partition and app: a seal in the graph, and when it was first seen on this machine's monotonic clock."""

    async def check(self, partition: int, app_id: str, checkpoint: Checkpoint) -> None:
        """Raise ``GraphUnavailable`` if a graph is sealed; lift the seal of a rebuild that died."""
        key, now = (partition, app_id), self._clock.monotonic()
        if not is_sealed(checkpoint):
            self._seen.pop(key, None)
            return
        seen, since = self._seen.get(key, (None, now))
        if seen != checkpoint:
            self._seen[key] = (checkpoint, now)
        elif now - since >= self._timing.seal_s:
            # Alone, before anything else is written: if the graphs are exchanged now, the lift may reach the old one.
            lift = Write(before=checkpoint, after=of_generation(checkpoint))
            await self._graph.apply(app_id, partition, [lift])
            await self._lift_others(app_id, checkpoint)
            logger.warning(
                "seal_lifted", partition=partition, app_id=app_id,
                message=f"a rebuild has not finished its swap within {self._timing.seal_s:.0f} s: it was killed",
            )  # fmt: skip
        raise GraphUnavailable(
            f"a rebuild is putting another graph in the place of that of {app_id!r}: the worker waits",
            retry_after_s=0.2,
        )

    async def _lift_others(self, app_id: str, seal: Checkpoint) -> None:
        """Lift the same rebuild's seals of other partitions, which may get no event for long."""
        found = await self._graph.checkpoints(app_id, timeout_s=self._timing.checkpoints_s)
        for number, checkpoint in found.items():
            if have_same_seal(checkpoint, seal):
                lift = Write(before=checkpoint, after=of_generation(checkpoint))
                with contextlib.suppress(Fenced):
                    await self._graph.apply(app_id, number, [lift])

"""Who uses a scratch graph: one that a command makes, reads and deletes.

The graph says it itself, by a checkpoint that belongs to no partition of a log. The command renews it, so the next one
tells the graph of a living command from one that a killed command has left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Final
from uuid import uuid4

from graphweft_contracts import Fenced, GraphUnavailable
from graphweft_contracts.clock import Clock
from graphweft_workers.ports.graph_store import START, Checkpoint, GraphStore
from graphweft_workers.replay.swap import move
from graphweft_workers.support.tasks import running_beside
from graphweft_workers.support.timing import Timing

LEASE_PARTITION: Final = -1
"""The number of the checkpoint; partitions of logs begin with 0."""


class ScratchLease:
    """The lease of one command on one scratch graph."""

    def __init__(self, graph: GraphStore, app_id: str, clock: Clock, timing: Timing) -> None:
        """The lease lasts ``timing.seal_s``, and is renewed four times as often."""
        self._graph = graph
        self._app_id = app_id
        self._clock = clock
        self._timing = timing
        self._name = uuid4().hex
        self._was_free = False

    async def take(self, *, only_new: bool) -> bool:
        """Take the graph, which is made if it is not there; False if another command has it.

        What a killed command left is deleted first. With ``only_new``, a graph of unknown origin is not taken; others
        have a name of scratch graphs, and are empty. Raises ``GraphUnavailable``.
        """
        marks = await self._marks()
        found = marks.get(LEASE_PARTITION, START)
        if self._is_over(found):
            await self._graph.whole.drop(self._app_id)
        elif (
            found != START
            or marks.keys() - {LEASE_PARTITION}
            or (only_new and await self._graph.whole.graph_id(self._app_id))
        ):
            return False
        self._was_free = True
        with contextlib.suppress(Fenced):  # another command takes it at this moment
            await self._renew()
            return True
        return False

    async def is_ours(self) -> bool:
        """Tell whether the graph is ours, or is of nobody yet because it is only just made, perhaps by us."""
        if not self._was_free:
            return False
        marks = await self._marks()
        found = marks.get(LEASE_PARTITION, START)
        return found.plan == self._name or (found == START and not marks.keys() - {LEASE_PARTITION})

    async def _marks(self) -> Mapping[int, Checkpoint]:
        return await self._graph.checkpoints(self._app_id, timeout_s=self._timing.replay.query_s)

    async def remove_remains(self) -> None:
        """Delete the graph if a killed command left it. Raises ``GraphUnavailable``."""
        if self._is_over((await self._marks()).get(LEASE_PARTITION, START)):
            await self._graph.whole.drop(self._app_id)

    def kept(self) -> AbstractAsyncContextManager[None]:
        """Renew the lease meanwhile."""
        return running_beside(self._keep(), name="graphweft-scratch-lease")

    async def _keep(self) -> None:
        while True:
            await self._clock.sleep(self._timing.seal_s / 4)
            # Fenced: the main work moves on, or the graph is another command's, whose checkpoints refuse ours.
            with contextlib.suppress(GraphUnavailable, Fenced):
                await self._renew()

    async def _renew(self) -> None:
        """Write the time. Raises ``Fenced`` if another command has the graph."""
        found = (await self._graph.progress(self._app_id, LEASE_PARTITION)).checkpoint
        if found != START and found.plan != self._name:  # at the start: a replay may delete its graph and begin anew
            raise Fenced(f"another command uses the scratch graph of {self._app_id!r}")
        mine = replace(found, plan=self._name, done=int(self._clock.now().timestamp()))
        await move(self._graph, self._app_id, LEASE_PARTITION, found, mine)

    def _is_over(self, found: Checkpoint) -> bool:
        return found != START and self._clock.now().timestamp() - found.done > self._timing.seal_s

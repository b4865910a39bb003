"""Histories of an app before its events on the bus: preludes that `graphweft restore` has brought."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from graphweft_workers.archive.preludes import Prelude, checkpoint_number, is_of_prelude, prelude_of
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.ports.graph_store import Checkpoint, PartitionGraph, Progress, Write, WriteResult
from graphweft_workers.replay.replay import Replay, ReplayStep
from graphweft_workers.rule_sets.active_rules import ActiveRules

if TYPE_CHECKING:
    from graphweft_rules.cypher.indexes import SearchIndex


async def replay_preludes(
    preludes: Sequence[Prelude], graph: PartitionGraph, rules: ActiveRules, app_id: str
) -> AsyncGenerator[tuple[int, ReplayStep]]:
    """Apply preludes to the graph of ``app_id``, one after the other; yield the number of the checkpoint and how far.

    Raises like ``Replay.run``; a further call continues.
    """
    for prelude in preludes:
        bus = prelude.bus
        shifted = PreludeGraph(graph, app_id, prelude.number)
        replay = Replay(bus, shifted, rules.over(bus.rules), prelude.app_id)
        for partition in await ArchiveReader(prelude.blobs).partitions():
            async with aclosing(replay.run(partition)) as steps:
                async for step in steps:
                    yield checkpoint_number(prelude.number, partition), step


class PreludeGraph:
    """A graph as the replay of a prelude sees it: its partitions have other numbers, and its app another name."""

    def __init__(self, graph: PartitionGraph, app_id: str, prelude: int) -> None:
        """``app_id`` is the name of the app in ``graph``, ``prelude`` the number of the prelude."""
        self._graph = graph
        self._app_id = app_id
        self._prelude = prelude
        self.dialect = graph.dialect
        self.runs_again = graph.runs_again

    def _number(self, partition: int) -> int:
        return checkpoint_number(self._prelude, partition)

    async def prepare(self, app_id: str, keys: Iterable[tuple[str, str]], indexes: Iterable[SearchIndex] = ()) -> None:
        """See ``PartitionGraph.prepare``."""
        await self._graph.prepare(self._app_id, keys, indexes)

    async def progress(self, app_id: str, partition: int) -> Progress:
        """See ``PartitionGraph.progress``."""
        return await self._graph.progress(self._app_id, self._number(partition))

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        """See ``GraphWrites.apply``."""
        return await self._graph.apply(self._app_id, self._number(partition), writes)

    async def checkpoints(self, app_id: str, *, timeout_s: float) -> Mapping[int, Checkpoint]:
        """Return the checkpoints of the prelude's partitions."""
        found = await self._graph.checkpoints(self._app_id, timeout_s=timeout_s)
        first = self._number(0)
        return {
            number - first: checkpoint
            for number, checkpoint in found.items()
            if is_of_prelude(number) and prelude_of(number) == self._prelude
        }

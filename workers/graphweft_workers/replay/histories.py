"""Histories of an app before its events on the bus: preludes that `graphweft restore` has brought."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from graphweft_workers.archive.preludes import Prelude, checkpoint_number
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.ports.graph_store import PartitionGraph
from graphweft_workers.replay.prelude_graph import PreludeGraph
from graphweft_workers.replay.replay import Replay, ReplayStep
from graphweft_workers.rule_sets.active_rules import ActiveRules


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

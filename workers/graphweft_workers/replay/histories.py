"""Histories of an app before its events on the bus: preludes that `graphweft restore` has brought."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from graphweft_contracts import InvalidSettings
from graphweft_workers.active_rules import ActiveRules
from graphweft_workers.archive.archived_bus import missing_entries
from graphweft_workers.archive.preludes import (
    Prelude,
    checkpoint_number,
    folder_of,
    is_of_prelude,
    prelude_of,
    preludes_of,
)
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore, PartitionGraph
from graphweft_workers.replay.prelude_graph import PreludeGraph
from graphweft_workers.replay.replay import Replay, Replayed
from graphweft_workers.timing import TIMING


async def known_preludes(bus: Bus, live: GraphStore, app_id: str) -> list[Prelude]:
    """Return the preludes of an app, in order. Raises ``InvalidSettings`` if one is missing or is not whole."""
    found = await preludes_of(bus, app_id)
    for prelude in found:
        alone = prelude.bus
        partitions = await ArchiveReader(prelude.blobs).partitions()
        for partition, missing in (await missing_entries(alone, partitions)).items():
            if missing:
                raise InvalidSettings(
                    f"the restored history of {app_id!r} lacks entries of partition {partition}: restore its files "
                    f"below {folder_of(app_id, prelude.number)} in the archive"
                )
    marks = await live.checkpoints(app_id, timeout_s=TIMING.replay.query_s)
    if {prelude_of(number) for number in marks if is_of_prelude(number)} - {prelude.number for prelude in found}:
        raise InvalidSettings(
            f"the graph of {app_id!r} was restored from an export, and its history is not in the archive: set "
            "GRAPHWEFT_ARCHIVE_URL to the archive that `graphweft restore` has used"
        )
    return found


async def refuse_preludes(bus: Bus, live: GraphStore, app_id: str) -> None:
    """Raise ``InvalidSettings`` if the app was restored, for a command that reads the log of the bus alone."""
    marks = await live.checkpoints(app_id, timeout_s=TIMING.replay.query_s)
    if await preludes_of(bus, app_id) or any(map(is_of_prelude, marks)):
        raise InvalidSettings(
            f"{app_id!r} was restored from an export, and this command does not read the history before: use it on the "
            "deployment where the app was exported"
        )


async def replay_preludes(
    preludes: Sequence[Prelude], graph: PartitionGraph, rules: ActiveRules, app_id: str
) -> AsyncGenerator[tuple[int, Replayed]]:
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

"""Whether a graph holds what a job has read: by its checkpoint, or by the position of the mutation workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest
from tests.chaos.memory_bus import memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft_workers.features.memory.graph_progress import GraphProgress
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, OtherGraph
from graphweft_workers.ports.position_note import ParkedApp, PositionNote


class Graphs:
    """The part of a graph store that is asked: no app has a checkpoint."""

    settle_s = 0.0

    async def checkpoints(self, app_id: str, *, timeout_s: float) -> Mapping[int, Checkpoint]:
        if app_id == "mistaken":
            raise OtherGraph.at("the graph 'mozaiks_mistaken'", app_id, "bank")
        return {}


@pytest.mark.parametrize(("app_id", "offset", "held"), [
    ("good", "9", True),
    ("good", "10", False),
    ("slow", "4", True),
    ("slow", "5", False),
    ("slower", "3", False),
])  # fmt: skip
async def test_an_event_without_effect_is_held_once_the_workers_are_behind_it(
    app_id: str, offset: str, held: bool
) -> None:
    """Also while the position is that of an app whose graph does not answer."""
    bus = memory_bus([[]])
    note = PositionNote(parked={"slow": ParkedApp(at="4"), "slower": ParkedApp(at="2")}, done="9")
    await bus.partitions.commit(0, CommittedPosition(offset="2", note=note.encode()))
    progress = GraphProgress(cast(GraphStore, Graphs()), bus, clock=VIRTUAL)
    behind = await progress.behind({app_id: f"0:{offset}"})
    assert [each.app_id for each in behind] == ([] if held else [app_id])


async def test_a_job_waits_for_an_app_whose_name_another_apps_graph_has() -> None:
    """Else it would write memories of the other app into this one's log."""
    bus = memory_bus([[]])
    await bus.partitions.commit(0, CommittedPosition(offset="9"))
    progress = GraphProgress(cast(GraphStore, Graphs()), bus, clock=VIRTUAL)
    [wait] = await progress.behind({"mistaken": "0:1", "good": "0:1"})
    assert (wait.app_id, "bank" in str(wait.error)) == ("mistaken", False)
    assert "holds the graph of another app" in str(wait.error)

"""A worker notices a graph that somebody has emptied while its app is quiet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from structlog.testing import capture_logs
from tests.chaos.memory_bus import memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import GraphUnavailable
from graphweft_workers.engine.graph_watch import GraphWatch
from graphweft_workers.engine.partition import Partition
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, MarksLost, OtherGraph

EVERY_S = 5.0
APPS = ("ant", "bee", "cat")
AT = CommittedPosition(offset="9", count=9)


class Graphs:
    """Graphs that stand at an offset each, and what their server says of them."""

    def __init__(self, apps: Sequence[str] = APPS) -> None:
        self.at: dict[str, str | Exception] = dict.fromkeys(apps, "9")
        self.named = dict.fromkeys(apps, "9")
        self.keeps_positions = True
        self.hangs_s = 0.0
        self.asked: list[str] = []
        self.opened: list[str] = []
        self.reopened = 0

    async def positions(self) -> Mapping[int, CommittedPosition] | None:
        return {3: AT} if self.keeps_positions else None

    async def checkpoints(self, app_id: str, *, timeout_s: float) -> Mapping[int, Checkpoint]:
        self.asked.append(app_id)
        await VIRTUAL.sleep(self.hangs_s)
        found = self.at[app_id]
        if isinstance(found, Exception):
            raise found
        return {3: Checkpoint(offset=found)} if found else {}

    async def reached(self, partition: int) -> Mapping[str, str]:
        return self.named if self.keeps_positions else {}

    async def progress(self, app_id: str, partition: int) -> None:
        self.opened.append(app_id)


async def seen(
    graphs: Graphs, looks: int = len(APPS), *, reached: Mapping[str, str] | None = None,
    kept: CommittedPosition | None = AT,
) -> list[tuple[str, str]]:  # fmt: skip
    """Return the apps whose events are read again, and where their graphs stood, after some looks.

    ``kept`` is what the worker believes that the server says of the partition.
    """
    again: list[tuple[str, str]] = []

    def reopen(why: str) -> None:
        graphs.reopened += 1

    async def read_again(app_id: str, offset: str) -> None:
        again.append((app_id, offset))

    partition = cast(
        Partition,
        SimpleNamespace(
            reached=dict.fromkeys(graphs.at, "9") if reached is None else reached,
            read_again=read_again,
            positions=SimpleNamespace(kept=kept if graphs.keeps_positions else None),
            is_at_rest=True,
            reopen=reopen,
            recent=SimpleNamespace(has_series=False),
        ),
    )  # fmt: skip
    watch = GraphWatch(memory_bus([[]]), cast(GraphStore, graphs), {3: partition}, clock=VIRTUAL, every_s=EVERY_S)
    running = asyncio.create_task(watch.run())
    with capture_logs():
        await VIRTUAL.sleep(EVERY_S * (looks + 0.5))
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return again


async def test_one_graph_is_looked_at_each_time_in_turn() -> None:
    graphs = Graphs()
    assert await seen(graphs, looks=5) == []
    assert graphs.asked == ["ant", "bee", "cat", "ant", "bee"]


@pytest.mark.parametrize(
    ("kept", "reopened"),
    [(AT, 0), (CommittedPosition(offset="4", count=4), 1), pytest.param(None, 1, id="its user got the right")],
)
async def test_a_partition_is_opened_again_if_the_server_says_another_position(
    kept: CommittedPosition | None, reopened: int
) -> None:
    graphs = Graphs()
    await seen(graphs, looks=1, kept=kept)
    assert graphs.reopened == reopened


@pytest.mark.parametrize(("apps", "each"), [(24, 1), (25, 2), (1_000, 42)])
async def test_all_graphs_have_their_turn_within_two_minutes(apps: int, each: int) -> None:
    graphs = Graphs([f"app-{number}" for number in range(apps)])
    await seen(graphs, looks=1)
    assert len(graphs.asked) == each
    graphs.asked.clear()
    await seen(graphs, looks=24)
    assert graphs.asked[:apps] == [*graphs.at]


async def test_an_app_that_has_events_is_not_asked() -> None:
    reached = dict.fromkeys(APPS, "9")
    graphs = Graphs()
    looking = asyncio.create_task(seen(graphs, reached=reached))
    await VIRTUAL.sleep(EVERY_S / 2)
    reached["bee"] = "12"  # in the graph too, but a reader may not see it yet
    assert await looking == []
    assert graphs.asked == ["ant", "cat"]


@pytest.mark.parametrize("at", ["", "4"])
async def test_a_graph_is_read_again_where_the_server_keeps_no_positions(at: str) -> None:
    graphs = Graphs()
    graphs.keeps_positions = False
    graphs.at["bee"] = at
    assert await seen(graphs) == [("bee", at)]


async def test_a_server_that_hangs_gets_few_questions() -> None:
    graphs = Graphs([f"app-{number}" for number in range(1_000)])
    graphs.hangs_s = EVERY_S
    await seen(graphs, looks=10)
    assert len(graphs.asked) <= 10


@pytest.mark.parametrize("at", ["", "4"])
async def test_a_graph_that_was_deleted_or_is_an_older_copy_is_read_again(at: str) -> None:
    graphs = Graphs()
    graphs.at["bee"] = at
    assert await seen(graphs) == [("bee", at)]


async def test_a_graph_that_graphweft_has_deleted_stays_so() -> None:
    graphs = Graphs()
    graphs.at["bee"] = ""
    del graphs.named["bee"]
    assert await seen(graphs) == []


async def test_marks_that_are_gone_are_put_back_and_nothing_is_read_again() -> None:
    graphs = Graphs()
    graphs.at["bee"] = MarksLost("somebody has deleted the node `__App`")
    assert (await seen(graphs), graphs.opened) == ([], ["bee"])


@pytest.mark.parametrize("error", [GraphUnavailable("away"), OtherGraph("another")])
async def test_a_graph_that_does_not_answer_keeps_nobody_from_the_others(error: Exception) -> None:
    graphs = Graphs()
    graphs.at |= {"ant": error, "bee": ""}
    assert await seen(graphs) == [("bee", "")]

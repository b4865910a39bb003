"""The suite of the port of graphs."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from graphweft_contracts import GraphUnavailable
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, PositionMove, Write, WriteResult
from graphweft_workers.testing.suites.graph_kit import (
    APP,
    COUNT,
    GraphKit,
    chain,
    checkpoint,
    value,
)
from graphweft_workers.testing.suites.graph_read_suite import GraphReadSuite
from graphweft_workers.testing.suites.graph_write_suite import GraphWriteSuite
from graphweft_workers.testing.waiting import until_answered


class GraphSuite(GraphWriteSuite, GraphReadSuite):
    """What every graph store promises, against the server of a driver."""

    async def test_the_id_of_a_graph_is_that_of_no_other_store(self, kit: GraphKit, graph: GraphStore) -> None:
        assert await graph.whole.graph_id(APP)
        async with contextlib.aclosing(kit.store()) as same:
            assert await same.whole.graph_id(APP) == await graph.whole.graph_id(APP)
        if kit.features.graph_templates:
            async with contextlib.aclosing(kit.store(graph_template="{app_id}.other")) as other:
                assert await other.whole.graph_id(APP) == ""
                await other.progress(APP, 0)
                assert await other.whole.graph_id(APP) not in ("", await graph.whole.graph_id(APP))

    async def test_a_dropped_graph_is_gone_and_can_be_made_again(self, graph: GraphStore) -> None:
        await graph.whole.drop(APP)  # without a graph
        checkpoint = (await graph.progress(APP, 0)).checkpoint
        await graph.apply(APP, 0, [Write(before=checkpoint, after=Checkpoint(offset="1-0"))])
        place = await graph.whole.place(APP)
        await graph.whole.drop(APP)
        assert await graph.whole.graph_id(APP) == ""
        assert await graph.checkpoints(APP, timeout_s=120) == {}
        assert [node async for node in graph.whole.nodes(APP)] == []
        assert await graph.whole.place(APP) == place
        assert (await graph.progress(APP, 0)).checkpoint == Checkpoint()

    async def test_indexes_are_made_once(self, kit: GraphKit, graph: GraphStore) -> None:
        keys = [("User", "id"), ("Odd Name", "a b")]
        async with contextlib.aclosing(kit.store()) as again:
            for store in (graph, graph, again):
                await store.prepare(APP, keys)
        there = [*kit.indexes()]
        assert [there.count(key) for key in keys] == [1, 1]

    async def test_what_is_acknowledged_becomes_durable(self, graph: GraphStore) -> None:
        run = await graph.check()
        await graph.apply(APP, 0, chain(COUNT))
        async with asyncio.timeout(120):
            await graph.durable(run)

    async def test_a_server_says_up_to_where_its_graphs_are_complete(self, kit: GraphKit, graph: GraphStore) -> None:
        run = await graph.check()
        found = await graph.positions()
        _promises(found is not None, "positions")
        assert found == {}
        assert await graph.reached(3) == {}
        first, second = CommittedPosition(offset="7", count=3, note="{} a"), CommittedPosition(offset="9", count=5)
        await graph.durable(run, PositionMove(partition=3, before=None, after=first, reached={APP: "7", "other": "6"}))
        await graph.durable(run, PositionMove(partition=0, before=None, after=CommittedPosition()))
        await graph.durable(run, PositionMove(partition=3, before=first, after=second, reached={APP: "8"}))
        for before in (None, first, CommittedPosition(offset="9", count=5, note="another")):
            with pytest.raises(GraphUnavailable):
                await graph.durable(run, PositionMove(partition=3, before=before, after=first, reached={APP: "1"}))
        async with contextlib.aclosing(kit.store()) as again:
            assert await again.positions() == {0: CommittedPosition(), 3: second}
            assert await again.reached(3) == {APP: "8", "other": "6"}
            assert await again.reached(0) == {}
        if kit.features.graph_templates:
            async with contextlib.aclosing(kit.store(graph_template="{app_id}.other")) as other:
                assert await other.positions() == {}
                assert await other.reached(3) == {}
        if await graph.positions():
            await graph.whole.drop(APP)
            assert APP not in await graph.reached(3)

    async def test_the_note_of_a_position_is_kept(self, graph: GraphStore) -> None:
        found = await graph.positions()
        _promises(found is not None, "positions")
        place = CommittedPosition(offset="1-2", count=1, note='{"told":"1 2"}')
        await graph.durable(await graph.check(), PositionMove(partition=1, before=None, after=place))
        found = await graph.positions()
        assert found is not None
        assert found[1].note == place.note

    async def test_an_unavailable_server_is_transient(self, kit: GraphKit) -> None:
        store = kit.unavailable_store()
        for call in (
            store.check(), store.prepare(APP, []), store.progress(APP, 0), store.apply(APP, 0, chain(COUNT)),
            store.read(APP, "RETURN 1", {}, timeout_s=5), store.checkpoints(APP, timeout_s=5),
            store.positions(), store.reached(0),
        ):  # fmt: skip
            with pytest.raises(GraphUnavailable):
                await call
        await store.aclose()
        await store.aclose()

    async def test_a_server_that_crashes_keeps_what_it_acknowledged_and_comes_back(self, own_kit: GraphKit) -> None:
        _promises(own_kit.features.restart, "restart")
        async with contextlib.aclosing(own_kit.store(write_timeout_ms=2_000)) as store:
            await store.prepare(APP, [("Counter", "id")])
            here = await checkpoint(store)
            for _ in range(5):
                [step] = chain(COUNT, start=here)
                await store.apply(APP, 0, [step])
                here = step.after
            place = CommittedPosition(offset="5", count=5)
            move = PositionMove(partition=0, before=None, after=place)
            await store.durable(await store.check(), move if await store.positions() is not None else None)
            kept = await store.positions()
            await own_kit.kill()
            with pytest.raises(GraphUnavailable):
                await store.apply(APP, 0, chain(COUNT, start=here))
            await own_kit.start()
            # The first call finds connections that are dead.
            assert await until_answered(lambda: checkpoint(store), GraphUnavailable) == here
            assert await store.positions() == kept
            assert await store.apply(APP, 0, chain(COUNT, start=here)) == WriteResult(count=1)
            assert await value(store, "MATCH (c:Counter) RETURN c.n") == 6


def _promises(promised: bool, name: str) -> None:
    """Skip the test if the driver leaves a feature out."""
    if not promised:
        pytest.skip(f"the driver leaves out the feature {name!r}")

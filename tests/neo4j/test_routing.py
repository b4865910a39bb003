"""The scheme of a cluster, ``neo4j://``: the driver asks who leads the database, here of a single server."""

from __future__ import annotations

import contextlib

from tests.services.neo4j import Neo4jServer

from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import Checkpoint, PositionMove, Write


async def test_a_graph_is_written_and_read_by_routing(neo4j_server: Neo4jServer) -> None:
    neo4j_server.empty()
    async with contextlib.aclosing(Neo4jStore(f"neo4j://127.0.0.1:{neo4j_server.port}")) as store:
        run = await store.check()
        before = (await store.progress("routed", 0)).checkpoint
        after = Checkpoint(offset="5", plan="", done=0)
        await store.apply("routed", 0, [Write(before=before, after=after)])
        place = CommittedPosition(offset="5", count=6)
        await store.durable(run, PositionMove(partition=0, before=None, after=place))
        assert (await store.checkpoints("routed", timeout_s=20))[0] == after
        assert await store.positions() == {0: place}
        assert (await store.read("routed", "RETURN 1 AS one", {}, timeout_s=20)).rows == ((1,),)

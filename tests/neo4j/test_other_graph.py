"""A database of an app that holds the graph of another app, after a restored dump: it is neither read nor written."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from tests.neo4j.test_neo4j_tenants import OWNED
from tests.services.neo4j import Neo4jServer
from tests.services.rules import load_rules
from tests.services.waiting import until
from tests.services.workers import working

from graphweft import Client, Event
from graphweft_contracts import ContextRequest
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.drivers.neo4j.timing import Neo4jTiming
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import START, Checkpoint, MarksLost, OtherGraph, PlaceTaken, Write
from graphweft_workers.ports.position_note import PositionNote

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
APP, OTHER = "neo4j", "bank"  # the only database of the edition has the name of the app
SAID = f"the database '{APP}' holds the graph of another app, under the name of app '{APP}'"


def own(server: Neo4jServer) -> str:
    """Return a URL by which each app has a database of its own."""
    return f"{server.uri}/{{app_id}}"


def restore(server: Neo4jServer, app_id: str = OTHER) -> None:
    """Let the database be as if somebody had restored the dump of an app."""
    server.run(f"MATCH (a:__App) SET a.app_id = '{app_id}'")


async def make(graph: Neo4jStore) -> None:
    write = Write(query=parse("CREATE (:Order {id: 'o1'})", role="mutation"), rows=[{}], before=START,
                  after=Checkpoint(offset="1-0"))  # fmt: skip
    await graph.progress(APP, 0)
    await graph.apply(APP, 0, [write])


async def test_nothing_is_read_from_a_restored_database_or_written_to_it(neo4j_server: Neo4jServer) -> None:
    neo4j_server.empty()
    async with contextlib.aclosing(Neo4jStore(own(neo4j_server), timing=Neo4jTiming(owner_s=0.0))) as graph:
        await make(graph)
        statement = "MATCH (o:Order) RETURN o.id"
        assert (await graph.read(APP, statement, {}, timeout_s=60)).rows == (("o1",),)
        restore(neo4j_server)
        for call in (
            lambda: graph.read(APP, statement, {}, timeout_s=60), lambda: graph.checkpoints(APP, timeout_s=60),
            lambda: graph.progress(APP, 0), lambda: graph.progress(APP, 3), lambda: graph.prepare(APP, []),
            lambda: anext(graph.whole.nodes(APP)), lambda: graph.whole.schema(APP), lambda: graph.whole.drop(APP),
        ):  # fmt: skip
            with pytest.raises(OtherGraph, match=SAID) as refused:
                await call()
            assert OTHER not in str(refused.value)
        restore(neo4j_server, APP)
        assert (await graph.read(APP, statement, {}, timeout_s=60)).rows == (("o1",),)
        assert await graph.checkpoints(APP, timeout_s=60) == {0: Checkpoint(offset="1-0")}


async def test_nothing_is_read_from_a_graph_whose_own_node_is_gone_until_it_is_opened(
    neo4j_server: Neo4jServer,
) -> None:
    neo4j_server.empty()
    async with contextlib.aclosing(Neo4jStore(own(neo4j_server), timing=Neo4jTiming(owner_s=0.0))) as graph:
        assert await graph.checkpoints(APP, timeout_s=60) == {}
        await make(graph)
        statement = "MATCH (o:Order) RETURN o.id"
        neo4j_server.run("MATCH (a:__App) DELETE a")
        for call in (
            lambda: graph.read(APP, statement, {}, timeout_s=60), lambda: graph.checkpoints(APP, timeout_s=60),
            lambda: anext(graph.whole.nodes(APP)),
        ):  # fmt: skip
            with pytest.raises(MarksLost, match="somebody has deleted the node `__App`"):
                await call()
        assert (await graph.progress(APP, 0)).checkpoint == Checkpoint(offset="1-0")
        assert (await graph.read(APP, statement, {}, timeout_s=60)).rows == (("o1",),)
        neo4j_server.run("MATCH (n) DETACH DELETE n")
        assert await graph.checkpoints(APP, timeout_s=60) == {}
        assert (await graph.read(APP, statement, {}, timeout_s=60)).rows == ()


async def test_a_graph_whose_own_node_is_gone_becomes_no_other_apps(neo4j_server: Neo4jServer) -> None:
    neo4j_server.empty()
    async with contextlib.aclosing(Neo4jStore(neo4j_server.uri, timing=Neo4jTiming(owner_s=0.0))) as graph:
        await make(graph)
        neo4j_server.run("MATCH (a:__App) DELETE a")
        for call in (lambda: graph.progress(OTHER, 0), lambda: graph.prepare(OTHER, [])):
            with pytest.raises(PlaceTaken, match="holds the graph of another app"):
                await call()
        assert (await graph.read(APP, "MATCH (o:Order) RETURN o.id", {}, timeout_s=60)).rows == (("o1",),)
        neo4j_server.run("MATCH (a:__App) DELETE a")
        neo4j_server.run("MATCH (p:__Progress) REMOVE p.app")  # as an earlier version has made it
        assert (await graph.progress(APP, 0)).checkpoint == Checkpoint(offset="1-0")
        assert neo4j_server.run("MATCH (p:__Progress) RETURN p.app") == [[APP]]


async def test_an_app_waits_while_its_database_is_not_its_own(
    neo4j_server: Neo4jServer, url: str, bus: Bus, tmp_path: Path
) -> None:
    neo4j_server.empty()
    (tmp_path / "Support").mkdir()
    (tmp_path / "Support" / "graph_injection.yaml").write_text(OWNED)
    rules = load_rules(tmp_path)

    async def why() -> set[str]:
        notes = [PositionNote.decode(each.note) for each in await bus.partitions.status()]
        return {each.why for note in notes for each in note.parked.values()}

    async def orders() -> list[Any]:
        return sorted(await asyncio.to_thread(neo4j_server.run, "MATCH (o:Order) RETURN o.id"))

    async with contextlib.aclosing(Neo4jStore(own(neo4j_server))) as graph, Client(url) as client:
        await make(graph)
        restore(neo4j_server)
        paid = Event.create("order.paid", app_id=APP, chat_id="c", workflow="Support", data={"id": "o2"})
        assert await client.emit(paid, wait_s=120)
        async with working(bus, graph, rules):
            await until(why, lambda found: found == {"other_graph"}, why="the app waits")
            assert await orders() == [["o1"]]
            assert await bus.dead_letters.read(limit=10) == []
            pipeline = ContextPipeline(rules, graph, query_timeout_s=120)
            asked = {"id": "r", "app_id": APP, "workflow": "Support", "agent": "A", "chat_id": "c"}
            deadline_ms = int((time.time() + 120) * 1000)
            reply = await pipeline.answer(ContextRequest.model_validate({**asked, "deadline_ms": deadline_ms}))
            await pipeline.aclose()
            assert (reply.blocks, [each.reason for each in reply.missing]) == ((), ["query_error"])
            assert SAID in reply.missing[0].detail
            restore(neo4j_server, APP)
            await until(orders, lambda found: found == [["o1"], ["o2"]], why="the app goes on with its own graph")
            await until(why, lambda found: not found, why="no app waits")

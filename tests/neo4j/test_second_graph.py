"""A second graph in the database of the live one: rules see one of them, and their contents can be exchanged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import assume, given, settings
from neo4j import AsyncGraphDatabase
from tests.chaos.random_memory import memory_examples
from tests.chaos.random_rules import Example, examples, some_texts
from tests.chaos.serial import Content, Neo4jReference
from tests.neo4j.test_graph_dump import HOSTILE, NEO4J, SHARED
from tests.neo4j.test_serial_equality import _EXAMPLES, _SEED, Server, _checked, entries_of, rules_of
from tests.services.neo4j import Neo4jServer, sharing

from graphweft_contracts import Fenced, InvalidSettings
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.neo4j.namespaces import Namespace, refusal
from graphweft_workers.drivers.neo4j.statements import deletion
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.engine.plan.graph_marks import is_loading
from graphweft_workers.ports.graph_store import Checkpoint, Write
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.features import features

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

APP = "only"
BESIDE = "{app_id}.second"
MARK = Namespace(f"{APP}.second").mark
CONTENT = SHARED.replace("list: [1, 'x', 2.5, true]", "list: [1, 2]")


class Graphs:
    """The live graph and a second one."""

    def __init__(self, server: Neo4jServer) -> None:
        self.server = server
        self.live, self.second = Neo4jStore(server.uri), Neo4jStore(server.uri, beside=BESIDE)

    async def write(self, store: Neo4jStore, text: str, **values: Any) -> None:
        before = (await store.progress(APP, 0)).checkpoint
        query = parse(text, role="mutation")
        names = {name: value for name, value in values.items() if name in query.params}
        after = replace(before, offset=f"{before.done + 1}-0", done=before.done + 1)
        done = await store.apply(APP, 0, [Write(query=query, rows=[names], before=before, after=after)])
        assert done.failure is None, done.failure

    async def run(self, text: str) -> list[list[Any]]:
        """Run a statement past the stores."""
        async with (
            AsyncGraphDatabase.driver(self.server.uri, notifications_min_severity="OFF") as driver,
            driver.session() as session,
        ):
            return await (await session.run(text)).values()

    async def exchange(self) -> bool:
        expected = await self.live.checkpoints(APP, timeout_s=120)
        return await self.live.whole.exchange(APP, await self.second.whole.graph_id(APP), expected)

    async def digests(self) -> tuple[Any, Any]:
        return await read_digest(self.live, APP), await read_digest(self.second, APP)

    async def dumps(self) -> list[list[Any]]:
        """Return the exact values of both graphs, without ids."""
        return [
            sorted([_without_ids(line) async for line in each.whole.dump(APP)]) for each in (self.live, self.second)
        ]


def _without_ids(line: bytes) -> str:
    kind, *rest, properties = json.loads(line)
    return json.dumps([kind, sorted(rest[1]) if kind == "node" else rest[2], properties], sort_keys=True)


@pytest_asyncio.fixture
async def graphs(neo4j_server: Neo4jServer) -> AsyncIterator[Graphs]:
    made = Graphs(neo4j_server)
    await made.run("MATCH (n) DETACH DELETE n")
    async with contextlib.aclosing(made.live), contextlib.aclosing(made.second):
        yield made
        await made.second.whole.drop(APP)


async def test_contents_are_exchanged_exactly_and_back(graphs: Graphs) -> None:
    await graphs.write(graphs.live, CONTENT, t=HOSTILE)
    await graphs.write(graphs.live, NEO4J, t=HOSTILE)
    await graphs.write(graphs.second, CONTENT, t=HOSTILE)  # equal but for some values, and a relationship
    await graphs.write(graphs.second, "MATCH (a:A)-[r:R {w: 1}]->() DELETE r")
    await graphs.write(
        graphs.second, "MATCH (b:B) CREATE (b)-[:NEW]->(:C {x: 1}), (:C {x: 1})-[:NEW]->(b), (:C {x: 1})"
    )
    digests, dumps = await graphs.digests(), await graphs.dumps()
    marks = [await each.checkpoints(APP, timeout_s=120) for each in (graphs.live, graphs.second)]
    assert digests[0] != digests[1]
    for turn in (1, 0, 1):
        assert await graphs.exchange()
        assert await graphs.digests() == (digests[turn], digests[1 - turn])
        assert await graphs.dumps() == [dumps[turn], dumps[1 - turn]]
        found = [await each.checkpoints(APP, timeout_s=120) for each in (graphs.live, graphs.second)]
        assert found == [marks[turn], marks[1 - turn]]
    await graphs.write(graphs.live, "MATCH (c:C) SET c.x = 2")  # both take writes
    await graphs.write(graphs.second, "MATCH (a:A) SET a.x = 2")


async def test_equal_nodes_stay_where_they_are(graphs: Graphs) -> None:
    chain = "UNWIND range(1, 50) AS i CREATE (:N {id: i})-[:OF]->(:Same)-[:IN]->(:Same {deep: true})"
    for store in (graphs.live, graphs.second):
        await graphs.write(store, chain)
    before = await graphs.run("MATCH (n:N)-->(m:Same) RETURN elementId(n), elementId(m), n.id ORDER BY n.id")
    await graphs.write(graphs.second, "MATCH (n:N {id: 7}) SET n.x = 1")
    assert await graphs.exchange()
    after = await graphs.run("MATCH (n:N)-->(m:Same) RETURN elementId(n), elementId(m), n.id ORDER BY n.id")
    assert [a[2] for a, b in zip(after, before, strict=True) if a != b] == [7]


async def test_nobody_sees_a_second_graph_by_accident(graphs: Graphs) -> None:
    await graphs.write(graphs.live, "CREATE (:N {id: 1})-[:R]->(:M {id: 2})")
    before = await read_digest(graphs.live, APP)
    reads = ("MATCH (n) RETURN count(n)", "MATCH (n)-[r]->(m) RETURN count(r)", "MATCH (n:!N) RETURN count(n)",
             "MATCH (n {id: 1}) RETURN count(n)", "RETURN COUNT { (n:N) }", "MATCH (n:N|M) RETURN count(n)",
             "MATCH (n:N) RETURN EXISTS { (n)-->() }, [(n)-->(m) | labels(m)]")  # fmt: skip
    alone = [(await graphs.live.read(APP, each, {}, timeout_s=120)).rows for each in reads]
    for number in range(3):
        await graphs.write(graphs.second, "CREATE (:N {id: 1})-[:R]->(:M {id: $n})", n=number)
    assert [(await graphs.live.read(APP, each, {}, timeout_s=120)).rows for each in reads] == alone
    listed = [node.labels async for node in graphs.second.whole.nodes(APP) if not node.labels[0].startswith("__")]
    assert sorted(listed) == [("M",)] * 3 + [("N",)] * 3
    found = await graphs.second.read(APP, "MATCH (n {id: 1}) RETURN DISTINCT labels(n)", {}, timeout_s=120)
    assert sorted(found.rows) == [(["M"],), (["N"],)]
    await graphs.write(graphs.live, "MATCH (n) WHERE n.id = 1 SET n.seen = true")
    await graphs.write(graphs.live, "MATCH (n)-[:R]->(m) SET m.seen = true")
    assert (await graphs.second.read(APP, "MATCH (n) WHERE n.seen RETURN n", {}, timeout_s=120)).rows == ()
    await graphs.second.whole.drop(APP)
    assert await graphs.run(f"MATCH (n:`{MARK}`) RETURN n") == []
    indexes = await graphs.run("SHOW INDEXES YIELD labelsOrTypes AS labels WHERE labels IS NOT NULL RETURN labels[0]")
    assert [label for [label] in indexes if label.startswith(MARK)] == []
    await graphs.write(graphs.live, "MATCH (n:N) REMOVE n.seen")
    await graphs.write(graphs.live, "MATCH (n:M) REMOVE n.seen")
    assert await read_digest(graphs.live, APP) == before


async def test_a_second_graph_that_is_half_deleted_is_deleted_the_next_time(graphs: Graphs) -> None:
    await graphs.write(graphs.live, "CREATE (:N {id: 1})")
    before = await read_digest(graphs.live, APP)
    statements = deletion(Namespace(f"{APP}.second"))
    for ended in range(len(statements)):
        await graphs.write(graphs.second, "CREATE (:N {id: 1})")
        for statement in statements[:ended]:
            await graphs.run(statement)
        marks = (await graphs.second.checkpoints(APP, timeout_s=120)).values()
        assert [is_loading(each) for each in marks] == [ended > 0]
        assert await graphs.second.whole.graph_id(APP)
        await graphs.second.whole.drop(APP)
        assert await graphs.run(f"MATCH (n:`{MARK}`) RETURN n") == []
    assert await read_digest(graphs.live, APP) == before


async def test_an_exchange_is_refused_when_either_graph_has_moved(graphs: Graphs) -> None:
    await graphs.write(graphs.live, "CREATE (:N)")
    await graphs.write(graphs.second, "CREATE (:M)")
    digests, name = await graphs.digests(), await graphs.second.whole.graph_id(APP)
    assert not await graphs.live.whole.exchange(APP, name, {0: Checkpoint(offset="9-0")})
    assert await graphs.digests() == digests
    with pytest.raises(InvalidSettings, match="another database"):
        await graphs.live.whole.exchange(APP, "other/second", await graphs.live.checkpoints(APP, timeout_s=120))
    stale = (await graphs.live.progress(APP, 0)).checkpoint
    await graphs.write(graphs.second, "CREATE (:M)")
    assert await graphs.exchange()
    with pytest.raises(Fenced):
        await graphs.live.apply(APP, 0, [Write(before=stale, after=Checkpoint(offset="10-0"))])


async def test_an_app_has_no_second_graph_in_the_database_of_another(graphs: Graphs) -> None:
    await graphs.write(graphs.live, "CREATE (:N)")
    with pytest.raises(Exception, match="holds the graph of another app"):
        await graphs.second.progress("other", 0)


@pytest.mark.long
async def test_all_own_mutations_run_in_a_second_graph(graphs: Graphs) -> None:
    packs = [pack for feature in features(Settings.load(unknown=[])) for pack in feature.mutations()]
    queries = [each.cypher for pack in packs for each in pack.mutations]
    assert len(queries) > 30
    # One after the other: at once, they would share the time that the server has for each.
    assert {await graphs.second.whole.obstacle(each) for each in queries} == {""}
    odd = parse("MATCH (n:N) SET n.x = 1 WITH n MERGE (m {id: 1})", role="mutation")
    assert "MERGE without a label" in await graphs.second.whole.obstacle(odd)
    assert await graphs.live.whole.obstacle(odd) == ""


@pytest.fixture(scope="module")
def servers(neo4j_server: Neo4jServer) -> Iterator[tuple[Server, Server]]:
    """The live graph with its reference, and the second one."""
    with asyncio.Runner() as runner:

        async def connect() -> tuple[Neo4jStore, Neo4jStore, Neo4jReference]:
            reference = Neo4jReference(neo4j_server.uri)
            await reference.clear()
            live, beside = Neo4jStore(neo4j_server.uri), Neo4jStore(neo4j_server.uri, beside=BESIDE)
            return sharing(live, 2), sharing(beside, 2), reference

        live, second, reference = runner.run(connect())
        yield Server(runner, live, reference), Server(runner, second, reference)
        runner.run(second.whole.drop(APP))
        runner.run(reference.clear())
        for each in (live, second, reference):
            runner.run(each.aclose())


async def _fill(server: Server, example: Example) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rules = rules_of(example, Path(folder))
    assume(not any(refusal(part.cypher.outline) for part in rules.mutations))
    await server.engine(entries_of(example, [APP]), rules, example)


def _both(servers: tuple[Server, Server], example: Example) -> None:
    """Apply the same events to both graphs, then exchange what is in them with that of half of the events."""
    live, second = servers

    async def run() -> None:
        for each in (live, second):
            await each.store.whole.drop(APP)
        await _fill(live, example)
        before = await Content.of(live.store, APP)
        await _fill(second, example)
        found = await Content.of(second.store, APP)
        assert found.digest == before.digest, found.against(before)
        assert (await Content.of(live.store, APP)).digest == before.digest
        await second.store.whole.drop(APP)
        await _fill(second, replace(example, events=example.events[::2]))
        other = await Content.of(second.store, APP)
        expected = await live.store.checkpoints(APP, timeout_s=120)
        assert await live.store.whole.exchange(APP, await second.store.whole.graph_id(APP), expected)
        assert (await Content.of(live.store, APP)).digest == other.digest
        assert (await Content.of(second.store, APP)).digest == before.digest

    live.runner.run(run())


@pytest.mark.long
@settings(_checked, max_examples=int(_EXAMPLES or 2))
@given(example=examples(events=12, texts=some_texts(_SEED, 100)))
def test_random_rules_make_the_same_second_graph(servers: tuple[Server, Server], example: Example) -> None:
    _both(servers, example)


@pytest.mark.long
@settings(_checked, max_examples=int(_EXAMPLES or 2))
@given(example=memory_examples(events=12))
def test_random_memories_make_the_same_second_graph(servers: tuple[Server, Server], example: Example) -> None:
    _both(servers, replace(example, rules=[]))

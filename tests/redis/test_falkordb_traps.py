"""What FalkorDB 4.22 does today where one would not expect it: each test fails when the server changes.

Then a rule of ``falkordb_batch_query`` or of the linter may go. Every test names what meets the trap on our side.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis
from tests.services.waiting import turns, until

from graphweft_contracts import GraphUnavailable, channels
from graphweft_rules.cypher.clauses import outline
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb import index_repair
from graphweft_workers.drivers.falkordb.batch_query import falkordb_batch_query
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.falkordb.traps import copied_writes, filtered_optionals, path_merges
from graphweft_workers.features.graphrag.safe_cypher import templates

pytestmark = pytest.mark.integration


class Graphs:
    """Runs queries; each graph is empty at first."""

    def __init__(self, socket: str) -> None:
        self.client = redis.Redis(unix_socket_path=socket, decode_responses=True)

    def run(self, graph: str, *queries: str) -> Any:
        """Run queries one after the other; return the rows of the last."""
        for query in queries:
            reply = self.client.execute_command("GRAPH.QUERY", graph, query)
        return reply[1] if len(reply) == 3 else []

    def index(self, graph: str, label: str) -> None:
        """Make an index on the label's id; the server builds it in the background."""
        self.run(graph, f"CREATE INDEX FOR (n:{label}) ON (n.id)")
        while self.run(graph, "CALL db.indexes() YIELD status RETURN status") != [["OPERATIONAL"]]:
            pass

    def properties(self, graph: str, node: str, *names: str) -> Any:
        return self.run(graph, f"MATCH {node} RETURN {', '.join(names)}")


@pytest.fixture
def graphs(server: EmbeddedServer, url: str) -> Iterator[Graphs]:
    opened = Graphs(str(server.socket))
    yield opened
    opened.client.close()


@pytest_asyncio.fixture
async def own_graphs() -> AsyncIterator[Graphs]:
    """Graphs on a server of their own, which the test may damage."""
    with tempfile.TemporaryDirectory(prefix="graphweft-test-") as folder:
        running = EmbeddedServer(Path(folder))
        await running.start()
        opened = Graphs(str(running.socket))
        yield opened
        opened.client.close()
        await running.stop()


def codes(statement: str) -> set[str]:
    return {problem.code for problem in parse(statement, role="mutation", dialects=[FALKORDB]).problems}


def mode(statement: str) -> str:
    return parse(statement, role="mutation").batch_query(FALKORDB).mode


def test_trap_1_a_copied_property_that_is_overwritten_is_wrong_over_several_rows(own_graphs: Graphs) -> None:
    values = [f"v{number:03}" + "x" * 40 for number in range(50)]
    for graph, rows in (("each", [[value] for value in values]), ("together", [values])):
        own_graphs.run(graph, "CREATE (:B {x: 'old'})")
        for part in rows:
            own_graphs.run(graph, f"CYPHER rows={part} UNWIND $rows AS r MATCH (b:B) SET b.x = r, b.z = b.x")
    assert own_graphs.properties("each", "(b:B)", "b.z", "b.x") == [[values[-2], values[-1]]]
    assert own_graphs.properties("together", "(b:B)", "b.z", "b.x") != [[values[-2], values[-1]]]
    assert mode("MATCH (b:B {id: $id}) SET b.x = $x, b.z = b.x") != "ordered"
    copying = "UNWIND $xs AS x MATCH (b:B {id: $id}) SET b.z = b.x, b.x = x"
    assert [name for name, _ in copied_writes(outline(copying))] == ["b.x"]
    assert not list(copied_writes(outline(copying.replace("b.z = b.x", "b.z = b.y"))))


def test_trap_2_the_right_side_of_set_reads_what_was_before_all_adjacent_sets(graphs: Graphs) -> None:
    graphs.run("g", "CREATE (:N {c: 0})", "MATCH (n:N) SET n.c = 5 SET n.d = n.c")
    assert graphs.properties("g", "(n:N)", "n.c", "n.d") == [[5, 0]]
    assert "set-reads-old" in codes("MATCH (n:N) SET n.c = 5 SET n.d = n.c")


def test_trap_2_a_map_that_is_added_is_read_by_items_behind_it(graphs: Graphs) -> None:
    graphs.run("g", "CREATE (:N {c: 0})", "MATCH (n:N) SET n += {c: 5}, n.d = n.c")
    assert graphs.properties("g", "(n:N)", "n.c", "n.d") == [[5, 5]]
    # So a map is never written out as items beside others that read.
    form = falkordb_batch_query(outline("MERGE (n:N {id: $id}) SET n += {c: $c}"), ["id", "c"])
    assert "n += {c: __gw_row[2]}" in form.statement


def test_trap_3_a_pattern_with_a_bound_variable_matches_nothing(graphs: Graphs) -> None:
    graphs.run("g", "CREATE (:Guard), (:A)")
    assert graphs.run("g", "MATCH (o:Guard) MATCH (o:A) RETURN o") == []
    assert "reserved-name" in codes("MATCH (__gw:A {id: $id}) SET __gw.x = 1")
    assert mode("MATCH (__gw_row:A {id: $id}) SET __gw_row.x = 1") == "single"


def test_trap_4_optional_match_first_passes_a_condition_that_does_not_hold(graphs: Graphs) -> None:
    graphs.run("g", "CREATE (:B {k: 1})")
    query = "OPTIONAL MATCH (b:B {k: 9}) WITH b WHERE b IS NOT NULL RETURN b"
    assert graphs.run("g", query) == [[None]]
    assert graphs.run("g", f"UNWIND [1] AS one {query}") == []
    assert mode("OPTIONAL MATCH (b:B {k: $k}) WITH b WHERE b IS NOT NULL MERGE (a:A {k: $k})") == "single"
    assert [name for name, _ in filtered_optionals(outline(query))] == ["b"]
    assert not list(filtered_optionals(outline(f"UNWIND [1] AS one {query}")))


def test_trap_5_two_merges_of_one_type_make_one_edge_or_two(graphs: Graphs) -> None:
    query = "MATCH (a:A), (b:B) MERGE (a)-[r:R]->(b) MERGE (a)-[s:R]->(b)"
    for graph, end in (("one", ""), ("two", " SET s.x = 1")):
        graphs.run(graph, "CREATE (:A), (:B)", query + end)
    assert graphs.run("one", "MATCH ()-[r]->() RETURN count(r)") == [[1]]
    assert graphs.run("two", "MATCH ()-[r]->() RETURN count(r)") == [[2]]
    assert "two-merges-one-type" in codes(query)
    assert mode("MERGE (a:A {id: $a}) MERGE (b:B {id: $b}) MERGE (a)-[:R]->(b) MERGE (b)-[:R]->(a)") == "single"


def test_trap_6_a_merge_of_a_path_loses_rows_with_an_index(graphs: Graphs) -> None:
    query = "UNWIND [1, 2] AS i MERGE (a:A {id: 2})-[:S]->(b:A:C {id: 1}) RETURN i"
    assert len(graphs.run("without", "CREATE (:C {id: 1})", query)) == 2
    graphs.index("with", "C")
    assert len(graphs.run("with", "CREATE (:C {id: 1})", query)) == 1
    assert mode("MERGE (a:A {id: $a})-[:S]->(b:C {id: $b})") != "ordered"
    assert [label for label, _ in path_merges(outline(query))] == ["A"]
    assert not list(path_merges(outline("UNWIND $xs AS x MERGE (a:A {id: x}) MERGE (b:C) MERGE (a)-[:S]->(b)")))


def test_trap_7_with_an_index_true_is_1(graphs: Graphs) -> None:
    graphs.run("without", "CREATE (:A {id: 1})")
    graphs.index("with", "A")
    graphs.run("with", "CREATE (:A {id: 1})")
    assert graphs.run("without", "MATCH (a:A {id: true}) RETURN a.id") == []
    assert graphs.run("with", "MATCH (a:A {id: true}) RETURN a.id") == [[1]]
    # What tells rows apart is named, so that rows with other keys than integers or strings run alone.
    assert falkordb_batch_query(outline("MERGE (a:A {id: $id})"), ["id"]).keys == ("id",)


def test_trap_7_which_of_two_equal_keys_is_kept_depends_on_sharing_a_query(graphs: Graphs) -> None:
    graphs.run("each", "MERGE (:A {id: 1})", "MERGE (:A {id: 1.0})")
    graphs.run("together", "UNWIND [1, 1.0] AS i MERGE (:A {id: i})")
    assert graphs.run("each", "MATCH (a:A) RETURN typeOf(a.id)") == [["Integer"]]
    assert graphs.run("together", "MATCH (a:A) RETURN typeOf(a.id)") == [["Float"]]


def test_trap_8_two_merges_that_match_many_multiply(graphs: Graphs) -> None:
    query = "MERGE (a:A {id: 1}) MERGE (b:A {id: 1}) CREATE (:A {id: 1})"
    for graph, count in (("few", 4), ("many", 12)):
        graphs.run(graph, f"UNWIND range(1, {count}) AS i CREATE (:A {{id: 1}})", f"UNWIND [1, 2] AS r {query}")
        assert graphs.run(graph, "MATCH (a) RETURN count(a)") == [[count + 2 * count * count]]
    assert mode("MERGE (a:A {id: $a}) MERGE (b:A {id: $b}) CREATE (:A {id: $c})") != "ordered"


def test_trap_8_a_writing_query_has_no_time_limit_while_the_maximum_is_0(own_graphs: Graphs) -> None:
    client = own_graphs.client
    create = "UNWIND range(1, 300000) AS i CREATE (:A {id: i})"
    with pytest.raises(redis.ResponseError, match="Query timed out"):
        client.execute_command("GRAPH.QUERY", "limited", create, "TIMEOUT", 5)
    assert own_graphs.run("limited", "MATCH (a:A) RETURN count(a)") == [[0]]
    for name in ("TIMEOUT_DEFAULT", "TIMEOUT_MAX"):
        client.execute_command("GRAPH.CONFIG", "SET", name, 0)
    client.execute_command("GRAPH.QUERY", "unlimited", create, "TIMEOUT", 5)
    assert own_graphs.run("unlimited", "MATCH (a:A) RETURN count(a)") == [[300_000]]


def test_trap_9_a_query_makes_the_graph_that_it_misses_and_a_reading_query_does_not(graphs: Graphs) -> None:
    with pytest.raises(redis.ResponseError, match="Invalid graph operation on empty key"):
        graphs.client.execute_command("GRAPH.RO_QUERY", "missing", "MATCH (n) RETURN n")
    assert not graphs.client.exists("missing")
    assert graphs.run("missing", "MATCH (n) RETURN n") == []
    assert graphs.client.exists("missing")


def test_trap_10_left_may_read_past_the_end_of_a_text_with_more_bytes_than_it_asks_for(server: EmbeddedServer) -> None:
    # `left(s, 500)` of a text of fewer letters and more bytes answers with what lies behind it in memory: at times
    # nothing, at times other letters, at times no text at all. That cannot be asked of a test; what avoids it can.
    with redis.Redis(unix_socket_path=str(server.socket)) as client:
        for sign in ("\u4e2d", "\u3042", "\u0436"):
            for length in range(170, 500, 10):
                text = sign * length
                query = f"WITH '{text}' AS s RETURN CASE WHEN size(s) > 500 THEN left(s, 500) ELSE s END"
                assert client.execute_command("GRAPH.QUERY", "left", query)[1] == [[text.encode()]]
    # So no query of a retrieval cuts what is not longer.
    for template in templates(FALKORDB).values():
        assert template.count("left(") == len(re.findall(r"WHEN size\((\w+)\) > \d+ THEN left\(\1,", template))
        assert "substring(" not in template  # which reads past the end as well


def test_a_relationship_that_is_not_used_is_not_told_from_a_parallel_one(graphs: Graphs) -> None:
    graphs.run("g", "CREATE (:A)-[:R]->(:B)", "MATCH (a:A), (b:B) CREATE (a)-[:R]->(b)")
    graphs.run("g", "MATCH (a:A)-[r:R]->(b:B) SET b.once = coalesce(b.once, 0) + 1")
    graphs.run("g", "MATCH (a:A)-[r:R]->(b:B) WITH * SET b.twice = coalesce(b.twice, 0) + 1")
    assert graphs.properties("g", "(b:B)", "b.once", "b.twice") == [[1, 2]]
    form = falkordb_batch_query(outline("MATCH (a:A {id: $id})-[r:R]->(b:B) SET b.n = coalesce(b.n, 0) + 1"), ["id"])
    assert "WITH __gw_row, b ORDER BY" in form.statement


def test_merge_takes_rows_from_the_last_to_the_first(graphs: Graphs) -> None:
    graphs.run("g", "CREATE (:A {id: 1})", "UNWIND [1, 2, 3] AS u MERGE (a:A {id: 1}) SET a.u = coalesce(a.u, []) + u")
    assert graphs.properties("g", "(a:A)", "a.u[0]") == [[3]]
    form = falkordb_batch_query(outline("MERGE (a:A {id: $id}) SET a.u = $u"), ["id", "u"])
    assert "ORDER BY __gw_row[0] SET" in form.statement


def test_a_condition_is_asked_for_all_rows_before_the_first_is_set(graphs: Graphs) -> None:
    graphs.run("g", "CREATE (:A {v: 0})", "UNWIND [1, 2] AS u MATCH (a:A) WHERE a.v < 1 SET a.v = a.v + 1")
    assert graphs.properties("g", "(a:A)", "a.v") == [[2]]
    form = falkordb_batch_query(outline("MATCH (a:A {id: $id}) WHERE a.v < $v SET a.v = a.v + 1"), ["id", "v"])
    assert "CASE WHEN (a.v < __gw_row[2])" in form.statement


@pytest.mark.parametrize("within", ["CALL {{ {} }}", "{}"])
@pytest.mark.parametrize(
    "statement",
    [
        "MERGE (a:A {id: $id}) SET a.x = $x",
        "MERGE (a:A {id: $id}) ON CREATE SET a.x = $x ON MATCH SET a.y = $x",
        "CREATE (:A {id: $id, x: $x})",
        "OPTIONAL MATCH (b:B {id: $id}) MERGE (a:A {id: $id}) SET a.x = b IS NOT NULL",
    ],
)
def test_a_form_behind_a_guard_that_does_not_match_writes_nothing(graphs: Graphs, within: str, statement: str) -> None:
    form = falkordb_batch_query(outline(statement), ["id", "x"])
    assert form.mode == "ordered"
    body = within.format(f"UNWIND $rows AS __gw_row {form.statement}")
    for graph, done in (("matching", 0), ("other", 7)):
        guard = f"MATCH (__gw:__Progress) WHERE __gw.done = {done} SET __gw.done = 1 WITH __gw"
        graphs.run(graph, "CREATE (:__Progress {done: 0})")
        graphs.run(graph, f"CYPHER rows=[[0, 1, 2], [1, 1, 3]] {guard} {body}")
    assert graphs.run("matching", "MATCH (a:A) RETURN count(a) > 0") == [["true"]]
    assert graphs.run("other", "MATCH (a:A) RETURN count(a)") == [[0]]
    assert graphs.properties("other", "(p:__Progress)", "p.done") == [[0]]


async def test_a_server_that_begins_with_a_snapshot_finds_the_number_zero(tmp_path: Path) -> None:
    """Without new indexes it finds neither a checkpoint of partition 0 nor a rule's node with the key 0."""
    graph = channels.graph_name("zero")
    count = "MATCH (i:Item {k: 0}) RETURN count(i)"
    positions: list[object] = []
    found: list[object] = []
    for run in range(3):
        server = EmbeddedServer(tmp_path)
        await server.start()
        try:
            async with contextlib.aclosing(FalkorDBStore(f"unix://{server.socket}")) as store:
                positions.append((await store.progress("zero", 0)).checkpoint.offset)
                await store.progress("zero", 1)
                await store.prepare("zero", [("Item", "k")])
                redis: Any = store._redis  # pyright: ignore[reportPrivateUsage]
                for key in ("0", "0.0", "1", "false"):
                    await redis.execute_command("GRAPH.QUERY", graph, f"MERGE (:Item {{k: {key}}})")
                await redis.execute_command(
                    "GRAPH.QUERY", graph, f"MATCH (p:__Progress) WHERE p.partition + 0 = 0 SET p.pos = '{run + 1}'"
                )
                found.append((await store.read("zero", count, {}, timeout_s=120)).rows[0][0])
                assert len(await store.checkpoints("zero", timeout_s=120)) == 2
                total = "MATCH (p:__Progress) RETURN count(p)"
                assert (await store.read("zero", total, {}, timeout_s=120)).rows == ((2,),)
                await redis.execute_command("BGREWRITEAOF")
                await until(
                    functools.partial(redis.info, "persistence"), lambda found: not found["aof_rewrite_in_progress"],
                    why="the log is rewritten",
                )  # fmt: skip
        finally:
            await server.stop()
    assert positions == ["", "1", "2"]
    assert len(set(found)) == 1, found


async def test_indexes_of_a_new_graph_are_made_once(url: str) -> None:
    """The first event of an app would wait while each of its indexes is dropped and made again."""
    async with contextlib.aclosing(FalkorDBStore(url)) as store:
        redis: Any = store._redis  # pyright: ignore[reportPrivateUsage]
        await store.prepare("fresh", [("Item", "k"), ("Item", "id")])
        before = await commands(redis)
        await store.progress("fresh", 0)
        assert await commands(redis) - before == 1  # the checkpoint
        # A graph that has indexes of unknown age keeps waiting for its repair, whatever is added to them.
        key, graph = channels.graph_indexes(channels.graph_name("fresh")), channels.graph_name("fresh")
        await redis.delete(key)
        await store.prepare("fresh", [("Item", "name")])
        await redis.execute_command("GRAPH.QUERY", graph, "CREATE (:Item {k: 1, id: 'a', name: true})")
        before = await commands(redis)
        await store.progress("fresh", 0)
        assert await commands(redis) - before == 2  # no value that an index may have lost: they are listed only
        await redis.execute_command("GRAPH.QUERY", graph, "CREATE (:Item {k: 0, id: false, name: [-0.0]})")
        await redis.delete(key)
        before = await commands(redis)
        await store.progress("fresh", 0)
        assert await commands(redis) - before >= 8  # each of the three is dropped and made


async def test_indexes_beside_one_of_vectors_stop_no_other_graph(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of indexes while one of the label is being built stops the server until it is built."""
    async with contextlib.aclosing(FalkorDBStore(url)) as store:
        redis: Any = store._redis  # pyright: ignore[reportPrivateUsage]
        graph, vector = channels.graph_name("wide"), SearchIndex.of_rules("vector", "Item", "v", 64)
        await redis.execute_command(
            "GRAPH.QUERY", graph,
            "UNWIND range(1, 3000) AS i CREATE (:Item {k: i, id: 0, v: vecf32([x IN range(1, 64) | rand()])})",
        )  # fmt: skip
        words = [SearchIndex.of_rules("fulltext", "Item", name, None) for name in ("a", "b")]
        changes: list[tuple[str, frozenset[str]]] = []
        execute = redis.execute_command

        async def noted(*command: Any, **options: Any) -> Any:
            if command[0] == "GRAPH.QUERY" and re.search(r"\bINDEX |createNodeIndex", command[2]):
                changes.append((command[2], (await index_repair.indexes_of(store._graph("wide"))).unfinished))
            return await execute(*command, **options)

        with monkeypatch.context() as patch:
            patch.setattr(redis, "execute_command", noted)
            for step in (
                lambda: store.prepare("wide", [("Item", "k"), ("Item", "id")], [vector, *words]),
                lambda: store.progress("wide", 0),  # the index of ``id`` is dropped and made
            ):
                while True:
                    with contextlib.suppress(GraphUnavailable):  # others have waited, and the app goes on waiting
                        await step()
                        break
                await execute("DEL", channels.graph_indexes(graph))
        assert len(changes) == 7, changes
        assert [statement for statement, unfinished in changes if unfinished] == []


async def commands(redis: Any) -> int:
    """Return the number of queries that the server has run, listings of indexes included."""
    return int((await redis.info("commandstats"))["cmdstat_graph.QUERY"]["calls"])


class _Cut:
    """A client of a real server whose caller is cancelled when the server has taken a SET, before it gets the reply."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.caller: asyncio.Task[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def set(self, *given: Any, **more: Any) -> Any:
        reply = await self._client.set(*given, **more)
        caller, self.caller = self.caller, None
        if caller is not None:
            caller.cancel()
            await turns()
        return reply


async def test_a_worker_that_is_cancelled_leaves_no_lock_on_indexes(url: str) -> None:
    """With one, the app would wait until the lock ends."""
    lock = f"{channels.graph_indexes(channels.graph_name('cut'))}:lock"
    async with contextlib.aclosing(FalkorDBStore(url)) as store:
        redis: Any = store._redis  # pyright: ignore[reportPrivateUsage]
        cut: Any = _Cut(redis)
        store._redis = cut  # pyright: ignore[reportPrivateUsage]
        cut.caller = asyncio.create_task(store.progress("cut", 0))
        await asyncio.gather(cut.caller, return_exceptions=True)
        assert await redis.get(lock) is None
        assert (await store.progress("cut", 0)).checkpoint.offset == ""


async def test_a_lock_on_indexes_is_short_and_only_its_holder_ends_it(url: str) -> None:
    """A worker that was killed leaves its lock."""
    key = channels.graph_indexes(channels.graph_name("lost"))
    async with contextlib.aclosing(FalkorDBStore(url)) as store:
        redis: Any = store._redis  # pyright: ignore[reportPrivateUsage]
        await store.prepare("lost", [("Item", "k")])
        await redis.delete(key)  # as if an earlier run of the server had made the index
        left: list[int] = []

        class Taken(_Cut):
            async def set(self, *given: Any, **more: Any) -> Any:
                reply = await redis.set(*given, **more)
                if given[0] == f"{key}:lock":
                    left.append(await redis.pttl(f"{key}:lock"))
                    await redis.set(f"{key}:lock", "another worker")
                return reply

        taken: Any = Taken(redis)
        store._redis = taken  # pyright: ignore[reportPrivateUsage]
        await store.progress("lost", 0)
        assert await redis.get(f"{key}:lock") == "another worker"
        assert 0 < left[0] <= 30_000
        await redis.delete(f"{key}:lock")

"""What every graph store promises (``GraphStore``'s docstring), against the real servers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import neo4j
import pytest
import pytest_asyncio
import redis as redis_sync
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.services.neo4j import Neo4jServer
from tests.services.waiting import turns, until_answered

from graphweft_contracts import Fenced, GraphUnavailable, QueryFailed
from graphweft_rules.cypher.query import Cypher, parse
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.engine.digest import read_digest
from graphweft_workers.ports.graph_store import START, Applied, Checkpoint, GraphStore, Progress, Write

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
APP = "shop"
COUNT = "MERGE (c:Counter {id: 1}) ON CREATE SET c.n = 1 ON MATCH SET c.n = c.n + 1"


@dataclass(frozen=True)
class Backend:
    """One kind of server, running and empty."""

    name: str
    make: Callable[..., GraphStore]
    run: Callable[[str], Any]
    """Run a statement in the app's graph past the store."""


def falkordb(address: str) -> Backend:
    def run(statement: str) -> Any:
        with contextlib.closing(redis_sync.Redis.from_url(address, decode_responses=True)) as client:
            reply = client.execute_command("GRAPH.QUERY", f"mozaiks_{APP}", statement)
            return reply[1] if len(reply) == 3 else []

    return Backend(name="falkordb", make=lambda **given: FalkorDBStore(address, **given), run=run)


def neo4j_at(server: Neo4jServer) -> Backend:
    def run(statement: str) -> Any:
        with neo4j.GraphDatabase.driver(server.uri) as driver, driver.session() as session:
            return session.run(statement).values()

    run("MATCH (n) DETACH DELETE n")
    return Backend(name="neo4j", make=lambda **given: Neo4jStore(server.uri, **given), run=run)


def backend_of(name: str, request: pytest.FixtureRequest) -> Backend:
    return (
        neo4j_at(request.getfixturevalue("neo4j_server"))
        if name == "neo4j"
        else falkordb(request.getfixturevalue("url"))
    )


@pytest.fixture(params=["falkordb", "neo4j"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_of(request.param, request)


@pytest_asyncio.fixture
async def graph(backend: Backend) -> AsyncIterator[GraphStore]:
    async with contextlib.aclosing(backend.make(write_timeout_ms=3_000)) as store:
        await store.prepare(APP, [])
        await store.progress(APP, 0)
        yield store


def query(text: str) -> Cypher:
    return parse(text, role="mutation")


def write(
    text: str | None, *rows: dict[str, Any], before: Checkpoint, after: Checkpoint, note: str | None = None
) -> Write:
    return Write(query=query(text) if text else None, rows=rows or ({},), before=before, after=after, note=note)


def chain(*texts: str, start: Checkpoint = START, plan: str = "", **params: Any) -> list[Write]:
    """Writes of one row each that move the offset by one each."""
    offset = int(start.offset or 0)
    checkpoints = [start, *(Checkpoint(offset=str(offset + number + 1), plan=plan) for number in range(len(texts)))]
    return [
        write(text, {name: params[name] for name in query(text).columns if name in params}, before=before, after=after)
        for text, (before, after) in zip(texts, itertools.pairwise(checkpoints), strict=True)
    ]


async def apply_all(graph: GraphStore, writes: Sequence[Write]) -> None:
    """Apply writes of partition 0 of which none fails; a store may apply the first ones only."""
    while writes:
        applied = await graph.apply(APP, 0, writes)
        assert applied.failure is None
        assert applied.count
        writes = writes[applied.count :]


async def value(graph: GraphStore, statement: str) -> Any:
    rows = (await graph.read(APP, statement, {}, timeout_s=5)).rows
    return rows[0][0] if rows else None


async def checkpoint(graph: GraphStore, partition: int = 0) -> Checkpoint:
    return (await graph.progress(APP, partition)).checkpoint


async def test_writes_take_effect_in_order_and_move_the_mark(graph: GraphStore) -> None:
    writes = chain("MERGE (a:A {id: $id}) SET a.x = 1", "MATCH (a:A {id: $id}) SET a.x = a.x + 10", id="k")
    assert await graph.apply(APP, 0, writes) == Applied(count=2)
    assert await value(graph, "MATCH (a:A) RETURN a.x") == 11
    assert await checkpoint(graph) == Checkpoint(offset="2")


async def test_the_id_of_a_graph_is_that_of_no_other_store(graph: GraphStore, backend: Backend) -> None:
    assert await graph.graph_id(APP)
    async with contextlib.aclosing(backend.make()) as same:
        assert await same.graph_id(APP) == await graph.graph_id(APP)
    if backend.name == "falkordb":  # the test's Neo4j holds one graph
        async with contextlib.aclosing(backend.make(graph_template="{app_id}.other")) as other:
            assert await other.graph_id(APP) == ""
            await other.progress(APP, 0)
            assert await other.graph_id(APP) not in ("", await graph.graph_id(APP))


async def test_a_dropped_graph_is_gone_and_can_be_made_again(graph: GraphStore) -> None:
    await graph.drop(APP)  # without a graph
    checkpoint = (await graph.progress(APP, 0)).checkpoint
    await graph.apply(APP, 0, [Write(before=checkpoint, after=Checkpoint(offset="1-0"))])
    place = await graph.place(APP)
    await graph.drop(APP)
    assert await graph.graph_id(APP) == ""
    assert await graph.checkpoints(APP, timeout_s=5.0) == {}
    assert [node async for node in graph.nodes(APP)] == []
    assert await graph.place(APP) == place
    assert (await graph.progress(APP, 0)).checkpoint == Checkpoint()


async def test_marks_are_those_of_all_partitions(graph: GraphStore) -> None:
    assert await graph.checkpoints(APP, timeout_s=5) == {0: START}
    await graph.progress(APP, 7)
    await graph.apply(APP, 0, chain(COUNT, COUNT))
    before, under_way = Checkpoint(offset="2"), Checkpoint(offset="2", plan="p", done=1)
    await graph.apply(APP, 0, [write(COUNT, before=before, after=under_way, note="note")])
    assert await graph.checkpoints(APP, timeout_s=5) == {0: under_way, 7: START}


async def test_marks_move_with_every_write(graph: GraphStore) -> None:
    seen = [await graph.checkpoints(APP, timeout_s=5)]
    for each in chain(COUNT, COUNT, COUNT):
        await graph.apply(APP, 0, [each])
        assert await graph.checkpoints(APP, timeout_s=5) not in seen
        seen.append(await graph.checkpoints(APP, timeout_s=5))


async def test_a_mark_that_was_overwritten_is_none(backend: Backend, graph: GraphStore) -> None:
    backend.run("MATCH (p:__Progress) SET p.done = 'x'")
    with pytest.raises(GraphUnavailable):
        await graph.checkpoints(APP, timeout_s=5)


async def test_no_writes_are_no_work(graph: GraphStore) -> None:
    assert await graph.apply(APP, 0, []) == Applied(count=0)


@pytest.mark.parametrize("count", [1, 2])
async def test_applying_again_changes_nothing(graph: GraphStore, count: int) -> None:
    writes = chain(*[COUNT] * count)
    await graph.apply(APP, 0, writes)
    with contextlib.suppress(Fenced):  # or the count, where the graph stands at the end of these writes
        assert await graph.apply(APP, 0, writes) == Applied(count=count)
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == count
    assert await checkpoint(graph) == Checkpoint(offset=str(count))


# Each of these writes from no rows, so a guard in front of it, instead of around it, would not hold it back.
WRITES_FROM_NOTHING = [
    "MATCH (n:Nothing) WITH count(n) AS c MERGE (t:Stale {k: c})",
    "UNWIND [1, 2, 3] AS i WITH collect(i) AS xs MERGE (t:Stale {k: size(xs)})",
    "OPTIONAL MATCH (n:Nothing) MERGE (t:Stale {k: 1})",
    "OPTIONAL MATCH (n:Nothing) WITH n WHERE n IS NULL CREATE (t:Stale)",
    "CALL db.labels() YIELD label WITH count(label) AS c CREATE (:Stale {k: c})",
    "CREATE (t:Stale) RETURN t UNION CREATE (t:Stale) RETURN t",
    "FOREACH (i IN [1, 2] | CREATE (:Stale {k: i}))",
    "CREATE (t:Stale) RETURN t.k",
]


@pytest.mark.parametrize("statement", WRITES_FROM_NOTHING)
@pytest.mark.parametrize("count", [1, 2])
async def test_a_displaced_writer_changes_nothing(graph: GraphStore, statement: str, count: int) -> None:
    await graph.apply(APP, 0, chain(COUNT, COUNT, COUNT))
    with pytest.raises(Fenced):
        await graph.apply(APP, 0, chain(*[statement] * count))
    assert await value(graph, "MATCH (s:Stale) RETURN count(s)") == 0
    assert await checkpoint(graph) == Checkpoint(offset="3")


@pytest.mark.parametrize(
    "elsewhere",
    [Checkpoint(offset="8"), Checkpoint(offset="7", plan="p", done=3), Checkpoint(offset="7", plan="q", done=2), START],
)
async def test_each_part_of_the_mark_counts(graph: GraphStore, elsewhere: Checkpoint) -> None:
    here = Checkpoint(offset="7", plan="p", done=2)
    await graph.apply(APP, 0, [write(None, before=START, after=here)])
    with pytest.raises(Fenced):
        await graph.apply(APP, 0, [write(COUNT, before=elsewhere, after=Checkpoint(offset="9"))])
    assert await value(graph, "MATCH (c:Counter) RETURN count(c)") == 0
    assert await graph.apply(APP, 0, [write(COUNT, before=here, after=Checkpoint(offset="9"))]) == Applied(count=1)


async def test_a_write_that_moves_nothing_is_refused_to_a_displaced_writer(graph: GraphStore) -> None:
    here = Checkpoint(offset="7", plan="p", done=2)
    await graph.apply(APP, 0, [write(None, before=START, after=here, note="kept")])
    assert await graph.apply(APP, 0, [Write(before=here, after=here)]) == Applied(count=1)
    with pytest.raises(Fenced):
        await graph.apply(APP, 0, [Write(before=START, after=START)])
    assert await graph.progress(APP, 0) == Progress(checkpoint=here, note="kept")


def calls_of_plan(name: str, before: Checkpoint, end: str) -> list[list[Write]]:
    """Return the calls of a worker that drops a row of a plan, and goes on with rows of every kind.

    Each row shows when it takes effect twice.
    """
    log = f"(n:N {{id: $id}}) SET n.log = coalesce(n.log, '') + '{name}'"
    keep, link = f"MERGE {log}", f"MATCH {log}"
    alone = f"MATCH (n:N {{id: $id}}) WITH n LIMIT $one SET n.log = n.log + '{name}'"
    delete = "MATCH (n:Gone {id: $id}) DELETE n"
    last: Checkpoint = before
    done = 0

    def written(text: str | None, count: int = 1, note: str | None = None) -> Write:
        nonlocal last, done
        done += count if text else 0
        start, last = last, Checkpoint(offset=before.offset, plan=name, done=done)
        row = {key: {"id": "n", "one": 1}[key] for key in (query(text).columns if text else ())}
        return write(text, *[row] * count, before=start, after=last, note=note)

    calls = [
        [written(None, note=f"{name} drops a row")],
        [written(None, note=f"{name} has its dead letter")],
        [written(keep, 2, f"{name} goes on"), written(link, 2)],
        [written(link, 2), written(keep, 2)],
        [written(alone)],
        [written(delete, 2)],
        [written(link, 1), written(alone)],
    ]
    calls.append([write(keep, {"id": "n"}, before=last, after=Checkpoint(offset=end), note="")])
    return calls


async def test_the_writes_of_a_former_owner_change_nothing(graph: GraphStore, backend: Backend) -> None:
    """It stands still in each of its calls in turn; all of them come between and after those of the next owner."""

    async def seen() -> tuple[Any, Progress]:
        return await value(graph, "MATCH (n:N) RETURN collect(n.log)"), await graph.progress(APP, 0)

    late = calls_of_plan("p", START, "5")
    for number in range(len(late)):
        backend.run("MATCH (n:N) DELETE n")
        here = await checkpoint(graph)
        await graph.apply(APP, 0, [write(None, before=here, after=START, note="")])
        for each in late[:number]:
            await apply_all(graph, each)
        for after in calls_of_plan("q", await checkpoint(graph), "5"):
            await apply_all(graph, after)
            there = await seen()
            for each in late:
                with contextlib.suppress(Fenced):  # or it counts them, where the graph stands at the end of its writes
                    await graph.apply(APP, 0, each)
                assert await seen() == there


@pytest.mark.parametrize("statement", WRITES_FROM_NOTHING)
@pytest.mark.parametrize("count", [1, 2])
async def test_the_guard_does_not_change_what_a_query_does(
    backend: Backend, graph: GraphStore, statement: str, count: int
) -> None:
    await graph.apply(APP, 0, chain(*[statement] * count))
    guarded = await value(graph, "MATCH (s:Stale) RETURN collect(s.k)")
    backend.run("MATCH (s:Stale) DETACH DELETE s")
    for _ in range(count):
        backend.run(statement)
    plain = await value(graph, "MATCH (s:Stale) RETURN collect(s.k)")
    if "db.labels" not in statement:  # it counts labels that exist by then
        assert sorted(guarded) == sorted(plain)


async def test_partitions_have_marks_of_their_own(graph: GraphStore) -> None:
    await graph.progress(APP, 1)
    for partition in (0, 1):
        await graph.apply(APP, partition, chain(COUNT))
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 2


@pytest.mark.parametrize("count", [1, 3])
async def test_writers_that_race_write_once(backend: Backend, graph: GraphStore, count: int) -> None:
    """Four writers of one partition, each of which believes what it has read last."""
    last = 40

    async def race(number: int) -> None:
        async with contextlib.aclosing(backend.make()) as store:
            here = await checkpoint(store)
            while int(here.offset or 0) < last:
                writes = chain(*[COUNT] * count, start=here)
                try:
                    here = writes[(await store.apply(APP, 0, writes)).count - 1].after
                except Fenced:
                    here = await checkpoint(store)
                await turns(number)

    await asyncio.gather(*map(race, range(4)))
    assert str(await value(graph, "MATCH (c:Counter) RETURN c.n")) == (await checkpoint(graph)).offset


async def test_partitions_that_race_merge_one_node(backend: Backend, graph: GraphStore) -> None:
    async def work(partition: int) -> None:
        async with contextlib.aclosing(backend.make()) as store:
            await store.progress(APP, partition)
            for start in range(10):
                here = Checkpoint(offset=str(start)) if start else START
                after = Checkpoint(offset=str(start + 1))
                rows = [{"id": number} for number in range(5)]
                for row in rows:
                    row["id"] += start
                done = write(
                    "MERGE (s:Shared {id: $id}) SET s.n = coalesce(s.n, 0) + 1", rows[0], before=here, after=after
                )
                assert await store.apply(APP, partition, [done]) == Applied(count=1)

    await asyncio.gather(*map(work, range(4)))
    assert await value(graph, "MATCH (s:Shared) RETURN count(s)") == 10
    assert await value(graph, "MATCH (s:Shared) RETURN sum(s.n)") == 40


async def test_what_was_deleted_is_not_found_again(graph: GraphStore) -> None:
    await graph.prepare(APP, [("Plain", "k"), ("Hot", "k")])
    both = "MATCH (a:Plain {k: $k}) SET a:Hot DETACH DELETE a"
    texts = [
        *("MERGE (a:Plain {k: $k})", "MATCH (a:Plain {k: $k}) SET a:Hot", "MATCH (a:Hot {k: $k}) DETACH DELETE a"),
        *("MERGE (a:Hot {k: $k}) SET a.n = coalesce(a.n, 0) + 1", "MERGE (a:Plain {k: $k})", both),
        *("MATCH (a:Hot {k: $k}) SET a.n = coalesce(a.n, 0) + 1", "MERGE (a:Plain {k: $k})"),
    ]
    writes = chain(*texts, k=1)
    await apply_all(graph, writes[:1])
    await apply_all(graph, writes[1:])
    assert await value(graph, "MATCH (a:Hot) RETURN count(a)") == 1
    assert await value(graph, "MATCH (a:Hot) RETURN a.n") == 2
    assert await value(graph, "MATCH (a:Plain) RETURN count(a)") == 1


async def test_the_first_of_a_kind_is_merged_once(backend: Backend, graph: GraphStore) -> None:
    """Partitions of one app may be at several processes, and all of them meet new labels and types at once."""
    kinds = 4 if backend.name == "neo4j" else 20  # Neo4j takes a second to compile each

    async def work(partition: int) -> None:
        async with contextlib.aclosing(backend.make()) as store:
            await store.progress(APP, partition)
            for kind in range(kinds):
                here = Checkpoint(offset=str(kind)) if kind else START
                text = (
                    f"MERGE (a:From{kind} {{id: $id}}) MERGE (b:To{kind} {{id: $id}}) "
                    f"MERGE (a)-[r:WENT{kind}]->(b) SET r.n = coalesce(r.n, 0) + 1"
                )
                done = write(text, {"id": 1}, before=here, after=Checkpoint(offset=str(kind + 1)))
                assert await store.apply(APP, partition, [done]) == Applied(count=1)

    await asyncio.gather(*map(work, range(4)))
    assert await value(graph, "MATCH (n) WHERE n.id = 1 RETURN count(n)") == 2 * kinds
    assert await value(graph, "MATCH ()-[r]->() RETURN count(r)") == kinds
    assert await value(graph, "MATCH ()-[r]->() RETURN sum(r.n)") == 4 * kinds


async def test_a_call_that_was_cancelled_has_written_all_or_nothing(graph: GraphStore) -> None:
    slow = "UNWIND range(1, 2000) AS i CREATE (:Flood {i: i})"
    for number in range(12):
        here = await checkpoint(graph)
        texts = (COUNT, slow) if number % 2 else (slow + " WITH count(*) AS x " + COUNT,)
        # A late call must not move the checkpoint to where a later one begins: the same checkpoint means the same data.
        writes = chain(*texts, start=here, plan=str(number))
        with contextlib.suppress(TimeoutError, Fenced):
            async with asyncio.timeout(0.002 * number):
                await graph.apply(APP, 0, writes)
    # What was sent last may still be at work; a write of our own comes behind it.
    while True:
        here = await checkpoint(graph)
        with contextlib.suppress(Fenced):
            await graph.apply(APP, 0, [write(None, before=here, after=here)])
            break
    steps = int((await checkpoint(graph)).offset or 0)
    floods = await value(graph, "MATCH (f:Flood) RETURN count(f)")
    counted = await value(graph, "MATCH (c:Counter) RETURN sum(c.n)") or 0
    assert floods % 2000 == 0
    assert counted >= floods // 2000
    assert counted <= steps <= counted + floods // 2000


ROWS = [
    {"k": generator.randrange(4), "j": generator.randrange(4), "v": generator.randrange(9), "l": [1, 2][: i % 3]}
    for generator in [random.Random(5)]
    for i in range(40)
]
MUTATIONS = [
    "MERGE (n:A {k: $k}) ON CREATE SET n.c = 1, n.v = $v ON MATCH SET n.c = n.c + 1, n.v = n.v * 2 + $v",
    "MERGE (n:A {k: $k}) MERGE (m:A {k: $j}) MERGE (n)-[r:R]->(m) SET r.w = coalesce(r.w, 0) + $v",
    "MATCH (n:A {k: $k}) SET n.v = n.v + $v",
    "MERGE (n:A {k: $k}) WITH n MATCH (m:A) WHERE m.k < $j SET m.seen = coalesce(m.seen, 0) + $v",
    "MERGE (n:A {k: $k}) SET n.last = $v WITH n WHERE $v > 6 DETACH DELETE n",
    "MERGE (n:A {k: $k}) WITH n UNWIND $l AS x MERGE (q:C {k: x}) SET q.c = coalesce(q.c, 0) + $v",
    "OPTIONAL MATCH (n:A) WITH count(n) AS c MERGE (t:T {k: c}) SET t.n = coalesce(t.n, 0) + $v RETURN t.n",
    "FOREACH (x IN $l | MERGE (q:C {k: x}) SET q.c = coalesce(q.c, 0) + $v)",
    "MATCH (n:A) WITH n ORDER BY n.k LIMIT $j SET n.first = coalesce(n.first, 0) + 1",
    "WITH $k AS k MERGE (n:A {k: k}) SET n.c = $v // the last",
]


def batches(backend: Backend, text: str, rows: list[dict[str, Any]], before: Checkpoint) -> Iterator[Write]:
    """All rows in one write where the store's form of the query allows any rows, else one write a row."""
    asked = query(text)
    wanted = set(asked.columns)
    rows = [{name: item for name, item in row.items() if name in wanted} for row in rows]
    size = len(rows) if asked.batch_query(backend.make().dialect).mode == "ordered" else 1
    for number, start in enumerate(range(0, len(rows), size)):
        after = Checkpoint(offset=f"{before.offset}.{number}")
        yield Write(query=asked, rows=rows[start : start + size], before=before, after=after)
        before = after


@pytest.mark.parametrize("text", MUTATIONS)
async def test_rows_that_share_a_query_equal_one_query_each(backend: Backend, graph: GraphStore, text: str) -> None:
    setup = [MUTATIONS[0], MUTATIONS[1]]
    for shared in (True, False):
        here = await checkpoint(graph)
        for part in [*setup, text]:
            if shared:
                writes = list(batches(backend, part, ROWS, here))
            else:
                wanted = set(query(part).columns)
                rows = [{name: row[name] for name in wanted} for row in ROWS]
                checkpoints = [here, *(Checkpoint(offset=f"{here.offset}-{number}") for number in range(len(rows)))]
                pairs = zip(rows, itertools.pairwise(checkpoints), strict=True)
                writes = [write(part, row, before=before, after=after) for row, (before, after) in pairs]
            await apply_all(graph, writes)
            here = writes[-1].after
        found = await read_digest(graph, APP)
        if shared:
            together = found
            backend.run("MATCH (n) WHERE n:A OR n:C OR n:T DETACH DELETE n")
    assert found == together
    assert found.nodes > 0


async def test_a_refused_write_stops_there_and_leaves_no_trace(graph: GraphStore) -> None:
    bad = "MERGE (b:Bad {id: 1}) SET b.x = 1 / 0"
    writes = chain(COUNT, bad, COUNT)
    applied = await graph.apply(APP, 0, writes)
    assert applied.count == 1
    assert applied.failure is not None
    assert applied.failure.code == "query_error"
    assert "zero" in str(applied.failure).lower()
    assert await value(graph, "MATCH (b:Bad) RETURN count(b)") == 0
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 1
    assert await checkpoint(graph) == writes[0].after
    over = [write(None, before=writes[1].before, after=writes[1].after), writes[2]]
    assert await graph.apply(APP, 0, over) == Applied(count=2)
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 2


async def test_one_bad_row_keeps_back_all_of_its_write(backend: Backend, graph: GraphStore) -> None:
    text = "MERGE (n:N {id: $id}) SET n.x = 10 / $by"
    rows = [{"id": number, "by": number - 3} for number in range(6)]
    size = len(rows) if query(text).batch_query(graph.dialect).mode == "ordered" else 1
    first, here = chain(COUNT)[0], Checkpoint(offset="1")
    writes = [first]
    for start in range(0, len(rows), size):
        writes.append(write(text, *rows[start : start + size], before=here, after=Checkpoint(offset=f"2-{start}")))
        here = writes[-1].after
    applied = await graph.apply(APP, 0, writes)
    assert applied.failure is not None
    assert applied.count == (1 if size > 1 else 4)
    assert await value(graph, "MATCH (n:N) RETURN count(n)") == (0 if size > 1 else 3)
    assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 1
    assert await checkpoint(graph) == writes[applied.count - 1].after


async def test_the_note_stays_until_there_is_another(graph: GraphStore) -> None:
    one, two, three, four = (Checkpoint(offset=str(number)) for number in range(1, 5))
    await graph.apply(APP, 0, [write(COUNT, before=START, after=one, note="first")])
    assert await graph.progress(APP, 0) == Progress(checkpoint=one, note="first")
    await graph.apply(APP, 0, [write(COUNT, before=one, after=two), write(None, before=two, after=three)])
    assert await graph.progress(APP, 0) == Progress(checkpoint=three, note="first")
    await graph.apply(APP, 0, [write(None, before=three, after=four, note="")])
    assert await graph.progress(APP, 0) == Progress(checkpoint=four)
    long = 'a "quoted" \\ note\n' * 5_000
    await graph.apply(APP, 0, [write(None, before=four, after=one, note=long), write(COUNT, before=one, after=two)])
    assert await graph.progress(APP, 0) == Progress(checkpoint=two, note=long)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "taking", ["MATCH (n) WHERE n.partition = 0 DETACH DELETE n", "MATCH (n) WHERE n.partition = 0 SET n.pos = 'x'"]
)
async def test_a_rule_that_takes_the_mark_away_runs_once(graph: GraphStore, taking: str, count: int) -> None:
    await graph.apply(APP, 0, [write(None, before=START, after=Checkpoint(offset="0"), note="kept")])
    texts = [f"{taking} WITH count(*) AS x CREATE (:Taken)"] * count
    writes = chain(*texts, start=Checkpoint(offset="0"))
    while writes:
        try:
            writes = writes[(await graph.apply(APP, 0, writes)).count :]
        except (Fenced, GraphUnavailable):
            break
    assert await value(graph, "MATCH (t:Taken) RETURN count(t)") <= count


@pytest.mark.parametrize(
    ("statement", "params", "expected"),
    [
        ("MATCH (n", {}, "Invalid input"),
        ("MERGE (n:N {id: $id})", {"id": None}, "null"),
        ("MERGE (n:N) SET n.m = $m", {"m": {"a": "private"}}, ""),
        ("MERGE (n:N {id: $id})", {"id": 2**63}, "64 bits"),
        ("MERGE (n:N {id: $id})", {"id": [-(2**63) - 1]}, "64 bits"),
        ("MERGE (n:N {id: $id})", {"id": "\ud800"}, "parameter"),
        ("MERGE (n:N {id: $id}) SET n.x = date('private' + $id)", {"id": "private"}, ""),
    ],
)
@pytest.mark.parametrize("before", [0, 1])
async def test_what_cannot_be_applied_is_refused_not_changed(
    graph: GraphStore, statement: str, params: dict[str, Any], expected: str, before: int
) -> None:
    writes = chain(*[COUNT] * before, statement, COUNT, **params)
    applied = await graph.apply(APP, 0, writes)
    assert applied.count == before
    assert applied.failure is not None
    assert expected in str(applied.failure)
    assert "private" not in str(applied.failure).replace("date('private'", "")
    assert await value(graph, "MATCH (n:N) RETURN count(n)") == 0
    assert (await checkpoint(graph)).offset == ("1" if before else "")


@pytest.mark.parametrize("before", [0, 1])
async def test_a_slow_write_is_aborted_and_rolled_back(backend: Backend, graph: GraphStore, before: int) -> None:
    # It writes, and then takes its time without taking memory: Neo4j has a limit for that, too.
    slow = (
        "CREATE (:Flood) WITH 1 AS one UNWIND range(1, 20000) AS a UNWIND range(1, 100000) AS b "
        "WITH count(b) AS pairs CREATE (:Flood {pairs: pairs})"
    )
    async with contextlib.aclosing(backend.make(write_timeout_ms=1_500)) as store:
        applied = await store.apply(APP, 0, chain(*[COUNT] * before, slow, COUNT))
    assert applied.count == before
    assert applied.failure is not None
    assert applied.failure.code == "timeout"
    assert await value(graph, "MATCH (f:Flood) RETURN count(f)") == 0
    assert (await checkpoint(graph)).offset == ("1" if before else "")


async def test_reading_cannot_write(graph: GraphStore) -> None:
    for statement in ("CREATE (n:N) RETURN n", "MATCH (n) SET n.x = 1 RETURN n", "MERGE (n:N) RETURN n"):
        with pytest.raises(QueryFailed, match="read"):
            await graph.read(APP, statement, {}, timeout_s=2)
    assert await value(graph, "MATCH (n:N) RETURN count(n)") == 0


async def test_a_missing_graph_has_no_rows_and_is_not_made_by_reading(backend: Backend) -> None:
    async with contextlib.aclosing(backend.make()) as store:
        assert (await store.read(APP, "MATCH (n) RETURN n", {}, timeout_s=2)).rows == ()
        assert await store.checkpoints(APP, timeout_s=2) == {}
        assert [node async for node in store.nodes(APP)] == []
        assert [edge async for edge in store.edges(APP)] == []
        assert backend.run("MATCH (n) RETURN n") == []


async def test_a_slow_read_ends_at_its_limit(graph: GraphStore) -> None:
    with pytest.raises(QueryFailed) as caught:
        await graph.read(
            APP, "UNWIND range(1, 100000) AS a UNWIND range(1, 100000) AS b RETURN count(*)", {}, timeout_s=0.05
        )
    assert caught.value.code == "timeout"
    assert await value(graph, "RETURN 1") == 1


async def test_more_rows_than_anybody_reads_are_refused(graph: GraphStore) -> None:
    most = await graph.read(APP, "UNWIND range(1, 10000) AS i RETURN i", {}, timeout_s=10)
    assert most.rows == tuple((number,) for number in range(1, 10_001))
    with pytest.raises(QueryFailed, match=r"^the query returned more than 10,000 rows: add a LIMIT$") as caught:
        await graph.read(APP, "UNWIND range(1, 10001) AS i RETURN i", {}, timeout_s=10)
    assert caught.value.code == "query_error"
    assert await value(graph, "RETURN 1") == 1


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("UNWIND range(1, 10001) AS i RETURN i", 3),
        ("UNWIND range(1, 10000) AS i RETURN i", 10_000),
        ("UNWIND range(1, 9) AS i RETURN range(1, 30000) AS r", 3),
    ],
)
async def test_whom_the_first_rows_are_enough_gets_them_of_more(graph: GraphStore, statement: str, rows: int) -> None:
    assert len((await graph.read(APP, statement, {}, timeout_s=60, enough=3)).rows) == rows
    with pytest.raises(QueryFailed, match="200,000 values"):
        await graph.read(APP, "UNWIND range(1, 9) AS i RETURN range(1, 200001)", {}, timeout_s=60, enough=3)


def columns(count: int) -> str:
    return "UNWIND range(1, 10000) AS i RETURN " + ", ".join(f"i AS c{number}" for number in range(count))


@pytest.mark.parametrize(
    "statement",
    [
        columns(21),
        "RETURN range(1, 200001)",
        "RETURN {a: [1, {b: range(1, 200001)}]}",
        "MATCH (l:Long) RETURN l",
        "MATCH p = (l:Long)-[:R]->() RETURN p",
    ],
)
async def test_more_values_than_anybody_reads_are_refused(backend: Backend, graph: GraphStore, statement: str) -> None:
    backend.run("CREATE (:Long {l: range(1, 200001)})-[:R]->(:Short)")
    with pytest.raises(QueryFailed, match=r"^the query returned more than 200,000 values: return fewer properties"):
        await graph.read(APP, statement, {}, timeout_s=20)
    assert await value(graph, "RETURN 1") == 1


async def test_as_many_values_as_there_may_be_are_returned(graph: GraphStore) -> None:
    assert len((await graph.read(APP, columns(20), {}, timeout_s=20)).rows) == 10_000


async def test_listings_have_no_end_of_rows(backend: Backend, graph: GraphStore) -> None:
    backend.run("CREATE (h:Hub) WITH h UNWIND range(1, 10001) AS i CREATE (h)-[:R]->(:P)")
    assert len([edge async for edge in graph.edges(APP)]) == 10_001
    assert len([node async for node in graph.nodes(APP) if node.labels == ("P",)]) == 10_001


async def test_indexes_are_made_once(backend: Backend, graph: GraphStore) -> None:
    keys = [("User", "id"), ("Odd Name", "a b")]
    async with contextlib.aclosing(backend.make()) as again:
        for store in (graph, graph, again):
            await store.prepare(APP, keys)
    show = {
        "falkordb": "CALL db.indexes() YIELD label, properties RETURN label, properties",
        "neo4j": "SHOW INDEXES YIELD labelsOrTypes, properties, state WHERE state = 'ONLINE' RETURN labelsOrTypes[0], "
        "properties",
    }
    there = [(label, str(names)) for label, names in backend.run(show[backend.name])]
    for label, name in keys:
        assert there.count((label, f"[{name}]" if backend.name == "falkordb" else f"['{name}']")) == 1


async def test_what_is_acknowledged_becomes_durable(graph: GraphStore) -> None:
    run = await graph.check()
    await graph.apply(APP, 0, chain(COUNT))
    async with asyncio.timeout(60):
        await graph.durable(run)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
)
KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0`"), min_size=1, max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_value=VALUES)
async def test_parameters_arrive_as_they_are(graph: GraphStore, given_value: Any) -> None:
    table = await graph.read(APP, "RETURN $v", {"v": given_value}, timeout_s=5)
    assert same(table.rows[0][0], given_value)


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, but for the 15 digits that FalkorDB prints of a float."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-14)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


async def test_results_are_plain_values(graph: GraphStore) -> None:
    await graph.apply(APP, 0, chain("CREATE (:A {x: 1})-[:R {y: 2}]->(:B {l: ['a', 'b']})"))
    table = await graph.read(
        APP,
        "MATCH p = (a:A)-[r:R]->(b:B) RETURN a, r, p, [a, b] AS l, {n: b} AS m, date('2024-02-29') AS d, "
        "localdatetime('2024-02-29T12:30:00') AS t, duration('P1DT2H') AS s, "
        "point({latitude: 1.5, longitude: 2.5}) AS w",
        {},
        timeout_s=5,
    )
    assert table.columns == ("a", "r", "p", "l", "m", "d", "t", "s", "w")
    *rest, span, point = table.rows[0]
    b = {"l": ["a", "b"]}
    assert rest == [
        {"x": 1}, {"y": 2}, [{"x": 1}, b], [{"x": 1}, b], {"n": b}, date(2024, 2, 29),
        datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    ]  # fmt: skip
    assert span.total_seconds() == 26 * 3600
    assert point == {"latitude": 1.5, "longitude": 2.5}


CONTENT = [
    "CREATE (:A {id: 1, s: 'grüße 🎉 \\u0000', f: 0.1, g: 1e300, b: true, i: 9007199254740993})".replace("\\u0000", ""),
    "CREATE (:A {id: 2, l: ['x', 'y'], n: [1, 2], m: [0.5, 1.25], e: []})",
    "CREATE (:`Odd Label`:B {`a b`: 1, d: date('2024-02-29'), t: localdatetime('2024-02-29T12:30:01')})",
    "CREATE (:B {dur: duration('P1Y2M3DT4H5M6S'), z: -0.0, neg: -1})",
    "MATCH (a:A {id: 1}), (b:A {id: 2}) CREATE (a)-[:R {w: 1}]->(b), (a)-[:R {w: 1}]->(b), (a)-[:R {w: 2}]->(b)",
    "MATCH (a:A {id: 1}), (b:B) CREATE (b)-[:`has been`]->(a), (a)-[:SELF]->(a)",
    "CREATE (:Gone)",
    "MATCH (g:Gone) DELETE g",
]


async def test_elements_have_ids_labels_and_types(backend: Backend, graph: GraphStore) -> None:
    await graph.progress(APP, 0)
    backend.run("CREATE (:User {id: 'u'})-[:OWNS {since: 1}]->(:Car {id: 'c'})")
    statement = "MATCH p = (u:User)-[r:OWNS]->(c:Car) RETURN u, r, [c], p"
    [(user, owns, [car], path)] = (await graph.read(APP, statement, {}, timeout_s=5, elements=True)).rows
    assert (user["labels"], user["properties"]) == (["User"], {"id": "u"})
    assert (car["labels"], car["properties"]) == (["Car"], {"id": "c"})
    assert (owns["type"], owns["properties"]) == ("OWNS", {"since": 1})
    assert (owns["start"], owns["end"]) == (user["id"], car["id"])
    assert graph.dialect.is_node_id(user["id"])
    assert path == {"nodes": [user, car], "relationships": [owns]}
    [plain] = (await graph.read(APP, statement, {}, timeout_s=5)).rows
    assert plain == ({"id": "u"}, {"since": 1}, [{"id": "c"}], [{"id": "u"}, {"id": "c"}])


async def test_the_same_content_has_the_same_digest_everywhere(url: str, neo4j_server: Neo4jServer) -> None:
    digests = []
    for name, order in (("falkordb", 1), ("neo4j", 1), ("neo4j", -1)):
        backend = falkordb(url) if name == "falkordb" else neo4j_at(neo4j_server)
        async with contextlib.aclosing(backend.make()) as store:
            await store.progress(APP, 3 + order)  # our own nodes do not count
            for statement in CONTENT[:4][::order] + CONTENT[4:]:
                backend.run(statement)
            digests.append(await read_digest(store, APP))
    assert digests[0] == digests[1] == digests[2]
    assert (digests[0].nodes, digests[0].relationships) == (4, 7)


@pytest.mark.parametrize(
    "change",
    [
        "MATCH (a:A {id: 1}) SET a.s = 'x'", "MATCH (a:A {id: 1}) SET a.new = 1", "MATCH (a:A {id: 1}) REMOVE a.b",
        "MATCH (a:A {id: 1}) SET a:More", "MATCH ()-[r:R {w: 2}]->() DELETE r", "MATCH ()-[r:R {w: 2}]->() SET r.w = 1",
        "MATCH (a:A {id: 2}) SET a.l = ['y', 'x']", "CREATE (:A)",
    ],
)  # fmt: skip
async def test_the_digest_sees_every_change(backend: Backend, graph: GraphStore, change: str) -> None:
    for statement in CONTENT:
        backend.run(statement)
    before = await read_digest(graph, APP)
    backend.run(change)
    assert await read_digest(graph, APP) != before


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("MEREG (n:N)", "line 1, column 1"),
        ("WITH 1 AS x MEREG (n:N)", "line 1, column 13"),
        ("MERGE (n:N)\n  STE n.x = 1", "line 2, column 3"),
    ],
)
async def test_a_refusal_says_where_in_the_rules_query(graph: GraphStore, statement: str, place: str) -> None:
    applied = await graph.apply(APP, 0, chain(statement, long="a value that must not move the column"))
    said = str(applied.failure)
    line, column = place.split(", column ")
    assert line in said
    assert "of the query" in said
    # FalkorDB names the end of what it could read.
    assert any(f"column {int(column) + further} of" in said for further in range(4))


async def test_a_server_that_is_away_is_transient() -> None:
    for store in (FalkorDBStore("unix:///nonexistent/redis.sock"), Neo4jStore("bolt://127.0.0.1:1")):
        for call in (
            store.check(), store.prepare(APP, []), store.progress(APP, 0), store.apply(APP, 0, chain(COUNT)),
            store.read(APP, "RETURN 1", {}, timeout_s=5), store.checkpoints(APP, timeout_s=5),
        ):  # fmt: skip
            with pytest.raises(GraphUnavailable):
                await call
        await store.aclose()
        await store.aclose()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["falkordb", "neo4j"])
async def test_a_server_that_crashes_keeps_what_it_acknowledged_and_comes_back(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="graphweft-crash-") as folder:
        embedded, server = EmbeddedServer(Path(folder)), Neo4jServer(Path(folder))

        async def start() -> None:
            await (asyncio.to_thread(server.start) if name == "neo4j" else embedded.start())

        async def kill() -> None:
            if name == "neo4j":
                await asyncio.to_thread(server.kill)
            elif embedded.process is not None:
                embedded.process.kill()
                await embedded.process.wait()

        await start()
        try:
            backend = neo4j_at(server) if name == "neo4j" else falkordb(f"unix://{embedded.socket}")
            async with contextlib.aclosing(backend.make(write_timeout_ms=2_000)) as store:
                await store.prepare(APP, [("Counter", "id")])
                here = await checkpoint(store)
                for _ in range(5):
                    [step] = chain(COUNT, start=here)
                    await store.apply(APP, 0, [step])
                    here = step.after
                await store.durable(await store.check())
                await kill()
                with pytest.raises(GraphUnavailable):
                    await store.apply(APP, 0, chain(COUNT, start=here))
                await start()
                # The first call finds connections that are dead.
                assert await until_answered(lambda: checkpoint(store), GraphUnavailable) == here
                assert await store.apply(APP, 0, chain(COUNT, start=here)) == Applied(count=1)
                assert await value(store, "MATCH (c:Counter) RETURN c.n") == 6
        finally:
            await kill()


OF_VALUES = {
    "a map as a property": ("CREATE (a:A {v: 1}) SET a.v = $v", {"no": "property"}),
    "a list of maps": ("CREATE (a:A) SET a.v = $v", [{"no": "property"}]),
    "no key": ("MERGE (a:A {k: $v})", None),
    "text in arithmetic": ("CREATE (a:A) SET a.v = 100 / $v", "four"),
    "a map for an integer": ("CREATE (a:A) SET a.v = abs($v)", {"a": 1}),
    "a map as a key": ("MERGE (a:A {k: $v})", {"a": 1}),
    "a large integer": ("CREATE (a:A) SET a.v = $v", 2**63),
    "a text as a list": ("UNWIND $v AS x CREATE (a:A {v: x.y})", "text"),
    "a text for a number": ("CREATE (a:A) SET a.v = size($v)", 5),
    "a time": ("CREATE (a:A) SET a.v = date($v)", "not a date"),
}
OF_RULES = {
    "a division": ("CREATE (a:A) SET a.v = 100 / $v", 0),
    "an unknown function": ("CREATE (a:A) SET a.v = nosuch($v)", 1),
    "an unknown variable": ("CREATE (a:A) SET b.v = $v", 1),
}


@pytest.mark.parametrize("case", [*OF_VALUES, *OF_RULES])
async def test_errors_of_values_are_told_from_those_of_rules(graph: GraphStore, case: str) -> None:
    text, given = (OF_VALUES | OF_RULES)[case]
    done = await graph.apply(APP, 0, chain(text, v=given))
    assert done.failure is not None
    assert done.failure.of_value == (case in OF_VALUES)

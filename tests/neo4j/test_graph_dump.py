"""A graph that is dumped and loaded keeps every value exactly, on each kind of server."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio
from tests.chaos.serial import Neo4jReference
from tests.services.neo4j import Neo4jServer

from graphweft_contracts import Fenced, QueryFailed
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.engine.plan.graph_marks import loading
from graphweft_workers.ports.graph_store import START, Checkpoint, GraphStore, Write

pytestmark = pytest.mark.integration

HOSTILE = "a'b\"c\\d`e{}[]$x\n\r\t\u2028 \U0001f642 \\u0041 é e\u0301 // /* */"
SHARED = """
CREATE (a:A:`X y` {i: 9223372036854775807, j: -9223372036854775807, t: $t, `p q`: true, no: false, e: '', z: -0.0,
  one: 1.0, n: 1, list: [1, 'x', 2.5, true], empty: [], floats: [0.1 + 0.2, 1.0 / 3, -0.0, 1.0]})
SET a.sum = 0.1 + 0.2, a.third = 1.0 / 3, a.big = 1.7e308, a.small = 2.5e-308, a.near = 0.9999999999999999
CREATE (b:B), (bare), (a)-[:R {w: 0.1 + 0.2, t: $t}]->(b), (a)-[:R {w: 1}]->(b), (a)-[:R {w: 1}]->(b),
  (b)-[:`S t`]->(a), (a)-[:LOOP]->(a), (a)-[:LOOP]->(a)
"""
FALKORDB = """
MATCH (a:A)-[r:R {t: $t}]->() SET a.v = vecf32([0.1, -0.25, 3.3333333]), a.d = date('2026-02-03'),
  a.old = localdatetime('0001-01-01T00:00:00'), a.dt = localdatetime('2026-02-03T04:05:06'),
  a.time = localtime('23:59:58'),
  a.long = duration('P1Y2M3DT4H5M6S'), a.negative = duration({seconds: -5}),
  a.p = point({latitude: 1.5555555555, longitude: -2.25}), a.nan = 0.0 / 0.0, a.inf = 1.0 / 0.0, a.less = -1.0 / 0.0,
  a.mixed = [1, [2, ['x']], date('2026-01-01'), vecf32([1.5]), duration('PT5S'), 0.1 + 0.2],
  r.v = vecf32([1.0, 2.0]), r.d = date('2026-02-03')
"""
NEO4J = """
MATCH (a:A)-[r:R {t: $t}]->() SET a.d = date('2026-02-03'), a.local = localdatetime('2026-02-03T04:05:06.123456789'),
  a.zoned = datetime('2026-10-25T02:30:00.000000001+01:00[Europe/Berlin]'),
  a.offset = datetime('2026-02-03T04:05:06-05:30'),
  a.summer = datetime('2026-10-25T02:30:00+02:00[Europe/Berlin]'), a.time = time('23:59:58.5+01:00'),
  a.localtime = localtime('23:59:58.000000007'), a.long = duration('P1Y2M3DT4H5M6.000000007S'),
  a.less = duration('-P1MT-5S'),
  a.p = point({latitude: 1.5, longitude: -2.25}), a.p3 = point({x: 1, y: 2, z: 3}),
  a.nan = 0.0 / 0.0, a.inf = 1.0 / 0.0, a.dates = [date('2026-02-03'), date('2026-02-04')],
  a.list = [1, 2], r.d = date('2026-02-03')
"""
MIXED = "list: [1, 'x', 2.5, true]"
_WRITE_MS = 60_000
"""A graph of many pages is written in a few queries, maybe before its index is ready."""


class Server:
    """Two graphs on one server, or on the server of Neo4j Community one after the other."""

    def __init__(self, store: GraphStore, other: GraphStore, clear: Callable[[], Any] | None = None) -> None:
        self.store, self.other, self._clear = store, other, clear
        self.neo4j = clear is not None

    async def write(self, text: str, params: dict[str, Any]) -> None:
        before = (await self.store.progress("shop", 0)).checkpoint
        after = Checkpoint(offset=f"{before.done + 1}-0", done=before.done + 1)
        names = {name: value for name, value in params.items() if f"${name}" in text}
        cypher = parse(text, role="mutation")
        done = await self.store.apply("shop", 0, [Write(query=cypher, rows=[names], before=before, after=after)])
        assert done.failure is None, done.failure

    async def copy(self) -> tuple[Any, GraphStore]:
        """Return the digest of the graph, and the store of its copy."""
        lines = [line async for line in self.store.whole.dump("shop")]
        digest = await read_digest(self.store, "shop")
        if self._clear is not None:
            await self._clear()
            self.other = self.store
        assert (await self.other.progress("shop", 0)).checkpoint == START
        await self.other.whole.load("shop", iter(lines), partition=0, mark=START)
        again = [line async for line in self.other.whole.dump("shop")]
        assert sorted(map(_properties, again)) == sorted(map(_properties, lines))
        return digest, self.other


def _properties(line: bytes) -> list[tuple[str, str]]:
    """Return the properties in a line as text, which tells 1 from 1.0, and 0.0 from -0.0."""
    return sorted((name, json.dumps(value)) for name, value in json.loads(line)[-1].items())


@pytest_asyncio.fixture(params=["falkordb", "neo4j"])
async def server(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Server]:
    if request.param == "falkordb":
        async with (
            contextlib.aclosing(FalkorDBStore(url, write_timeout_ms=_WRITE_MS)) as store,
            contextlib.aclosing(
                FalkorDBStore(url, graph_template="{app_id}.copy", write_timeout_ms=_WRITE_MS)
            ) as other,
        ):
            yield Server(store, other)
        return
    neo4j: Neo4jServer = request.getfixturevalue("neo4j_server")
    async with (
        contextlib.aclosing(Neo4jReference(neo4j.uri)) as reference,
        contextlib.aclosing(Neo4jStore(neo4j.uri)) as store,
    ):
        await reference.clear()

        async def clear() -> None:
            await store.whole.drop("shop")

        yield Server(store, store, clear)


async def _read(store: GraphStore, text: str) -> Sequence[Sequence[Any]]:
    return (await store.read("shop", text, {}, timeout_s=120)).rows


async def test_a_load_writes_only_under_its_own_mark(server: Server) -> None:
    await server.write("CREATE (:A {t: $t})-[:KNOWS]->(:B)", {"t": "x"})
    lines = [line async for line in server.store.whole.dump("shop")]
    mark = loading()
    if server.neo4j:
        await server.store.whole.drop("shop")
        server.other = server.store
    other = server.other
    await other.progress("shop", 0)
    await other.apply("shop", 0, [Write(before=START, after=loading())])  # of another load
    with pytest.raises(Fenced, match="partition 0 of app 'shop' was moved by another worker"):
        await other.whole.load("shop", iter(lines), partition=0, mark=mark)
    assert [line async for line in other.whole.dump("shop")] == []
    now = (await other.progress("shop", 0)).checkpoint
    await other.whole.load("shop", iter(lines[:2]), partition=0, mark=now)
    assert len([line async for line in other.whole.dump("shop")]) == 2


async def test_every_value_survives(server: Server) -> None:
    shared = SHARED.replace(MIXED, "list: [1, 2]") if server.neo4j else SHARED
    await server.write(shared, {"t": HOSTILE})
    await server.write(NEO4J if server.neo4j else FALKORDB, {"t": HOSTILE})
    more = ("zoned", "summer", "offset", "local", "localtime", "less") if server.neo4j else ()
    times = ["long", "d", "time", *more]
    texts = f"[k IN {times} | toString(n[k])]"
    exact = f"""MATCH (n:A) RETURN n.sum = 0.1 + 0.2, n.third * 3 = 1.0, n.near < 1.0, n.floats[0] = 0.1 + 0.2,
      1.0 / n.z, 1.0 / n.floats[2], {texts}, n.t, n.p, n.i, n.j, n.small > 0, size(n.floats), n.one, n.n"""
    before = await _read(server.store, exact)
    edges = "MATCH (a)-[e]->(b) RETURN type(e), labels(a), labels(b), e.w, e.d ORDER BY type(e), e.w"
    tied = await _read(server.store, edges)
    digest, copy = await server.copy()
    assert before[0][:4] == (True, True, True, True)
    assert await _read(copy, exact) == before
    assert await _read(copy, edges) == tied
    assert await read_digest(copy, "shop") == digest
    assert digest.nodes == 3
    assert digest.relationships == 6
    if not server.neo4j:
        kinds = await _read(copy, "MATCH (n:A) UNWIND keys(n) AS k RETURN k, typeOf(n[k]) ORDER BY k")
        assert dict(kinds)["v"] == "Vectorf32"
        assert kinds == await _read(server.store, "MATCH (n:A) UNWIND keys(n) AS k RETURN k, typeOf(n[k]) ORDER BY k")


async def test_times_of_years_that_python_lacks_survive(server: Server) -> None:
    if server.neo4j:  # its driver cannot read them
        await server.write("CREATE (:A {date: date({year: 12000}), n: 1})", {})
        for reading in (server.copy(), read_digest(server.store, "shop"), _read(server.store, "MATCH (n:A) RETURN n")):
            with pytest.raises(QueryFailed, match="a date beyond the years 1 to 9999"):
                await reading
        return
    await server.write(
        "CREATE (:A {past: localdatetime({year: -5, month: 2, day: 3, second: 4}), date: date({year: 12000, month: 2, "
        "day: 29}), listed: [date({year: 0}), localdatetime({year: 10000})], long: duration({years: 20000}), n: 1})",
        {},
    )
    texts = "MATCH (n:A) RETURN toString(n.past), toString(n.date), toString(n.listed[0]), toString(n.long), n.n"
    before = await _read(server.store, texts)
    digest, copy = await server.copy()
    assert await _read(copy, texts) == before
    assert await read_digest(copy, "shop") == digest
    found = await _read(copy, "MATCH (n:A) RETURN n.past, n.date, n.listed, n.long")
    assert found == (("-5-02-03T00:00:04", "12000-02-29", ["0-01-01", "10000-01-01T00:00:00"], "PT631139040000S"),)


@pytest.mark.long
@pytest.mark.soak("neo4j")
async def test_a_graph_of_many_pages_survives(server: Server) -> None:
    dice = random.Random(5)
    rows = [
        {"i": i, "f": dice.random() * 10 ** dice.randint(-20, 20), "to": dice.randrange(3_000)} for i in range(3_000)
    ]
    await server.store.prepare("shop", [("N", "id")])
    await server.write("UNWIND $rows AS row CREATE (:N {id: row.i, f: row.f})", {"rows": rows})
    await server.write(
        "MATCH (n:N) WHERE n.id < 2 UNWIND range(1, 6000) AS i CREATE (n)-[:HUB {i: i, f: i / 3.0}]->(n)", {}
    )
    await server.write("MATCH (n:N) WHERE n.id % 7 = 0 DETACH DELETE n", {})
    await server.write(
        "UNWIND $rows AS row MATCH (a:N {id: row.i}), (b:N {id: row.to}) CREATE (a)-[:TO {f: row.f / 3}]->(b)",
        {"rows": rows},
    )
    sums = "MATCH (n:N) WITH count(n) AS n MATCH (a)-[e:TO]->(b) RETURN n, count(e), sum(a.id * b.id)"
    before = await _read(server.store, sums)
    digest, copy = await server.copy()
    assert await _read(copy, sums) == before
    assert await read_digest(copy, "shop") == digest

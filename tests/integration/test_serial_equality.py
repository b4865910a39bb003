"""Whatever fails on the way, the graphs end as one plain serial pass over the log leaves them.

Random rules and events, with second copies and broken entries among them, go through the real worker while replies get
lost, calls fail before or after their effect, workers are cancelled anywhere, and two of one name work at once. The
reference runs each mutation as a query of its own, first copies only, and passes over what the server refuses.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis

from graphweft import Event
from graphweft_contracts import (
    BusUnavailable,
    GraphUnavailable,
    GraphweftError,
    InvalidEvent,
    QueryFailed,
    channels,
    wire,
)
from graphweft_rules import Ruleset
from graphweft_workers.bus.redis_streams import RedisStreamsBus
from graphweft_workers.graph.digest import read_digest
from graphweft_workers.graph.falkordb import FalkorDBStore
from graphweft_workers.mutation.worker import MutationWorker

pytestmark = pytest.mark.integration

PARTITIONS = 2
ONE = {"k": "$event.k", "id": "$event.id"}
TWO = {**ONE, "k2": "$event.k2"}
MANY = {"xs": "$event.xs", "id": "$event.id"}
NUMBER = {**ONE, "n": "$event.n"}
LISTED = {**MANY, "n": "$event.n"}
PROPERTIES = {**ONE, "properties": "$event.properties"}
# fmt: off
MUTATIONS: list[tuple[str, dict[str, str]]] = [
    ("MERGE (c:Counter {k: $k}) ON CREATE SET c.n = 1 ON MATCH SET c.n = c.n + 1", ONE),
    ("MERGE (l:List {k: $k}) SET l.xs = coalesce(l.xs, []) + [$id]", ONE),
    ("MERGE (l:Text {k: $k}) SET l.text = coalesce(l.text, '') + $id + ','", ONE),
    ("MERGE (a:A {k: $k}) MERGE (b:B {k: $k2}) MERGE (a)-[r:LINK]->(b)"
     " ON CREATE SET r.n = 1 ON MATCH SET r.n = r.n + 1", TWO),
    ("MERGE (a:PA {k: $k})-[r:P]->(b:PB {k: $k2}) SET r.last = $id", TWO),
    ("MATCH (a:A {k: $k}) DETACH DELETE a", ONE),
    ("MATCH (a:A {k: $k})-[r:LINK]->(b) DELETE r", ONE),
    ("MATCH (a:A {k: $k}) DETACH DELETE a WITH 1 AS one CREATE (:Ghost {v: 10 / $n})", NUMBER),
    ("MATCH (c:Counter) WITH count(*) AS n MERGE (t:Total {k: 'all'}) SET t.n = n, t.runs = coalesce(t.runs, 0) + 1",
     {}),
    ("MATCH (x:Nothing) WITH count(x) AS n CREATE (:Zero {id: $id, n: n})", ONE),
    ("MATCH (a:A {k: $k}) OPTIONAL MATCH (b:B) WITH a, count(b) AS n SET a.others = n", ONE),
    ("OPTIONAL MATCH (a:A {k: $k}) MERGE (s:Seen {k: $k}) SET s.had = a IS NOT NULL, s.n = coalesce(s.n, 0) + 1", ONE),
    ("UNWIND $xs AS x MERGE (u:Item {k: x}) ON CREATE SET u.n = 1 ON MATCH SET u.n = u.n + 1", MANY),
    ("UNWIND $xs AS x WITH x, 10 / $n AS q MERGE (m:Part {k: x}) SET m.q = q, m.n = coalesce(m.n, 0) + 1", LISTED),
    ("FOREACH (x IN $xs | MERGE (f:Each {k: x}) SET f.last = $id)", MANY),
    ("MERGE (d:Share {k: $k}) SET d.v = 100 / $n, d.n = coalesce(d.n, 0) + 1", NUMBER),
    ("MATCH (c:Counter {k: $k}) SET c.seen = coalesce(c.seen, 0) + 1 RETURN c.n AS n ORDER BY n LIMIT 1", ONE),
    ("CREATE (r:Row {id: $id}) RETURN r.id AS id SKIP 3", ONE),
    ("MERGE (a:UA {k: $k}) SET a.n = coalesce(a.n, 0) + 1 RETURN 1 AS x"
     " UNION MERGE (b:UB {k: $k}) SET b.n = coalesce(b.n, 0) + 1 RETURN 2 AS x", ONE),
    ("WITH $k AS k MERGE (w:With {k: k}) SET w.n = coalesce(w.n, 0) + 1", ONE),
    ("MERGE (a:WA {k: $k}) SET a.n = coalesce(a.n, 0) + 1 RETURN 1 AS x"
     " UNION ALL WITH $k AS k MERGE (b:WB {k: k}) SET b.n = coalesce(b.n, 0) + 1 RETURN 2 AS x", ONE),
    ("MATCH (b:B) WITH b ORDER BY b.k LIMIT 1 SET b.first = coalesce(b.first, 0) + 1", {}),
    ("MATCH (a:A {k: $k}) CALL { WITH a OPTIONAL MATCH (a)-[r:LINK]->() RETURN count(r) AS n } SET a.degree = n", ONE),
    ("MATCH (a:A {k: $k}) SET a:Hot", ONE),
    ("MATCH (a:Hot) REMOVE a:Hot SET a.cooled = coalesce(a.cooled, 0) + 1", {}),
    ("MERGE (e:Entity {k: $k}) SET e += $properties", PROPERTIES),
    ("CREATE (:Log {id: randomUUID(), at: timestamp(), event: $id}) // a comment at the end", ONE),
    ("CREATE (:Wrong {id: $id, v: toUpper($n)})", NUMBER),
]
# fmt: on
TYPES = ["a.one", "a.two", "a.three"]


def bundle(rng: random.Random) -> dict[str, Any]:
    rules: list[dict[str, Any]] = []
    for number in range(rng.randint(3, 6)):
        mutations = [
            {"id": f"m{index}", "cypher": cypher, "params": params}
            for index, (cypher, params) in enumerate(rng.sample(MUTATIONS, rng.randint(1, 5)))
        ]
        rule: dict[str, Any] = {
            "name": f"r{number}",
            "events": rng.sample(TYPES, rng.randint(1, 2)),
            "mutations": mutations,
        }
        if rng.random() < 0.2:
            rule["condition"] = "$event.n > 1"
        rules.append(rule)
    return {"version": "1.0", "mutation_rules": rules}


def entry(rng: random.Random, number: int, chats: list[tuple[str, str]]) -> tuple[int, dict[bytes, bytes]]:
    """Return the partition and the fields of a random entry."""
    if rng.random() < 0.04:
        broken = [
            {b"x": b"y"},
            {b"content-type": wire.STRUCTURED, b"data": b"{"},
            {b"content-type": wire.STRUCTURED, b"data": b"{}"},
        ]
        return rng.randrange(PARTITIONS), rng.choice(broken)
    app, chat = rng.choice(chats)
    data: dict[str, Any] = {
        "k": rng.choice(["x", "y", "z"]),
        "k2": rng.choice(["x", "y"]),
        "n": rng.randint(0, 4),
        "xs": [rng.choice("pqr") for _ in range(rng.randint(0, 3))],
        "properties": rng.choice([{}, {"a": 1}, {"a": None, "b": [1, 2]}, {"c": {"no": "map"}}]),
    }
    if rng.random() < 0.08:
        data["k"] = None
    if rng.random() < 0.05:
        del data["k"]
    event = Event.create(
        rng.choice(TYPES), app_id=app, chat_id=chat, workflow="W", id=f"e{number}", source="/test", data=data
    )
    return channels.partition_of(event.key, PARTITIONS), wire.encode(event)


def chats_of(app: str, partition: int, count: int) -> list[tuple[str, str]]:
    """Order holds within a partition, so an app's chats share one, and the serial pass has one order to compare."""
    names = (f"c{number}" for number in range(1_000))
    return [(app, chat) for chat in names if channels.partition_of(f"{app}/{chat}", PARTITIONS) == partition][:count]


class Faulty:
    """Fails calls at random, before or after their effect, as broken connections do."""

    def __init__(self, inner: Any, rng: random.Random, error: Callable[[], GraphweftError], names: set[str]) -> None:
        self._inner = inner
        self._rng = rng
        self._error = error
        self._names = names
        self.rate = 0.12
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        return self._failing(name, method) if name in self._names else method

    def _failing(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            dice = self._rng.random()
            if dice < self.rate / 2:
                self.failed += 1
                raise self._error()
            if dice < self.rate and name == "apply":  # a part took effect, and the reply is lost
                app_id, partition, writes = args
                args = (app_id, partition, writes[: self._rng.randint(1, len(writes))])
            result = await method(*args, **kwargs)
            if dice < self.rate:
                self.failed += 1
                raise self._error()
            return result

        return call


async def serial(store: FalkorDBStore, bus: RedisStreamsBus, rules: Ruleset) -> tuple[set[str], set[str]]:
    """Apply the log one query at a time; return the apps and the ids of the letters that have to be there."""
    apps: set[str] = set()
    letters: set[str] = set()
    for partition in range(PARTITIONS):
        seen: set[tuple[str, str, str]] = set()
        for item in await bus.read(partition, "", limit=10_000, wait_s=0):
            try:
                event = wire.decode(item.fields, received=item.received)
            except InvalidEvent:
                letters.add(f"{partition}:{item.offset}")
                continue
            if (identity := (event.appid, *event.identity)) in seen:
                continue
            seen.add(identity)
            for bound in rules.match_event(event).mutations:
                if event.appid not in apps:
                    apps.add(event.appid)
                    await store.prepare(event.appid, rules.keys)
                    await store.mark(event.appid, partition)
                try:
                    await plain(store, event.appid, bound.mutation.cypher.statement, bound.params)
                except QueryFailed:
                    letters.add(f"{partition}:{item.offset}:{bound.mutation.rule}/{bound.mutation.id}")
    return apps, letters


async def plain(store: FalkorDBStore, app_id: str, statement: str, params: dict[str, Any]) -> None:
    try:
        await store._graph(app_id).query(statement, params)
    except redis.ResponseError as error:
        raise QueryFailed(str(error)) from error


async def chaos(rng: random.Random, make: Callable[[], MutationWorker], seconds: float) -> None:
    """Run one or two workers of one name at a time and cancel them anywhere."""
    until = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until:
        tasks = [asyncio.create_task(make().run()) for _ in range(rng.randint(1, 2))]
        done, _ = await asyncio.wait(tasks, timeout=rng.choice([0.01, 0.03, 0.1, 0.3]))
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        defects = [result for result in results if isinstance(result, Exception)]
        assert not defects, defects
        assert not done


@pytest.mark.parametrize("seed", range(10))
async def test_the_graphs_end_as_a_serial_pass_leaves_them(
    url: str, bus: RedisStreamsBus, graph: FalkorDBStore, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    folder = tmp_path / "W"
    folder.mkdir()
    (folder / "graph_injection.yaml").write_text(json.dumps(bundle(rng)))
    rules = Ruleset.load(tmp_path)
    chats = [*chats_of("a1", 0, 3), *chats_of("a2", 0, 2), *chats_of("a3", 1, 3), *chats_of("a4", 1, 1)]
    assert await bus.partitions() == PARTITIONS
    raw = redis.Redis.from_url(url)
    serially = FalkorDBStore(url, graph_template="serial_{app_id}", write_timeout_ms=5_000)
    faulty_graph = Faulty(
        graph,
        rng,
        lambda: GraphUnavailable("cut", retry_after_s=0.001),
        {"apply", "skip", "mark", "prepare", "durable", "check"},
    )
    faulty_bus = Faulty(
        bus,
        rng,
        lambda: BusUnavailable("cut", retry_after_s=0.001),
        {"bury", "commit", "read", "claim", "committed", "before"},
    )

    def make() -> MutationWorker:
        return MutationWorker(faulty_bus, faulty_graph, rules, name="w", batch_events=rng.choice([3, 10, 40]))  # type: ignore[arg-type]

    async def produce() -> None:
        written: list[tuple[int, dict[bytes, bytes]]] = []
        for number in range(160):
            copy = written and rng.random() < 0.1
            partition, fields = rng.choice(written) if copy else entry(rng, number, chats)
            written.append((partition, fields))
            await raw.xadd(channels.events_stream(partition), fields)  # type: ignore[arg-type]
            if number % 8 == 0:
                await asyncio.sleep(0.02)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(chaos(rng, make, 1.5))
        assert faulty_graph.failed
        assert faulty_bus.failed
        faulty_graph.rate = faulty_bus.rate = 0.0
        last = make()
        task = asyncio.create_task(last.run())
        async with asyncio.timeout(20):
            while sum(partition.lag for partition in await bus.status()):
                assert not task.done(), task
                await asyncio.sleep(0.02)
        last.stop()
        await task
        apps, letters = await serial(serially, bus, rules)
        assert apps
        for app in sorted(apps):
            assert await read_digest(graph, app) == await read_digest(serially, app), app
        assert {letter.id for letter in await bus.dead_letters(limit=10_000)} == letters
    finally:
        await serially.aclose()
        await raw.aclose()

"""(i) Facts of the graph: expand and pack over a graph of a million relationships, beside one query by hand.

The degrees follow a power law: most entities have a few relationships, some have tens of thousands. A quarter of the
questions is about these. It is written straight to the server, in bulk.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import batched, count
from typing import Any, Final

from benchmarks.harness import Bench, Died, Result, in_turn, ratio
from benchmarks.plain_graphrag import Rows, by_hand
from benchmarks.services import Graph, Services
from benchmarks.workload import APP
from graphweft_contracts import channels
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.engine.plan.core_schema import FACT_KEYS
from graphweft_workers.features.graphrag.retriever import HybridRetriever
from graphweft_workers.features.graphrag.safe_cypher import RELATIONSHIPS
from graphweft_workers.support.garbage_collection import collect_less_often

ROW: Final = "i"
ENTITIES: Final = 200_000
RELATIONS: Final = 1_000_000
_HUBS: Final = 100
_AT_ONCE: Final = 20_000
_LEAST: Final = 100
"""Answers of which one in a hundred may be named."""
_RETRIEVAL_S: Final = 30.0
_WRITE_MS: Final = 60_000
_OTHERS: Final = ("OWNS", "KNOWS", "NEAR")
"""Types that are not followed."""
_NODES: Final = (
    "UNWIND $rows AS n CREATE (:Entity {number: n, id: 'e' + n, name: 'Entity' + n, name_key: 'entity' + n, "
    "type: 'Kind' + n % 20, description: CASE WHEN n % 2 = 0 THEN 'the part number ' + n + ' of the whole' END})"
)


async def run(bench: Bench, services: Services, graph: Graph) -> list[Result]:
    """Return the lines for one kind of server."""
    url = await services.url(graph)
    await services.clear("redis", graph)
    async with _client(url, graph) as rows:
        begun = time.monotonic()
        store: FalkorDBStore | Neo4jStore = FalkorDBStore(url) if graph == "falkordb" else Neo4jStore(url)
        try:
            await store.prepare(APP, FACT_KEYS | {("Entity", "number")})
            await store.progress(APP, 0)
            await _load(rows, graph)
            bench.say(f"  [dim]{RELATIONS:,} relationships loaded in {time.monotonic() - begun:.0f} s[/]")
            values = await _measured(bench, graph, HybridRetriever(store, enabled=True), rows)
        finally:
            await store.aclose()
    await (await services.probe(graph)).clear()
    title = f"facts out of {RELATIONS:,} relationships on {graph}, ours / by hand"
    note = "by hand: no scope, no times, no order, no gate for secrets"
    return [
        ratio(ROW, f"{title}, {percent}", values, f"ours {percent}", f"by hand {percent}", unit="ms", note=note)
        for percent in ("p50", "p99")
    ]


async def _measured(bench: Bench, graph: Graph, retriever: HybridRetriever, rows: Rows) -> dict[str, list[float]]:
    """Return the milliseconds of which half, and 99 of 100, of a contender's answers stay below; a value a round."""

    async def ours(names: Sequence[str]) -> int:
        context = await retriever.retrieve(APP, " and ".join(names), timeout_s=_RETRIEVAL_S)
        if context.partial:
            raise Died("a retrieval ended before it was done")
        return len(context.facts)

    async def hand(names: Sequence[str]) -> int:
        return len(await by_hand(rows, names))

    contenders = {"ours": ours, "by hand": hand}
    values: dict[str, list[float]] = {f"{name} {percent}": [] for name in contenders for percent in ("p50", "p99")}
    questions = _questions()
    for ask in contenders.values():
        for _ in range(50):  # what runs for the first time takes longer
            await ask(next(questions))
    collect_less_often()  # as a responder does: otherwise a search for cycles takes 60 ms of one of the answers
    for round_number in bench.turns(f"facts on {graph}"):
        for name in in_turn(list(contenders), round_number):
            times: list[float] = []
            until = time.perf_counter() + bench.seconds
            while time.perf_counter() < until or len(times) < _LEAST:
                names = next(questions)
                begun = time.perf_counter()
                if not await contenders[name](names):
                    raise Died(f"{name}: no facts about {' and '.join(names)}")
                times.append((time.perf_counter() - begun) * 1_000)
            times.sort()
            for percent in (50, 99):
                values[f"{name} p{percent}"].append(times[len(times) * percent // 100])
        shown = ", ".join(f"{name} {several[-1]:.2f}" for name, several in values.items())
        bench.say(f"  [dim]facts on {graph} {round_number + 1}/{bench.rounds}[/] {shown} ms")
    return values


def _questions() -> Iterator[Sequence[str]]:
    """Yield names of one to three entities that have relationships, for ever; every fourth time of a hub, too."""
    chance = random.Random(1)
    for number in count():
        names = [f"Entity{_some(chance, 2)}" for _ in range(chance.randint(1, 3))]
        yield [*names[1:], f"Entity{chance.randrange(_HUBS)}"] if number % 4 == 0 else names


def _some(chance: random.Random, power: int) -> int:
    """Return the number of an entity: the smaller, the likelier."""
    return int(ENTITIES * chance.random() ** power)


async def _load(rows: Rows, graph: Graph) -> None:
    """Every entity has a relationship to the next one, so that none is without; all others end at a frequent one."""
    for numbers in batched(range(ENTITIES), _AT_ONCE):
        await rows(_NODES, {"rows": list(numbers)})
    # By their ids it takes FalkorDB 10 s, by an index 130 s.
    find = "id({0}) = row[{1}] + $first" if graph == "falkordb" else "{0}:Entity AND {0}.number = row[{1}]"
    [[first]] = await rows("MATCH (n:Entity {number: 0}) RETURN id(n)", {})
    chance = random.Random(0)
    types = (*RELATIONSHIPS, *_OTHERS)
    size = RELATIONS // len(types)
    for number, type in enumerate(types):
        edges = [[here, (here + 1) % ENTITIES] for here in range(number * size, min((number + 1) * size, ENTITIES))]
        edges += [[_some(chance, 1), _some(chance, 6)] for _ in range(size - len(edges))]
        text = (
            f"UNWIND $rows AS row MATCH (a) WHERE {find.format('a', 0)} MATCH (b) WHERE {find.format('b', 1)} "
            f"CREATE (a)-[:{type} {{fact: CASE WHEN row[0] % 3 = 0 THEN 'since release ' + row[1] % 50 END}}]->(b)"
        )
        for some in batched(edges, _AT_ONCE):
            await rows(text, {"rows": list(some), "first": first})
    [[found]] = await rows("MATCH ()-[r]->() RETURN count(r)", {})
    if found != RELATIONS:
        raise Died(f"{found} relationships are there")


@asynccontextmanager
async def _client(url: str, graph: Graph) -> AsyncGenerator[Rows]:
    """Lend what runs a query by the server's driver alone."""
    if graph == "falkordb":
        import redis.asyncio as redis
        from falkordb.asyncio.graph import AsyncGraph

        client: Any = redis.Redis.from_url(url, decode_responses=True, protocol=2)
        app: Any = AsyncGraph(client, channels.graph_name(APP))

        async def ask(statement: str, params: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
            found: Sequence[Sequence[Any]] = (await app.query(statement, dict(params), timeout=_WRITE_MS)).result_set
            return found

        try:
            yield ask
        finally:
            await client.aclose()
    else:
        import neo4j

        async with neo4j.AsyncGraphDatabase.driver(url, notifications_min_severity="OFF") as driver:

            async def run_query(statement: str, params: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
                async with driver.session() as session:
                    result = await session.run(statement, dict(params))  # pyright: ignore[reportArgumentType]
                    return [list(record.values()) async for record in result]

            yield run_query


if __name__ == "__main__":
    raise SystemExit("python -m benchmarks --only i")

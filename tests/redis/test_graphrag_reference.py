"""A retrieval returns the facts of a slow reference, in its order and within its caps."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pytest
import redis.asyncio as redis
from tests.services.facts_reference import FOLLOWED, SCOPES, Reference, ServerChooses

from graphweft_contracts.clock import SYSTEM_CLOCK, PastClock
from graphweft_contracts.memory import MemoryScope
from graphweft_workers.drivers.falkordb.literals import header
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.engine.plan.core_schema import FACT_KEYS
from graphweft_workers.features.graphrag.caps import Caps
from graphweft_workers.features.graphrag.retriever import HybridRetriever

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

APP: Final = "shop"
NEIGHBOUR: Final = "shop2"
NOW: Final = "2026-02-01T10:00:00.000000Z"
CLOCK: Final = datetime(2026, 2, 1, 10, tzinfo=UTC)
TIMES: Final = ("2026-01-01T00:00:00.000000Z", NOW, "2027-01-01T00:00:00.000000Z")
NAMES: Final = ("Ann", "Bob", "Eve", "Ida")
type Nodes = Sequence[tuple[str, Mapping[str, Any]]]
type Edges = Sequence[tuple[int, str, int, Mapping[str, Any]]]


@pytest.fixture
async def store(url: str) -> AsyncIterator[FalkorDBStore]:
    store = FalkorDBStore(url)
    yield store
    await store.aclose()


async def fill(url: str, store: FalkorDBStore, app_id: str, nodes: Nodes, edges: Edges) -> None:
    await store.prepare(app_id, FACT_KEYS)
    client: Any = redis.Redis.from_url(url)
    statements = [(f"UNWIND $rows AS row CREATE (n:{label}:Any) SET n = row.p SET n.number = row.n",
                   [{"n": n, "p": dict(said)} for n, (own, said) in enumerate(nodes) if own == label])
                  for label in sorted({label for label, _ in nodes})]  # fmt: skip
    statements += [(f"UNWIND $rows AS row MATCH (a:Any {{number: row.a}}) MATCH (b:Any {{number: row.b}}) "
                    f"CREATE (a)-[r:{kind}]->(b) SET r = row.p",
                    [{"a": a, "b": b, "p": dict(said)} for a, own, b, said in edges if own == kind])
                   for kind in sorted({kind for _, kind, _, _ in edges})]  # fmt: skip
    await client.execute_command("GRAPH.QUERY", f"mozaiks_{app_id}", "MATCH (n) DETACH DELETE n")
    for text, rows in statements:
        await client.execute_command("GRAPH.QUERY", f"mozaiks_{app_id}", header({"rows": rows}) + text)
    await client.aclose()


def random_graph(rnd: random.Random) -> tuple[Nodes, Edges]:
    """A few hubs, parallel relationships, relationships of a node to itself, owners, times and what is not followed."""

    def owned(share: float) -> dict[str, Any]:
        if rnd.random() > share:
            return {}
        return {name: rnd.choice("12") for name in rnd.sample(SCOPES, k=rnd.choice([1, 1, 2]))}

    count = rnd.choice([3, 12, 40, 90])
    labels = [*["Entity"] * 6, "Document", "Memory", "Chunk", "Other"]
    nodes: list[tuple[str, dict[str, Any]]] = []
    for n in range(count):
        said: dict[str, Any] = {"id": f"n{n}", **owned(0.2)}
        said |= {"name": rnd.choice([*NAMES, *[f"Node{n % 70}"] * 6, n, 1.5])}
        said |= {"type": f"Kind{n % 3}"} if rnd.random() < 0.5 else {}
        said |= {"description": rnd.choice([f"about {n % 5}", ["a list"]])} if rnd.random() < 0.3 else {}
        nodes.append((rnd.choice(labels), said))
    kinds = rnd.sample([*FOLLOWED, "OWNS"], k=rnd.choice([1, 4, 8]))
    edges: list[tuple[int, str, int, dict[str, Any]]] = []
    for number in range(rnd.choice([count, 3 * count])):
        a, b = (int(count * rnd.random() ** rnd.choice([1, 3])) for _ in range(2))
        said = {"fact": rnd.choice([f"fact {number}", "the same", number])} if rnd.random() < 0.7 else {}
        said |= {name: rnd.choice(TIMES) for name in ("valid_at", "invalid_at") if rnd.random() < 0.1}
        edges += [(a, rnd.choice(kinds), b, said | owned(0.1)) for _ in range(rnd.choice([1, 1, 1, 3]))]
    return nodes, edges


async def test_facts_are_those_of_a_slow_reference(url: str, store: FalkorDBStore) -> None:
    rnd = random.Random(31)
    known = shown = full = left_to_the_server = 0
    for _ in range(20):
        nodes, edges = random_graph(rnd)
        await fill(url, store, APP, nodes, edges)
        foreign = [(a, kind, b, {**said, "fact": "foreign"}) for a, kind, b, said in edges]
        await fill(url, store, NEIGHBOUR, nodes, foreign)
        for _ in range(12):
            caps = Caps(
                hops=rnd.choice([1, 2, 2]),
                limit=rnd.choice([5, 30, 100]),
                results=rnd.choice([3, 20, 50]),
                query_timeout_s=60.0,
            )
            scope = {name: rnd.choice("12") for name in rnd.sample(SCOPES, k=rnd.choice([0, 1, 2]))}
            names = rnd.sample([*NAMES, "Node1", "Node2"], k=rnd.choice([0, 1, 3]))
            ids = [f"n{rnd.randrange(len(nodes))}" for _ in range(rnd.choice([0, 1, 2]))]
            reference = Reference(
                nodes=nodes, edges=edges, scope=scope, now=NOW, hops=caps.hops, limit=caps.limit, results=caps.results
            )
            try:
                wanted = reference.facts(names, ids)
            except ServerChooses:
                left_to_the_server += 1
                continue
            retriever = HybridRetriever(
                store, enabled=True, caps=caps, clock=PastClock(datetime(2026, 2, 1, 10, tzinfo=UTC), SYSTEM_CLOCK)
            )
            memory = MemoryScope(**scope) if scope else None
            found = await retriever.retrieve(
                APP, ", ".join(f'"{name}"' for name in names), [{"id": id} for id in ids], timeout_s=60, memory=memory
            )
            assert list(found.facts) == wanted, (nodes, edges, names, ids, scope, caps)
            assert "foreign" not in found.text
            known += 1
            shown += len(wanted)
            full += len(wanted) == caps.results
    assert known > 4 * left_to_the_server
    assert shown > 500
    assert full > 15

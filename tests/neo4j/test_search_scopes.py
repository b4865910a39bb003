"""Tenancy and scopes: never a row from outside, always as many as there are inside, whatever the names are.

``GRAPHWEFT_SEARCHES`` is the number of searches on FalkorDB; Neo4j gets an eighth of them.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from typing import Any

import pytest
from tests.services.memories import DIMENSIONS, NASTY, WORDS, Batch, Model, batches, fill, fill_neo4j
from tests.services.neo4j import Neo4jServer

from graphweft_contracts.memory import SCOPES
from graphweft_contracts.search import SearchQuery
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.embedding.hashing import HashingEmbedder
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.search import Searcher
from graphweft_workers.text.terms import query_terms

pytestmark = pytest.mark.integration

APPS = ("shop", "shop2", "bank")
SEARCHES = int(os.environ.get("GRAPHWEFT_SEARCHES", "400"))
SEARCHES_NEO4J = SEARCHES // 8
TOGETHER = 8
KINDS = ("recency", "vector", "fulltext", "hybrid")
USERS = tuple(name for name in NASTY if name == name.strip())
"""A user's id finds a node, and the mutation worker refuses those that FalkorDB's indexes do not find again."""


async def mixed(app: str, seed: int, count: int = 60) -> list[Batch]:
    """The same names in every app, with other texts; scopes of one to four names, some of them shared."""
    rnd = random.Random(seed)
    said: list[tuple[Mapping[str, str], list[str]]] = []
    for _ in range(count):
        scope = {
            "application_id": rnd.choice(["app", "app-2", "*"]),
            "agent_id": rnd.choice(NASTY),
            "user_id": rnd.choice(USERS),
            "thread_id": rnd.choice(NASTY),
        }
        given = {name: scope[name] for name in rnd.sample(SCOPES, rnd.randint(1, 4))}
        said.append((given, [f"{app} " + " ".join(rnd.choices(WORDS, k=rnd.randint(1, 8))) for _ in range(5)]))
    # Many near-equal memories of one user: what is filtered behind the nearest starves all others.
    said += [({"user_id": "hog"}, [f"{app} dog dog dog"] * 20)] * 10
    return await batches(said, source=f"/{app}", embedded=0.8, seed=seed)


class Judge:
    """Asks at random and holds each answer against the model."""

    def __init__(self, store: GraphStore, models: Mapping[str, Model], seed: int) -> None:
        self.models = models
        self.plain = Searcher(store)
        self.with_vectors = Searcher(store, HashingEmbedder(DIMENSIONS))
        self.rnd = random.Random(seed)
        self.rows = dict.fromkeys(KINDS, 0)
        self.starved = 0
        """Searches that found all that was there, which was less than they asked for."""

    async def search(self) -> None:
        rnd = self.rnd
        app = rnd.choice(sorted(self.models))
        model, kind, k = self.models[app], rnd.choice(KINDS), rnd.choice([1, 2, 5, 20])
        scope = model.some_scope(rnd)
        text = rnd.choice(["dog", "the of", " ".join(rnd.choices(WORDS, k=rnd.randint(1, 5)))])
        searcher = self.plain if kind in {"recency", "fulltext"} else self.with_vectors
        more: dict[str, Any] = {"without_embedder": "latest"} if kind == "recency" else {"index_type": kind}
        others = [model.some_scope(rnd) for _ in range(rnd.choice([0, 0, 1, 2]))]
        asked = SearchQuery(text=text, memory=scope, any_of=others, top_k=k, **more)  # type: ignore[arg-type]
        found = await searcher.search(app, asked, timeout_s=120)
        ids = [row[found.table.columns.index("id")] for row in found.table.rows]
        inside = {memory.id: memory for each in (scope, *others) for memory in model.within(each)}
        assert set(ids) <= inside.keys(), (app, asked)
        assert [row[0] for row in found.table.rows] == [inside[id].text for id in ids]
        assert len(ids) == len(set(ids)) == min(k, self._there(model, kind, inside.values(), text)), (app, asked)
        assert found.degraded is None
        self.rows[kind] += len(ids)
        self.starved += len(ids) < k

    def _there(self, model: Model, kind: str, inside: Any, text: str) -> int:
        wanted = query_terms(text)
        if kind == "recency":
            return len(inside)
        near = {memory.id for memory in inside if memory.vector is not None}
        said = {memory.id for memory in inside if model.holds(memory.id, wanted)}
        found = {"vector": near, "fulltext": said, "hybrid": near | said}[kind]
        return len({model.said(memory) for memory in inside if memory.id in found})

    async def searches(self, count: int) -> None:
        for _ in range(count):
            await self.search()

    def check(self, searches: int) -> None:
        assert all(self.rows.values()), self.rows
        assert searches / 20 < self.starved < searches


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_no_search_leaves_its_scope_and_none_is_starved(url: str) -> None:
    store = FalkorDBStore(url, write_timeout_ms=10_000)
    models: dict[str, Model] = {}
    for seed, app in enumerate(APPS):
        made = await mixed(app, seed)
        await fill(store, url, app, made)
        models[app] = Model(made)
    judges = [Judge(store, models, seed) for seed in range(TOGETHER)]
    async with asyncio.TaskGroup() as group:
        for judge in judges:
            group.create_task(judge.searches(SEARCHES // TOGETHER + 1))
    await store.aclose()
    for judge in judges:
        judge.check(SEARCHES // TOGETHER)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_no_search_leaves_its_scope_on_neo4j(neo4j_server: Neo4jServer) -> None:
    neo4j_server.empty()
    store = Neo4jStore(neo4j_server.uri, write_timeout_ms=10_000)
    made = await mixed("shop", 1, count=30)
    await fill_neo4j(store, "shop", made)
    judge = Judge(store, {"shop": Model(made)}, 1)
    await judge.searches(SEARCHES_NEO4J)
    await store.aclose()
    judge.check(SEARCHES_NEO4J)

"""The graph servers of the tests, for the suite of searches."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import Final, Literal, override

import redis.asyncio as redis
from tests.services.memories import Batch, Model, fill
from tests.services.neo4j import Neo4jServer

from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.testing.suites.search_kit import APP, SearchKit
from graphweft_workers.testing.waiting import until

__all__ = ("FalkorDBSearchKit", "Neo4jSearchKit", "falkordb_search_kit", "neo4j_search_kit")

_MANY: Final = "GRAPHWEFT_SEARCHES" in os.environ
"""As ``make soak`` sets it."""
NAMED: Final = ("chunkEmbeddings", "farEmbeddings", "search_chunks", "search_bare")
"""Indexes that tests make on Neo4j."""
_LATER: Final = "later"
"""The one that a test needs to be missing first."""


class FalkorDBSearchKit(SearchKit):
    chunk_index = "Chunk"
    memory_index = "Memory"
    questions = 40 if _MANY else 15

    def __init__(self, store: GraphStore, url: str) -> None:
        self.store = store
        self.url = url

    async def fill(self, made: Sequence[Batch]) -> Model:
        await fill(self.store, self.url, APP, made)
        return Model(made)

    async def write(self, *statements: str) -> None:
        async with redis.Redis.from_url(self.url) as client:
            for statement in statements:
                await client.execute_command("GRAPH.QUERY", f"mozaiks_{APP}", statement)

    async def make_vector_index(self, name: str, label: str, similarity: Literal["cosine", "euclidean"]) -> None:
        options = f"OPTIONS {{dimension: 2, similarityFunction: '{similarity}'}}"
        await self.write(f"CREATE VECTOR INDEX FOR (n:{label}) ON (n.embedding) {options}")
        await self._built()

    async def make_fulltext_index(self, name: str, label: str, *properties: str) -> None:
        await self.begin_fulltext_index(name, label, *properties)
        await self._built()

    @override
    async def begin_fulltext_index(self, name: str, label: str, *properties: str) -> None:
        names = ", ".join(f"'{each}'" for each in (label, *properties))
        await self.write(f"CALL db.idx.fulltext.createNodeIndex({names})")

    async def drop_named_indexes(self) -> None:
        pass  # they are gone with the graph

    async def _built(self) -> None:
        async def states() -> set[str]:
            asked = "CALL db.indexes() YIELD status RETURN status"
            return {row[0] for row in (await self.store.read(APP, asked, {}, timeout_s=20)).rows}

        await until(states, lambda seen: seen == {"OPERATIONAL"})


class Neo4jSearchKit(SearchKit):
    chunk_index = "search_chunks"
    memory_index = MemoryMutations().indexes[0].name
    questions = 10 if _MANY else 4

    def __init__(self, store: GraphStore, server: Neo4jServer) -> None:
        self.store = store
        self.server = server

    async def write(self, *statements: str) -> None:
        for statement in statements:
            self.server.run(statement.replace("vecf32", ""))

    async def make_vector_index(self, name: str, label: str, similarity: Literal["cosine", "euclidean"]) -> None:
        options = f"{{indexConfig: {{`vector.dimensions`: 2, `vector.similarity_function`: '{similarity}'}}}}"
        await self._make(f"VECTOR INDEX {name} IF NOT EXISTS FOR (n:{label}) ON (n.embedding) OPTIONS {options}")

    async def make_fulltext_index(self, name: str, label: str, *properties: str) -> None:
        await self.begin_fulltext_index(name, label, *properties)
        await self.write("CALL db.awaitIndexes(60)")

    @override
    async def begin_fulltext_index(self, name: str, label: str, *properties: str) -> None:
        names = ", ".join(f"n.{each}" for each in properties)
        await self.write(f"CREATE FULLTEXT INDEX {name} IF NOT EXISTS FOR (n:{label}) ON EACH [{names}]")

    async def drop_named_indexes(self) -> None:
        await self.drop(*NAMED, _LATER)

    async def drop(self, *names: str) -> None:
        """Drop those indexes that there are."""
        known = {name for (name,) in self.server.run("SHOW INDEXES YIELD name RETURN name")}
        await self.write(*(f"DROP INDEX {name}" for name in names if name in known))

    async def _make(self, index: str) -> None:
        await self.write(f"CREATE {index}", "CALL db.awaitIndexes(60)")


@contextlib.asynccontextmanager
async def falkordb_search_kit(url: str) -> AsyncIterator[SearchKit]:
    async with contextlib.aclosing(FalkorDBStore(url, write_timeout_ms=5_000)) as store:
        yield FalkorDBSearchKit(store, url)


@contextlib.asynccontextmanager
async def neo4j_search_kit(server: Neo4jServer) -> AsyncIterator[SearchKit]:
    server.empty()
    async with contextlib.aclosing(Neo4jStore(server.uri, write_timeout_ms=5_000)) as store:
        await store.prepare(APP, ())
        kit = Neo4jSearchKit(store, server)
        yield kit
    # The others stay for the next test: after a change of the schema, Neo4j plans every query anew.
    await kit.drop(_LATER)

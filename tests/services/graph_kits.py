"""The graph servers of the tests, for the suite of the port."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.services.neo4j import Neo4jServer, sharing

from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.testing.suites.graph_kit import APP, GraphKit

__all__ = ("FalkorDBKit", "Neo4jKit", "graph_kit", "own_graph_kit")


class FalkorDBKit(GraphKit):
    """``server`` is one that may be killed."""

    name = "falkordb"

    def __init__(self, url: str, server: EmbeddedServer | None = None) -> None:
        self.url = url
        self.server = server

    def store(self, **options: Any) -> GraphStore:
        return FalkorDBStore(self.url, **options)

    def unavailable_store(self) -> GraphStore:
        return FalkorDBStore("unix:///nonexistent/redis.sock")

    def run(self, statement: str) -> Sequence[Sequence[Any]]:
        with contextlib.closing(redis.Redis.from_url(self.url, decode_responses=True)) as client:
            reply = client.execute_command("GRAPH.QUERY", f"mozaiks_{APP}", statement)
            return reply[1] if len(reply) == 3 else []

    def indexes(self) -> Sequence[tuple[str, str]]:
        found = self.run("CALL db.indexes() YIELD label, properties RETURN label, properties")
        return [(label, str(names)[1:-1]) for label, names in found]

    async def start(self) -> None:
        assert self.server is not None
        await self.server.start()

    async def kill(self) -> None:
        assert self.server is not None
        if self.server.process is not None:
            self.server.process.kill()
            await self.server.process.wait()


class Neo4jKit(GraphKit):
    name = "neo4j"
    new_kinds = 4  # it takes a second to compile each

    def __init__(self, server: Neo4jServer) -> None:
        self.server = server
        self.server.empty()

    def store(self, *, graph_template: str | None = None, **options: Any) -> GraphStore:
        # The test's Neo4j has one database: graphs with another name are second ones in it.
        return sharing(Neo4jStore(self.server.uri, beside=graph_template, **options))

    def unavailable_store(self) -> GraphStore:
        return Neo4jStore("bolt://127.0.0.1:1")

    def run(self, statement: str) -> Sequence[Sequence[Any]]:
        return self.server.run(statement)

    def indexes(self) -> Sequence[tuple[str, str]]:
        found = self.run(
            "SHOW INDEXES YIELD labelsOrTypes, properties, state WHERE state = 'ONLINE' "
            "AND size(labelsOrTypes) = 1 AND size(properties) = 1 RETURN labelsOrTypes[0], properties[0]"
        )
        return [(label, name) for label, name in found]

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)

    async def kill(self) -> None:
        await asyncio.to_thread(self.server.kill)


def graph_kit(name: str, request: pytest.FixtureRequest) -> FalkorDBKit | Neo4jKit:
    """Return the server that tests share, without data."""
    if name == "neo4j":
        return Neo4jKit(request.getfixturevalue("neo4j_server"))
    return FalkorDBKit(request.getfixturevalue("url"))


@contextlib.asynccontextmanager
async def own_graph_kit(name: str) -> AsyncIterator[FalkorDBKit | Neo4jKit]:
    """Yield a server that may be killed."""
    with tempfile.TemporaryDirectory(prefix="graphweft-crash-") as folder:
        kit: FalkorDBKit | Neo4jKit
        if name == "neo4j":
            server = Neo4jServer(Path(folder))
            await asyncio.to_thread(server.start)
            kit = Neo4jKit(server)
        else:
            embedded = EmbeddedServer(Path(folder))
            await embedded.start()
            kit = FalkorDBKit(f"unix://{embedded.socket}", embedded)
        try:
            yield kit
        finally:
            await kit.kill()

"""The suite of the port of graphs, against the real servers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.services.graph_kits import FalkorDBKit, Neo4jKit, graph_kit, own_graph_kit
from tests.services.neo4j import Neo4jServer
from tests.services.tiers import repeats

from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.testing.suites.graph_kit import APP, GraphKit
from graphweft_workers.testing.suites.graph_read_suite import CONTENT
from graphweft_workers.testing.suites.graph_suite import GraphSuite

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


class TestFalkorDB(GraphSuite):
    @pytest.fixture
    def kit(self, request: pytest.FixtureRequest) -> GraphKit:
        return graph_kit("falkordb", request)

    @pytest_asyncio.fixture
    async def own_kit(self) -> AsyncIterator[GraphKit]:
        async with own_graph_kit("falkordb") as kit:
            yield kit


@repeats(
    GraphSuite,
    "test_a_server_that_crashes_keeps_what_it_acknowledged_and_comes_back",
    "test_the_writes_of_a_former_owner_change_nothing",
)
class TestNeo4j(GraphSuite):
    @pytest.fixture
    def kit(self, request: pytest.FixtureRequest) -> GraphKit:
        return graph_kit("neo4j", request)

    @pytest_asyncio.fixture
    async def own_kit(self) -> AsyncIterator[GraphKit]:
        async with own_graph_kit("neo4j") as kit:
            yield kit


async def test_the_same_content_has_the_same_digest_on_falkordb_and_neo4j(url: str, neo4j_server: Neo4jServer) -> None:
    digests = []
    for name, order in (("falkordb", 1), ("neo4j", 1), ("neo4j", -1)):
        kit = FalkorDBKit(url) if name == "falkordb" else Neo4jKit(neo4j_server)
        async with contextlib.aclosing(kit.store()) as store:
            await store.progress(APP, 3 + order)  # our own nodes do not count
            for statement in CONTENT[:4][::order] + CONTENT[4:]:
                kit.run(statement)
            digests.append(await read_digest(store, APP))
    assert digests[0] == digests[1] == digests[2]
    assert (digests[0].nodes, digests[0].relationships) == (4, 7)

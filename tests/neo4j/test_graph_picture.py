"""A picture of a small graph is whole, in whatever order its nodes and relationships were written."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

import pytest
from tests.ports.test_graph_contract import APP, Backend, backend_of

from graphweft_workers.console.graph import draw

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
NAMES = "abcdef"
PAIRS = {f"{one}{other}" for one, other in itertools.combinations(NAMES, 2)}


@pytest.fixture(params=["falkordb", "neo4j"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_of(request.param, request)


@pytest.mark.parametrize("order", [sorted(PAIRS), sorted(PAIRS, reverse=True)], ids=["as_read", "backwards"])
async def test_a_picture_has_every_relationship_between_its_nodes(backend: Backend, order: Sequence[str]) -> None:
    async with contextlib.aclosing(backend.make()) as graph:
        await graph.progress(APP, 0)
        for one, other in order:
            backend.run(f"MERGE (a:Note {{name: '{one}'}}) MERGE (b:Note {{name: '{other}'}}) MERGE (a)-[:BEFORE]->(b)")
        _, nodes, relationships = await draw(graph, APP, labels=["Note"], limit=10, most=100, redacts=False)
    captions = {each["id"]: each["caption"] for each in nodes}
    assert sorted(captions.values()) == list(NAMES)
    assert {captions[each["start"]] + captions[each["end"]] for each in relationships} == PAIRS

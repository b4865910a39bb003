"""A picture of a small graph is whole, in whatever order its nodes and relationships were written."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

import pytest
from tests.services.graph_kits import graph_kit

from graphweft_workers.reports.picture import picture
from graphweft_workers.testing.suites.graph_kit import APP, GraphKit

pytestmark = pytest.mark.integration
NAMES = "abcdef"
PAIRS = {f"{one}{other}" for one, other in itertools.combinations(NAMES, 2)}


@pytest.fixture(params=["falkordb", "neo4j"])
def kit(request: pytest.FixtureRequest) -> GraphKit:
    return graph_kit(request.param, request)


@pytest.mark.parametrize("order", [sorted(PAIRS), sorted(PAIRS, reverse=True)], ids=["as_read", "backwards"])
async def test_a_picture_has_every_relationship_between_its_nodes(kit: GraphKit, order: Sequence[str]) -> None:
    async with contextlib.aclosing(kit.store()) as graph:
        await graph.progress(APP, 0)
        for one, other in order:
            kit.run(f"MERGE (a:Note {{name: '{one}'}}) MERGE (b:Note {{name: '{other}'}}) MERGE (a)-[:BEFORE]->(b)")
        found = await picture(graph, APP, labels=["Note"], limit=10, redacts=False)
    captions = {each["id"]: each["caption"] for each in found.nodes.values()}
    assert sorted(captions.values()) == list(NAMES)
    assert {captions[each["start"]] + captions[each["end"]] for each in found.relationships.values()} == PAIRS

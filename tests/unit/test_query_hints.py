"""``graphweft query`` names labels that look misspelt if a query finds nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_workers.cli import graph as commands
from graphweft_workers.ports.graph_store import GraphStore, Table


class Names:
    """Answers the queries for the names of a graph."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault

    async def read(self, app_id: str, statement: str, params: Mapping[str, Any], *, timeout_s: float) -> Table:
        if self.fault is not None:
            raise self.fault
        names = ["Agent", "Tool", "User"] if "labels" in statement else ["USED", "STARTED"]
        return Table(columns=("name",), rows=tuple((name,) for name in names))


async def hinted(cypher: str, fault: Exception | None = None) -> list[str]:
    hints = await commands._misspelt(cast(GraphStore, Names(fault)), "acme", cypher)  # pyright: ignore[reportPrivateUsage]
    return [hint.removeprefix("the graph has no label or type ").split()[0].strip("'") for hint in hints]


@pytest.mark.parametrize(
    ("cypher", "names"),
    [
        ("MATCH (t:Tol)-[:STARTD|USD|:USE]->(:User) RETURN t", ["Tol", "STARTD", "USD", "USE"]),
        ("MATCH (u) WHERE u:Usr OR (u:`Agnt` {a: 1}) RETURN u", ["Usr", "Agnt"]),
        ("MATCH (t) WHERE EXISTS { (t)<-[:USER]-(:Agents) } RETURN t", ["USER", "Agents"]),
        ("MATCH (t:Tool {owner: $user}) RETURN t", []),
        ("UNWIND ['x'] AS agent MATCH (t:Tool {name: agent}) RETURN t", []),
        ("MATCH (t:Tool) WHERE [x IN t.list | tool.x] = [] RETURN t {.name, by: user}", []),
    ],
)
async def test_only_labels_and_types_are_hinted_at(cypher: str, names: list[str]) -> None:
    assert await hinted(cypher) == names


@pytest.mark.parametrize("fault", [QueryFailed("too late", code="timeout"), GraphUnavailable("gone")], ids=str)
async def test_a_server_that_gives_no_names_is_no_error(fault: Exception) -> None:
    assert await hinted("MATCH (t:Tol) RETURN t", fault) == []

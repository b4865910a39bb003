"""Names of properties that a mutation takes from events: found in the text, read from the parameters."""

from __future__ import annotations

from typing import Any

import pytest

from graphweft_rules.cypher.clauses import outline
from graphweft_rules.cypher.given_names import given_names, name_sources

MAP = {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "text",
    [
        "MERGE (n:A {id: $id}) SET n.x = $x, n += {y: $map}",
        "CREATE (n:A {x: $map})-[:R {y: $x}]->(:B)",
        "MATCH (n:A {id: $id}) SET n:B, n.x = $map.a REMOVE n.y",
        "UNWIND $map AS row MERGE (n:A {id: row.id}) SET n.x = row.x",
    ],
)
def test_names_in_the_text_come_from_no_event(text: str) -> None:
    assert name_sources(outline(text)) == ()


@pytest.mark.parametrize(
    ("text", "params", "names"),
    [
        ("MERGE (n:A {id: $id}) SET n += $map", {"id": {"no": 1}, "map": MAP}, {"a", "b"}),
        ("MERGE (n:A {id: $id}) SET n = $map", {"id": 1, "map": MAP}, {"a", "b"}),
        ("MERGE (n:A {id: $id}) ON CREATE SET n += $map.in", {"id": 1, "map": {"in": MAP, "c": 1}}, {"a", "b"}),
        ("MATCH (a:A), (b:B) MERGE (a)-[r:R]->(b) SET r += $map", {"map": MAP}, {"a", "b"}),
        ("CREATE (n:A $map)", {"map": MAP, "id": {"no": 1}}, {"a", "b"}),
        ("CREATE (n:A)-[r:R $map]->(m:A)", {"map": MAP}, {"a", "b"}),
        ("MERGE (n:A {id: $id}) SET n += $map, n.x = $y", {"id": 1, "map": MAP, "y": {"no": 1}}, {"a", "b"}),
        ("MERGE (n:A {id: $id}) SET n += $map", {"id": 1, "map": None}, set()),
        ("MERGE (n:A {id: $id}) SET n += $map", {"id": 1, "map": "text"}, set()),
        # It is not known which map it is, so all of them count.
        ("UNWIND $rows AS row MERGE (n:A {id: row.id}) SET n += row.map", {"rows": [{"map": MAP}]}, {"map", "a", "b"}),
        ("MATCH (n:A) CALL { WITH n SET n += $map } RETURN n", {"map": MAP, "id": 1}, {"a", "b"}),
        ("MATCH (n:A) FOREACH (m IN $maps | SET n += m)", {"maps": [MAP]}, {"a", "b"}),
        ("CALL apoc.create.node(['A'], $map) YIELD node RETURN node", {"map": MAP}, {"a", "b"}),
    ],
)
def test_names_are_the_keys_of_the_maps_that_are_written(text: str, params: dict[str, Any], names: set[str]) -> None:
    assert set(given_names(name_sources(outline(text)), params)) == names

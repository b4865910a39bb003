"""Which mutations depend on the order of chats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphweft_rules.files.lint import workflows
from graphweft_rules.matching.chat_order import order_across_chats

PARAMS = {
    "id": "$event.id", "chat": "$workflow.chat_id", "context_chat": "$context.chat_id", "name": "$event.name",
    "list": ["$event.id"],
}  # fmt: skip


def reported(folder: Path, *queries: str) -> dict[str, str]:
    """Return the message for each query that is reported, by the name of its mutation."""
    mutations = [
        {"id": f"m{number}", "cypher": query, "params": {k: v for k, v in PARAMS.items() if f"${k}" in query}}
        for number, query in enumerate(queries)
    ]
    rules = {"version": "1.0", "mutation_rules": [{"name": "r", "events": ["*"], "mutations": mutations}]}
    (folder / "W").mkdir()
    (folder / "W/graph_injection.yaml").write_text(json.dumps(rules))
    found = order_across_chats(workflows([folder]))
    assert all((each.code, each.level) == ("order-across-chats", "warning") for each in found)
    return {each.message.partition("r/")[2].partition(" ")[0]: each.message for each in found}


@pytest.mark.parametrize(
    "query",
    [
        "MERGE (a:A {k: $name})",
        "MERGE (a:A {k: $name}) MERGE (b:B {k: $id}) MERGE (a)-[:R]->(b)",
        "CREATE (:Log {id: $id, name: $name})",
        "MERGE (c:Chat {id: $chat}) SET c.last = $name",
        "MERGE (c:Chat {id: $context_chat}) SET c.n = coalesce(c.n, 0) + 1",
        "MATCH (c:Chat {id: $chat}) SET c.ended = true",
    ],
)
def test_what_only_its_own_chat_changes_is_not_reported(tmp_path: Path, query: str) -> None:
    assert reported(tmp_path, query) == {}


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("MERGE (a:A {k: $name}) SET a.last = $id", "the property last of nodes :A"),
        ("MERGE (a:A {k: $name}) SET a.last = datetime()", "the property last of nodes :A"),
        ("MERGE (a:A {k: $name}) MERGE (b:B {k: $id}) MERGE (a)-[r:R]->(b) SET r.at = $id", "relationships :R"),
        ("MATCH (a:A {k: $name}) DETACH DELETE a", "deleting a node also deletes its relationships"),
        ("MATCH (a:A) SET a.seen = $chat", "the property seen of nodes :A"),
        ("MERGE (a:A {k: $list}) SET a.x = $id", "the property x of nodes :A"),
    ],
)
def test_what_other_chats_change_too_is_reported_with_the_data(tmp_path: Path, query: str, why: str) -> None:
    found = reported(tmp_path, query)
    assert list(found) == ["m0"]
    assert why in found["m0"]


def test_a_reader_is_reported_beside_its_writer(tmp_path: Path) -> None:
    found = reported(
        tmp_path,
        "MERGE (a:A {k: $name}) SET a.last = $id",
        "MATCH (a:A {k: $name}) WHERE a.last IS NULL MERGE (c:Chat {id: $chat}) SET c.first = true",
        "MERGE (c:Chat {id: $chat}) SET c.other = 1",
    )
    assert set(found) == {"m0", "m1"}
    assert "by r/m0" in found["m1"]


def test_a_query_that_is_not_understood_is_reported(tmp_path: Path) -> None:
    found = reported(tmp_path, "CALL { MATCH (a:A) RETURN count(a) AS n } MERGE (t:Total {k: 'x'}) SET t.n = n")
    assert "it is not known what the query touches" in found["m0"]

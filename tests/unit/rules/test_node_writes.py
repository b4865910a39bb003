"""Which rows may write a node: no row that writes it is left out, and few others are named."""

from __future__ import annotations

from typing import Any

import pytest

from graphweft_rules.cypher.node_writes import ENSURES, NodeTarget, NodeWriters, Slice
from graphweft_rules.cypher.query import Cypher, parse
from graphweft_rules.cypher.read_write_sets import summary_of

TOOL = NodeTarget(label="Tool", keys={"name": ("x",)})


def cypher(text: str) -> Cypher:
    return parse(text, role="mutation")


def reason(text: str, target: NodeTarget = TOOL, *others: str, **params: Any) -> str:
    query = cypher(text)
    summary = summary_of([query, *map(cypher, others)])
    return NodeWriters(target, summary).reason(query, params)


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("MERGE (t:Tool {name: $n}) SET t.calls = 1", {"n": "x"}),
        ("MERGE (t:Tool {name: 'x'})", {}),
        ("CREATE (t:Tool {name: $m.n})", {"m": {"n": "x"}}),
        ("UNWIND $all AS one MERGE (t:Tool {name: one.n}) SET t.calls = 1", {"all": [{"n": "y"}, {"n": "x"}]}),
        ("UNWIND $all AS one MERGE (t:Tool {name: one})", {"all": ["y", "x"]}),
        ("MATCH (t:Tool) SET t.calls = 0", {}),
        ("MATCH (t:Tool {name: $n}) SET t.name = $to", {"n": "y", "to": "x"}),
        ("MERGE (t:Tool {name: $n}) SET t += $m", {"n": "y", "m": {"name": "x"}}),
        ("MATCH (a:Agent {id: $n}) SET a:Tool", {"n": "y"}),
        ("MATCH (n {id: $n}) SET n.calls = 1", {"n": "y"}),
        ("MATCH (t:Tool {name: $n}) DETACH DELETE t", {"n": "y"}),
        ("MERGE (a:Agent {id: $n})-[:USES]->(t:Tool {name: $n})", {"n": "x"}),
        ("UNWIND $all AS one WITH $n AS one MERGE (t:Tool {name: one})", {"all": ["y"], "n": "x"}),
        ("UNWIND $all AS one WITH count(one) AS c MATCH (one:Tool) MERGE (t:Tool {name: one.next})", {"all": ["y"]}),
        ("CALL { MATCH (t:Tool) SET t.n = 1 }", {}),
    ],
)
def test_a_row_that_may_write_the_node_is_named(text: str, params: dict[str, Any]) -> None:
    assert reason(text, **params)


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("MERGE (t:Tool {name: $n}) SET t.calls = 1", {"n": "y"}),
        ("MERGE (t:Tool {name: $n}) SET t.calls = 1", {"n": 7}),
        ("UNWIND $all AS one MERGE (t:Tool {name: one.n}) SET t.calls = 1", {"all": [{"n": "y"}, {"n": "z"}]}),
        ("MERGE (t:Tool {name: $n}) SET t += $m", {"n": "y", "m": {"calls": 1}}),
        ("MERGE (t:Tool {name: $n}) SET t.name = $n", {"n": "y"}),
        ("MERGE (a:Agent {name: $n}) SET a.calls = 1", {"n": "x"}),
        ("MATCH (t:Tool {name: $n}) MERGE (a:Agent {id: $n}) MERGE (a)-[:USES]->(t)", {"n": "x"}),
    ],
)
def test_other_rows_are_not_named(text: str, params: dict[str, Any]) -> None:
    assert not reason(text, **params)


def test_labels_that_may_be_on_one_node_count_as_one() -> None:
    text = "MERGE (a:Agent {id: $n}) SET a.calls = 1"
    assert not reason(text, n="y")
    assert reason(text, TOOL, "MATCH (a:Agent) SET a:Tool", n="y")


def test_a_number_equals_a_float_and_no_text() -> None:
    text = "MERGE (t:Tool {name: $n})"
    target = NodeTarget(label="Tool", keys={"name": (7,)})
    assert [bool(reason(text, target, n=value)) for value in (7, 7.0, True, None, 8, "7")] == [True] * 4 + [False] * 2


def test_a_plain_merge_only_makes_sure_that_the_node_exists() -> None:
    assert reason("MERGE (t:Tool {name: $n}) MERGE (c:Chat {id: $c})", n="x", c="y") == ENSURES
    for text in (
        "MERGE (t:Tool {name: $n}) SET t.calls = 1",
        "MERGE (t:Tool {name: $n}) ON MATCH SET t.calls = 1",
        "MERGE (t:Tool {name: $n, of: $n})",
        "MERGE (t:Tool:Old {name: $n})",
        "MERGE (:Chat {id: $n})-[:CALLED]->(t:Tool {name: $n})",
    ):
        assert reason(text, n="x") not in ("", ENSURES)
    doubtful = NodeTarget(label="Tool", keys={"name": ("7", 7)})
    assert reason("MERGE (t:Tool {name: $n})", doubtful, n=7) not in ("", ENSURES)


def test_a_property_or_a_relationship_narrows_the_rows() -> None:
    calls = NodeTarget(label="Tool", keys={"name": ("x",)}, property="calls")
    assert reason("MATCH (t:Tool {name: $n}) SET t.calls = 1", calls, n="x")
    assert not reason("MATCH (t:Tool {name: $n}) SET t.other = 1", calls, n="x")
    uses = NodeTarget(label="Tool", keys={"name": ("x",)}, relationship="USES")
    merge = "MATCH (t:Tool {name: $n}) MATCH (a:Agent {id: $a}) MERGE (a)-[:USES]->(t)"
    assert reason(merge, uses, n="x", a="y")
    assert not reason(merge, uses, n="y", a="x")
    assert not reason("MATCH (t:Tool {name: $n}) SET t.calls = 1", uses, n="x")
    assert reason("MATCH (t:Tool {name: $n}) SET t.name = $to", uses, n="y", to="x")  # another node's become its own


def test_a_slice_has_what_its_mutations_depend_on() -> None:
    texts = [
        "MERGE (t:Tool {name: $n}) SET t.calls = 1",
        "MATCH (a:Agent {id: $a}) MERGE (t:Tool {name: a.tool})",
        "MERGE (a:Agent {id: $a}) SET a.tool = $n",
        "MERGE (c:Chat {id: $n})",
        "MATCH (c:Chat {id: $n}) MATCH (t:Tool {name: $n}) MERGE (c)-[:CALLED]->(t)",
    ]
    cyphers = {each.statement: each for each in map(cypher, texts)}
    slice = Slice(cyphers, summary_of(cyphers.values()))
    statements = list(cyphers)
    assert slice.of(statements[:1]) == set(statements[:3])
    assert slice.of(statements[3:4]) == {statements[3]}
    assert slice.of(statements[4:]) == set(statements)
    assert slice.of([]) == set()
    deletes = cypher("MATCH (c:Chat {id: $n}) DETACH DELETE c")
    cyphers[deletes.statement] = deletes
    assert Slice(cyphers, summary_of(cyphers.values())).of(statements[:1]) == cyphers.keys()

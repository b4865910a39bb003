"""Two graphs are compared by the keys of their nodes, whatever ids the server gives."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from graphweft_rules.cypher.clauses import outline
from graphweft_rules.cypher.merge_keys import looked_up, merge_keys
from graphweft_workers.engine.plan.digest import digest_of
from graphweft_workers.ports.graph_store import Edge, Node
from graphweft_workers.replay.graph_diff import GraphComparison, GraphDiff

KEYS = (("Order", ("id",)), ("Line", ("number", "order")))

type Graph = tuple[Sequence[Node], Sequence[Edge]]


def node(number: int, labels: str, /, **properties: Any) -> Node:
    return Node(id=number, labels=tuple(filter(None, labels.split(":"))), properties=properties)


def edge(start: int, end: int, type_: str = "HAS", **properties: Any) -> Edge:
    return Edge(start=start, end=end, type=type_, properties=properties)


def compared(
    before: Graph, after: Graph, limit: int = 5, keys: Iterable[tuple[str, tuple[str, ...]]] = KEYS
) -> GraphDiff:
    comparison = GraphComparison(keys, limit=limit)
    for each in before[0]:
        comparison.before(each)
    for each in before[1]:
        comparison.before_edge(each)
    comparison.turn()
    for each in after[0]:
        comparison.after(each)
    comparison.pair()
    for each in after[1]:
        comparison.after_edge(each)
    return comparison.result()


def totals(diff: GraphDiff) -> Mapping[str, tuple[int, int, int]]:
    hows = ("added", "removed", "changed")
    return {kind: tuple(diff.total(kind, how) for how in hows) for kind in ("node", "relationship")}  # type: ignore[arg-type, misc]


def test_a_renamed_property_is_one_removed_and_one_added() -> None:
    diff = compared(([node(1, "Order", id="a", by="x")], []), ([node(9, "Order", id="a", who="x")], []))
    assert totals(diff) == {"node": (0, 0, 1), "relationship": (0, 0, 0)}
    assert {name: dict(found) for name, found in diff.properties.items()} == {
        ("node", "Order", "by"): {"removed": 1},
        ("node", "Order", "who"): {"added": 1},
    }
    [example] = diff.examples
    assert (example.ends[0].label, example.ends[0].key) == ("Order", {"id": "a"})
    assert (example.before, example.after) == ({"by": "x"}, {"who": "x"})


def test_a_new_label_is_a_change_of_the_node_and_of_no_relationship() -> None:
    before = [node(1, "Order", id="a"), node(2, "Line", number=1, order="a")]
    after = [node(5, "Line", number=1, order="a"), node(6, "Order:Vip", id="a")]
    diff = compared((before, [edge(1, 2)]), (after, [edge(6, 5)]), keys=(*KEYS, ("Vip", ("id",))))
    assert totals(diff) == {"node": (0, 0, 1), "relationship": (0, 0, 0)}
    assert diff.labels == {"Vip": {"added": 1}}
    assert diff.examples[0].labels_added == ("Vip",)


def test_relationships_are_known_by_their_ends_and_type() -> None:
    nodes = [node(1, "Order", id="a"), node(2, "Order", id="b"), node(3, "Order", id="c")]
    before = [edge(1, 2, n=1), edge(1, 2, n=2), edge(2, 3), edge(3, 1, "OLD")]
    after = [edge(1, 2, n=2), edge(1, 2, n=3), edge(2, 3), edge(3, 1, "NEW")]
    diff = compared((nodes, before), (nodes, after))
    assert totals(diff) == {"node": (0, 0, 0), "relationship": (1, 1, 1)}
    assert dict(diff.properties["relationship", "HAS", "n"]) == {"changed": 1}
    changed = next(each for each in diff.examples if each.how == "changed")
    assert (changed.before, changed.after) == ({"n": 1}, {"n": 3})


def test_nodes_without_a_key_are_known_by_their_content() -> None:
    many = [node(number, "Ping", at=1) for number in range(3_000)]
    diff = compared((many, []), (many[:-1], []))
    assert totals(diff)["node"] == (0, 1, 0)
    diff = compared(([node(1, "Ping", at=1)], []), ([node(1, "Ping", at=2)], []))
    assert totals(diff)["node"] == (1, 1, 0)
    assert compared(([node(1, "Order", by="x")], []), ([node(4, "Order", by="x")], [])).same  # it lacks its key


def test_several_nodes_with_one_key_pair_equal_ones_first() -> None:
    before = [node(1, "Order", id="a", n=1), node(2, "Order", id="a", n=2)]
    after = [node(1, "Order", id="a", n=3), node(2, "Order", id="a", n=1), node(3, "Order", id="a", n=4)]
    diff = compared((before, []), (after, []))
    assert totals(diff)["node"] == (1, 0, 1)
    assert diff.nodes == (2, 3)


def test_examples_are_limited_and_internal_nodes_are_left_out() -> None:
    after = [node(0, "__Progress", pos=1), *(node(number, "Order", id=number) for number in range(1, 50))]
    diff = compared(([], []), (after, [edge(0, 1), edge(1, 0)]), limit=3)
    assert (diff.nodes, diff.relationships, len(diff.examples)) == ((0, 49), (0, 0), 3)


def test_values_are_equal_as_in_a_digest() -> None:
    before, after = node(1, "Order", id="a", x=0.1 + 0.2, y=[1, "1"]), node(1, "Order", id="a", x=0.3, y=[1, "1"])
    assert compared(([before], []), ([after], [])).same
    assert not compared(([before], []), ([node(1, "Order", id="a", x=0.3, y=["1", 1])], [])).same


NODES = st.lists(
    st.builds(
        lambda labels, properties: (labels, properties),
        st.sets(st.sampled_from(["Order", "Line", "Ping"]), max_size=2),
        st.dictionaries(st.sampled_from(["id", "order", "number", "x"]), st.integers(0, 2), max_size=4),
    ),
    max_size=8,
)


@given(NODES, st.randoms(use_true_random=False))
def test_a_graph_equals_itself_with_other_ids_in_another_order(
    content: list[tuple[set[str], dict[str, int]]], chance: random.Random
) -> None:
    nodes = [Node(id=number, labels=tuple(labels), properties=found) for number, (labels, found) in enumerate(content)]
    ends = [(chance.randrange(len(nodes)), chance.randrange(len(nodes))) for _ in nodes]
    edges = [edge(start, end, x=chance.randrange(2)) for start, end in ends]
    others = [Node(id=each.id + 100, labels=each.labels[::-1], properties=each.properties) for each in nodes]
    moved = [Edge(start=e.start + 100, end=e.end + 100, type=e.type, properties=e.properties) for e in edges]
    chance.shuffle(others)
    chance.shuffle(moved)
    assert compared((nodes, edges), (others, moved)).same


@given(NODES, NODES)
def test_counts_add_up_and_graphs_that_are_the_same_have_one_digest(
    one: list[tuple[set[str], dict[str, int]]], two: list[tuple[set[str], dict[str, int]]]
) -> None:
    before = [Node(id=number, labels=tuple(labels), properties=found) for number, (labels, found) in enumerate(one)]
    after = [Node(id=number, labels=tuple(labels), properties=found) for number, (labels, found) in enumerate(two)]
    diff = compared((before, []), (after, []))
    added, removed, _ = totals(diff)["node"]
    assert len(before) - removed + added == len(after)
    assert diff.same == (digest_of(before, []) == digest_of(after, []))


def test_keys_and_values_are_read_from_queries() -> None:
    query = outline("MERGE (o:Order {id: $id}) MERGE (l:Line:Row {number: 1, order: $id})-[:OF]->(o) SET o.x = 1")
    assert merge_keys(query) == {("Order", ("id",)), ("Line", ("number", "order")), ("Row", ("number", "order"))}
    assert {(label, name) for label, name, _ in looked_up(query)} >= {("Order", "id"), ("Line", "number")}
    assert merge_keys(outline("MATCH (o:Order {id: 1}) CREATE (:Line {number: 1})")) == frozenset()
    assert merge_keys(outline("MERGE (((")) == looked_up(outline("MERGE (((")) == frozenset()

"""Digests: the same content has the same digest however it is listed, other content has another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphweft_workers.engine.plan.digest import canonical, digest_of
from graphweft_workers.ports.graph_store import Edge, Node

type Graph = tuple[list[Node], list[Edge]]

# Few different values, so that nodes often look alike and only their neighbourhood tells them apart.
values = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.5, 1.0]), st.sampled_from(["", "a", "1", "é"])
)
properties = st.dictionaries(st.sampled_from(["name", "n"]), values | st.lists(values, max_size=2), max_size=2)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 6))
    labels = st.lists(st.sampled_from(["A", "B"]), unique=True)
    nodes = [Node(id=i, labels=tuple(draw(labels)), properties=draw(properties)) for i in range(count)]
    ends = st.integers(0, count - 1)
    links = draw(st.lists(st.tuples(ends, ends, st.sampled_from(["R", "S"]), properties), max_size=8))
    return nodes, [Edge(start=a, end=b, type=kind, properties=more) for a, b, kind, more in links]


def plain(count: int, links: Sequence[tuple[int, int]]) -> Graph:
    """Nodes that all look alike."""
    return (
        [Node(id=i, labels=("A",), properties={}) for i in range(count)],
        [Edge(start=a, end=b, type="R", properties={}) for a, b in links],
    )


def sha(graph: Graph) -> str:
    return digest_of(*graph).sha256


@given(graphs(), st.data())
def test_neither_order_nor_server_ids_matter(graph: Graph, data: st.DataObject) -> None:
    nodes, edges = graph
    fresh = data.draw(st.lists(st.integers(0, 1000), min_size=len(nodes), max_size=len(nodes), unique=True))
    names = {node.id: new for node, new in zip(nodes, fresh, strict=True)}

    def turned(properties: Any) -> dict[str, Any]:
        return dict(reversed(properties.items()))

    other_nodes = [
        Node(id=names[node.id], labels=node.labels[::-1], properties=turned(node.properties)) for node in nodes
    ]
    other_edges = [
        Edge(start=names[e.start], end=names[e.end], type=e.type, properties=turned(e.properties)) for e in edges
    ]
    other = data.draw(st.permutations(other_nodes)), data.draw(st.permutations(other_edges))
    assert digest_of(*other) == digest_of(nodes, edges)


@given(graphs(), st.data())
def test_every_change_of_content_shows(graph: Graph, data: st.DataObject) -> None:
    nodes, edges = graph
    before = sha(graph)
    at = data.draw(st.integers(0, len(nodes) - 1))
    node = nodes[at]

    def with_node(*instead: Node) -> str:
        return sha(([*nodes[:at], *instead, *nodes[at + 1 :]], edges))

    assert with_node(Node(id=node.id, labels=(*node.labels, "New"), properties=node.properties)) != before
    assert with_node(Node(id=node.id, labels=node.labels, properties={**node.properties, "new": None})) != before
    assert with_node(Node(id=node.id, labels=node.labels, properties={**node.properties, "n": "new"})) != before
    assert with_node(node, Node(id=99, labels=node.labels, properties=node.properties)) != before
    assert sha((nodes, [*edges, Edge(start=node.id, end=node.id, type="R", properties={})])) != before
    for edge in edges:
        rest = list(edges)
        rest.remove(edge)
        assert sha((nodes, rest)) != before
        for kind, more in (("NEW", edge.properties), (edge.type, {**edge.properties, "new": 1})):
            changed = Edge(start=edge.start, end=edge.end, type=kind, properties=more)
            assert sha((nodes, [*rest, changed])) != before


pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=5)


@given(pairs, pairs)
def test_between_nodes_with_keys_the_digest_is_exact(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    nodes = [Node(id=i, labels=("A",), properties={"id": i}) for i in range(4)]
    left, right = plain(4, one)[1], plain(4, other)[1]
    assert (sha((nodes, left)) == sha((nodes, right))) == (Counter(one) == Counter(other))


def test_our_own_labels_and_what_hangs_on_them_are_left_out() -> None:
    nodes, edges = plain(2, [(0, 1)])
    more_nodes = [*nodes, Node(id=7, labels=("__Progress",), properties={"pos": "1-0"})]
    more_nodes.append(Node(id=8, labels=("A", "__Hidden"), properties={}))
    more_edges = [*edges, Edge(start=0, end=7, type="R", properties={}), Edge(start=8, end=1, type="R", properties={})]
    found = digest_of(more_nodes, more_edges)
    assert found == digest_of(nodes, edges)
    assert (found.nodes, found.relationships) == (2, 1)
    # One underscore is anybody's.
    assert sha(([*nodes, Node(id=7, labels=("_Progress",), properties={})], edges)) != sha((nodes, edges))


RING = [(0, 1), (1, 2), (2, 3), (3, 0)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (RING, [(0, 1), (1, 2), (2, 3), (0, 3)]),  # one link turned round
        ([(0, 1), (1, 2), (2, 3)], [(0, 1), (0, 2), (0, 3)]),  # path, star
        ([(0, 1), (0, 2), (0, 3)], [(1, 0), (2, 0), (3, 0)]),  # out, in
        (RING, [(0, 1), (1, 0), (2, 3), (3, 2), (0, 0)]),
        ([(0, 0)], [(0, 1)]),  # a loop
        ([(0, 1), (0, 1)], [(0, 1), (2, 3)]),  # twice
    ],
)
def test_nodes_alike_are_told_by_their_neighbours(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    assert sha(plain(4, one)) != sha(plain(4, other))


def test_a_difference_far_away_is_seen() -> None:
    # Two chains of nodes that look alike, whose far ends differ: it takes as many rounds as the chain is long.
    def chains(swap: bool) -> Graph:
        nodes, edges = plain(12, [*((i, i + 1) for i in range(5)), *((i, i + 1) for i in range(6, 11))])
        checkpoints = {0: "x", 6: "y", 5: "q" if swap else "p", 11: "p" if swap else "q"}
        return [Node(id=n.id, labels=n.labels, properties={"m": checkpoints.get(n.id)}) for n in nodes], edges

    assert sha(chains(False)) == sha(chains(False))
    assert sha(chains(False)) != sha(chains(True))


def test_symmetric_graphs() -> None:
    assert sha(plain(4, RING)) == sha(plain(4, [(2, 0), (0, 3), (3, 1), (1, 2)]))
    # The known limit of colour refinement, as the module says: many nodes with equal content.
    two_rings = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]
    one_ring = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)]
    assert sha(plain(6, two_rings)) == sha(plain(6, one_ring))


def test_nothing_has_a_digest_too() -> None:
    empty = digest_of([], [])
    assert (len(empty.sha256), empty.nodes, empty.relationships) == (64, 0, 0)
    assert sha(plain(1, [])) != empty.sha256


DIFFERENT = [
    None, True, False, 0, 1, -1, 1.5, float("nan"), float("inf"), float("-inf"), "", "1", "null", "true", "i1", "f1.5",
    [], ["a"], ["a", "b"], ["ab"], ["a,sb"], ["a,", "b"], ["a", [",b"]], [[]], {}, {"a": 1}, {"a": "1"}, {"b": 1},
    {"a": 1, "b": 2}, {"a": {"b": 2}}, {"a": [1, {"b": 2}]}, "[]", "{}",
    datetime(2024, 1, 1, tzinfo=UTC), date(2024, 1, 1), "2024-01-01", time(12, 0), timedelta(days=1), timedelta(days=2),
]  # fmt: skip


def test_values_that_differ_have_different_texts() -> None:
    texts = [canonical(value) for value in DIFFERENT]
    assert [text for text, count in Counter(texts).items() if count > 1] == []


def test_values_that_servers_write_differently_have_one_text() -> None:
    assert canonical(0.1 + 0.2) == canonical(0.3)  # 15 digits
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})
    assert canonical((1, 2)) == canonical([1, 2])

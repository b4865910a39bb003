"""Which nodes a graph lacks: as many new ones hide none, and changed properties make no other node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from graphweft_workers.ports.graph_store import GraphStore, Node
from graphweft_workers.replay.missing_nodes import missing_nodes

KEYS = {"Order": frozenset({"id"}), "Line": frozenset({"order", "number"})}
type Given = tuple[str, Mapping[str, Any]]
"""Labels with a space between them, and properties."""


class _Graph:
    """The part of a graph store that lists nodes."""

    def __init__(self, nodes: Sequence[Given]) -> None:
        self._nodes = nodes
        self.listings = 0
        self.whole = SimpleNamespace(nodes=self.nodes)

    async def nodes(self, app_id: str) -> AsyncIterator[Node]:
        self.listings += 1
        for number, (labels, properties) in enumerate(self._nodes):
            yield Node(id=number, labels=tuple(labels.split()), properties=properties)


async def missing(old: Sequence[Given], new: Sequence[Given], **how: Any) -> dict[str, int]:
    return await missing_nodes(cast(GraphStore, _Graph(old)), cast(GraphStore, _Graph(new)), "shop", KEYS, **how)


def orders(*ids: int, **properties: Any) -> list[Given]:
    return [("Order", {"id": each, **properties}) for each in ids]


@pytest.mark.parametrize("at_once", [1, 500_000])
async def test_as_many_new_nodes_hide_no_lost_one(at_once: int) -> None:
    old, new = orders(*range(100)), orders(*range(50), *range(100, 150))
    assert await missing(old, new, at_once=at_once) == {"Order": 50}
    assert await missing(old, [*old, *new], at_once=at_once) == {}


@pytest.mark.parametrize(("old", "new", "found"), [
    (orders(1, paid=True), orders(1), {}),
    ([("Order Vip", {"id": 1})], orders(1), {}),
    ([("Order Vip", {"id": 1})], orders(2), {"Order": 1, "Vip": 1}),
    (orders(1, 1), orders(1), {"Order": 1}),
    (orders(1), orders(1, 1), {}),
    ([("Line", {"order": 1, "number": 1})], [("Line", {"order": 1, "number": 2})], {"Line": 1}),
    ([("Line", {"order": 1, "number": 1})], [("Line", {"order": 1, "number": 1, "price": 3})], {}),
    ([("Note", {"text": "a"})], [("Note", {"text": "b"})], {"Note": 1}),
    ([("Note", {"text": "a"}), ("Note", {"text": "b"})], [("Note", {"text": "b"}), ("Note", {"text": "a"})], {}),
    ([("Order", {})], orders(1), {"Order": 1}),
    ([("", {"id": 1})], [], {"": 1}),
    ([("__Progress", {"partition": 0})], [], {}),
], ids=str)  # fmt: skip
async def test_a_node_is_known_by_its_keys_or_as_a_whole(
    old: Sequence[Given], new: Sequence[Given], found: dict[str, int]
) -> None:
    assert await missing(old, new) == found


async def test_equal_graphs_are_listed_once() -> None:
    old, new = _Graph(orders(*range(100))), _Graph(orders(*range(100), paid=True))
    assert await missing_nodes(cast(GraphStore, old), cast(GraphStore, new), "shop", KEYS) == {}
    assert (old.listings, new.listings) == (1, 1)

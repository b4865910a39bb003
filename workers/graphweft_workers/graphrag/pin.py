"""The second stage: seeds become entities of the graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from graphweft_workers.graphrag.caps import MOST_NAMESAKES, MOST_PINS
from graphweft_workers.graphrag.rows import Handle, Node
from graphweft_workers.graphrag.seed import Seeds

type Path = Literal["A", "B"]
"""A: from what was recalled; B: from the words of the question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Entities that an expansion begins with, best first."""

    nodes: tuple[Node, ...] = ()
    paths: frozenset[Path] = frozenset()
    """Which ways led to one of them."""


def documents_of(seeds: Seeds, rows: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Return the nodes that are the seeds' documents, in their order, of each up to 5."""
    by_id: defaultdict[Any, dict[Handle, Node]] = defaultdict(dict)
    for row in rows:
        node = Node.of(row)
        by_id[type(row["found"]), row["found"]][node.handle] = node
    found: dict[Handle, Node] = {}
    for document in seeds.documents:
        if document.id is None:
            continue
        same = sorted(by_id.get((type(document.id), document.id), {}).values(), key=lambda node: node.order)
        found |= {node.handle: node for node in same[:MOST_NAMESAKES]}
    return list(found.values())


def named(seeds: Seeds, rows: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Return the entities that have the seeds' names, in the order of the names, of each up to 5."""
    place = {name: number for number, name in enumerate((*seeds.names, *seeds.keys))}
    by_name: defaultdict[int, dict[Handle, Node]] = defaultdict(dict)
    for row in rows:
        if isinstance(row["found"], str) and row["found"] in place:
            node = Node.of(row)
            by_name[place[row["found"]]][node.handle] = node
    found: dict[Handle, Node] = {}
    for number in sorted(by_name):
        same = sorted(by_name[number].values(), key=lambda node: node.order)
        found |= {node.handle: node for node in same[:MOST_NAMESAKES] if node.handle not in found}
    return list(found.values())


def pin(documents: Sequence[Node], linked: Iterable[Mapping[str, Any]], named: Sequence[Node], *, limit: int) -> Pinned:
    """Return the entities that the seeds come to, at most 20 and at most ``limit``.

    A document that is an entity comes to itself, another one to the entities next to it: ``linked``, the rows of the
    query ``neighbours``. Documents and names take turns, so that neither keeps the other out.
    """
    beside: defaultdict[Handle, list[Node]] = defaultdict(list)
    for row in linked:
        if row["entity"]:
            beside[row["source"]].append(Node.of(row))
    recalled: dict[Handle, Node] = {}
    each = [[node] if node.entity else sorted(beside[node.handle], key=lambda one: one.order) for node in documents]
    for turn in range(max(map(len, each), default=0)):
        for nodes in each:
            if turn < len(nodes):
                recalled.setdefault(nodes[turn].handle, nodes[turn])
    ways: tuple[tuple[Path, list[Node]], ...] = (("B", list(named)), ("A", list(recalled.values())))
    found: dict[Handle, Node] = {}
    paths: set[Path] = set()
    for turn in range(max((len(nodes) for _, nodes in ways), default=0)):
        for path, nodes in ways:
            if turn < len(nodes) and len(found) < min(MOST_PINS, limit):
                found.setdefault(nodes[turn].handle, nodes[turn])
                paths.add(path)
    return Pinned(nodes=tuple(found.values()), paths=frozenset(paths))

"""Stage 2, pin: seeds become entities of the graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from graphweft_workers.features.graphrag.caps import MOST_NAMESAKES, MOST_PINS
from graphweft_workers.features.graphrag.rows import EntityNode, Handle
from graphweft_workers.features.graphrag.seeds import Seeds

type Path = Literal["A", "B"]
"""A: from recalled documents; B: from names in the question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingEntities:
    """The entities that an expansion starts from, best first."""

    nodes: tuple[EntityNode, ...] = ()
    paths: frozenset[Path] = frozenset()
    """The sources of these entities."""


def documents_of(seeds: Seeds, rows: Iterable[Mapping[str, Any]]) -> list[EntityNode]:
    """Return the nodes with the ids of documents, in order, up to 5 of each id."""
    by_id: defaultdict[Any, dict[Handle, EntityNode]] = defaultdict(dict)
    for row in rows:
        node = EntityNode.of(row)
        by_id[type(row["found"]), row["found"]][node.handle] = node
    found: dict[Handle, EntityNode] = {}
    for document in seeds.documents:
        if document.id is None:
            continue
        same = sorted(by_id.get((type(document.id), document.id), {}).values(), key=lambda node: node.order)
        found |= {node.handle: node for node in same[:MOST_NAMESAKES]}
    return list(found.values())


def named(names: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> list[EntityNode]:
    """Return the entities with one of the names or keys, in order, up to 5 of each name."""
    place = {name: number for number, name in enumerate(dict.fromkeys(names))}
    by_name: defaultdict[int, dict[Handle, EntityNode]] = defaultdict(dict)
    for row in rows:
        if isinstance(row["found"], str) and row["found"] in place:
            node = EntityNode.of(row)
            by_name[place[row["found"]]][node.handle] = node
    found: dict[Handle, EntityNode] = {}
    for number in sorted(by_name):
        same = sorted(by_name[number].values(), key=lambda node: node.order)
        found |= {node.handle: node for node in same[:MOST_NAMESAKES] if node.handle not in found}
    return list(found.values())


def pin(
    documents: Sequence[EntityNode],
    linked: Iterable[Mapping[str, Any]],
    named: Sequence[EntityNode],
    mentioned: Sequence[EntityNode] = (),
    *,
    limit: int,
) -> StartingEntities:
    """Return the entities of documents and names, in turns: at most 20, and at most ``limit``.

    A document that is not an entity stands for its neighbours: ``linked``, the rows of the query ``neighbours``. Then
    come those that the texts of documents mention.
    """
    beside: defaultdict[Handle, list[EntityNode]] = defaultdict(list)
    for row in linked:
        if row["entity"]:
            beside[row["source"]].append(EntityNode.of(row))
    recalled: dict[Handle, EntityNode] = {}
    each = [[node] if node.entity else sorted(beside[node.handle], key=lambda one: one.order) for node in documents]
    for turn in range(max(map(len, each), default=0)):
        for nodes in each:
            if turn < len(nodes):
                recalled.setdefault(nodes[turn].handle, nodes[turn])
    recalled |= {node.handle: node for node in mentioned if node.handle not in recalled}
    ways: tuple[tuple[Path, list[EntityNode]], ...] = (("B", list(named)), ("A", list(recalled.values())))
    found: dict[Handle, EntityNode] = {}
    paths: set[Path] = set()
    for turn in range(max((len(nodes) for _, nodes in ways), default=0)):
        for path, nodes in ways:
            if turn < len(nodes) and len(found) < min(MOST_PINS, limit):
                found.setdefault(nodes[turn].handle, nodes[turn])
                paths.add(path)
    return StartingEntities(nodes=tuple(found.values()), paths=frozenset(paths))

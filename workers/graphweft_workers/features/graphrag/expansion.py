"""Stage 3, expand: follow relationships from the pinned entities, one hop at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, Self

from graphweft_workers.features.graphrag.rows import EntityNode, Handle, Relation
from graphweft_workers.features.graphrag.safe_cypher import MOST_SCANNED, RELATIONSHIPS
from graphweft_workers.features.graphrag.starting_entities import StartingEntities

_SCANNED_TOGETHER: Final = 4_000
"""Relationships read in the first hop, all nodes and types together."""
_SCANNED_BEYOND: Final = 1_000
"""The same in the second hop, which has many nodes and takes a few relationships of each."""
_LEAST_SCANNED: Final = (8, 4)
"""Of a node and type, in the first hop and in the second."""
_LEAST_EACH: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The nodes and relationships found so far."""

    pinned: tuple[EntityNode, ...] = ()
    nodes: Mapping[Handle, EntityNode] = field(default_factory=dict[Handle, EntityNode])
    """All entities and documents in the order of discovery, pinned ones first."""
    relations: Mapping[Handle, Relation] = field(default_factory=dict[Handle, Relation])
    """Relationships between the nodes, nearest first."""
    frontier: tuple[Handle, ...] = ()
    """The nodes that the next hop starts from."""

    @classmethod
    def at(cls, pinned: StartingEntities) -> Self:
        """Return the expansion before the first hop."""
        nodes = {node.handle: node for node in pinned.nodes}
        return cls(pinned=pinned.nodes, nodes=nodes, frontier=tuple(nodes))

    @property
    def facts(self) -> int:
        """Number of distinct facts."""
        each = self.relations.values()
        return len({(one.source.name, one.type, one.label, one.target.name, one.fact) for one in each})


def bounds(frontier: int, room: int, *, hop: int = 1) -> tuple[int, int]:
    """Return how many relationships of a node and type to read, and how many of these to take.

    ``frontier`` is the number of nodes, ``room`` the number of wanted ones. If a node has no more relationships than
    are read, every server takes the same.
    """
    together = _SCANNED_TOGETHER if hop == 1 else _SCANNED_BEYOND
    scan = together // (len(RELATIONSHIPS) * max(1, frontier))
    each = -(-2 * room // max(1, frontier))
    least = _LEAST_SCANNED[hop > 1]
    return max(least, min(MOST_SCANNED, scan)), max(_LEAST_EACH, min(room, each))


def connect(found: Expansion, rows: Iterable[Mapping[str, Any]]) -> Expansion:
    """Add the relationships between pinned entities: rows of the query ``between``."""
    place = {handle: number for number, handle in enumerate(found.nodes)}
    kept = [
        Relation(
            handle=row["link"],
            source=found.nodes[row["source"]],
            type=row["type"],
            target=found.nodes[row["target"]],
            fact=row["fact"],
            label=row["label"],
            hop=0,
        )
        for row in rows
        if row["source"] in place and row["target"] in place and row["type"] in RELATIONSHIPS
    ]
    kept.sort(key=lambda each: (place[each.source.handle], place[each.target.handle], each.type, each.fact, each.label))
    return Expansion(
        pinned=found.pinned,
        nodes=found.nodes,
        relations={**found.relations, **{each.handle: each for each in kept if each.handle not in found.relations}},
        frontier=found.frontier,
    )


def expand(found: Expansion, rows: Iterable[Mapping[str, Any]], *, hop: int, limit: int) -> Expansion:
    """Add the rows of the query ``neighbours``, up to ``limit`` nodes in all.

    Nodes of the frontier take turns, and within a node its types; neighbours of a type go by name.
    """
    by_type: defaultdict[tuple[Handle, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["shown"] and row["name"] and row["type"] in RELATIONSHIPS:
            by_type[row["source"], row["type"]].append(row)
    for each in by_type.values():
        each.sort(key=_order)
    by_source = {
        source: _by_turns([by_type[source, kind] for kind in RELATIONSHIPS if (source, kind) in by_type])
        for source in found.frontier
    }
    nodes = dict(found.nodes)
    relations = dict(found.relations)
    fresh: list[Handle] = []
    for turn in range(max(map(len, by_source.values()), default=0)):
        for source in found.frontier:
            if turn >= len(by_source[source]):
                continue
            row = by_source[source][turn]
            node = nodes.get(row["handle"]) or EntityNode.of(row)
            if node.handle not in nodes:
                if len(nodes) >= limit:
                    continue
                nodes[node.handle] = node
                fresh.append(node.handle)
            if row["link"] not in relations:
                ends = (nodes[source], node) if row["out"] else (node, nodes[source])
                relations[row["link"]] = Relation(
                    handle=row["link"],
                    source=ends[0],
                    type=row["type"],
                    target=ends[1],
                    fact=row["fact"],
                    label=row["label"],
                    hop=hop,
                )
    return Expansion(pinned=found.pinned, nodes=nodes, relations=relations, frontier=tuple(fresh))


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    # The order of the query, then the other shown columns.
    return row["name"], row["out"], row["fact"], row["key"], row["kind"], row["description"], row["label"]


def _by_turns(lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    return [row for turn in zip_longest(*lists) for row in turn if row is not None]

"""The third stage: relationships are followed from what is pinned, one hop at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, Self

from graphweft_workers.graphrag.pin import Pinned
from graphweft_workers.graphrag.rows import Handle, Node, Relation
from graphweft_workers.graphrag.safe_cypher import MOST_SCANNED, RELATIONSHIPS

_SCANNED_TOGETHER: Final = 4_000
"""Relationships that are looked at in a hop, when there are few nodes to go from."""
_LEAST_SCANNED: Final = 8
_LEAST_EACH: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """What has been found so far."""

    pinned: tuple[Node, ...] = ()
    nodes: Mapping[Handle, Node] = field(default_factory=dict[Handle, Node])
    """All entities and documents, in the order in which they were found; those that are pinned first."""
    relations: Mapping[Handle, Relation] = field(default_factory=dict[Handle, Relation])
    """Those between them, the nearest first."""
    frontier: tuple[Handle, ...] = ()
    """From where the next hop goes."""

    @classmethod
    def at(cls, pinned: Pinned) -> Self:
        """Return what is known before the first hop."""
        nodes = {node.handle: node for node in pinned.nodes}
        return cls(pinned=pinned.nodes, nodes=nodes, frontier=tuple(nodes))

    @property
    def facts(self) -> int:
        """How many different facts the relationships are."""
        each = self.relations.values()
        return len({(one.source.name, one.type, one.label, one.target.name, one.fact) for one in each})


def bounds(frontier: int, room: int) -> tuple[int, int]:
    """Return what ``frontier`` nodes may cost when ``room`` more are wanted.

    These are how many relationships of each type are looked at, of each node, and how many of these are taken. Of a
    node that has no more of a type than the first, it is the same ones on every server.
    """
    scan = _SCANNED_TOGETHER // (len(RELATIONSHIPS) * max(1, frontier))
    each = -(-2 * room // max(1, frontier))
    return max(_LEAST_SCANNED, min(MOST_SCANNED, scan)), max(_LEAST_EACH, min(room, each))


def connect(found: Expansion, rows: Iterable[Mapping[str, Any]]) -> Expansion:
    """Add what there is between pinned entities: rows of the query ``between``."""
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
    """Add what one hop found: rows of the query ``neighbours``. There are never more than ``limit`` nodes in all.

    The nodes of the frontier take turns, and within each the types, by the names of the neighbours: so none keeps the
    others out.
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
            node = nodes.get(row["handle"]) or Node.of(row)
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
    # As the query orders them, and then by what else is shown.
    return row["name"], row["out"], row["fact"], row["key"], row["kind"], row["description"], row["label"]


def _by_turns(lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    return [row for turn in zip_longest(*lists) for row in turn if row is not None]

"""A part of an app's graph: some nodes of the largest labels, some of their neighbours, and the size of the labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from graphweft_contracts import QueryFailed
from graphweft_workers.ports.graph_store import INTERNAL_PREFIX, GraphStore
from graphweft_workers.reports import graph_queries as queries
from graphweft_workers.reports.graph_names import names_of
from graphweft_workers.reports.values import shown

LABELS: Final = 40
"""Labels with nodes that are shown."""
SAMPLED: Final = 8
"""Labels of which the first picture has nodes."""
_EACH: Final = 6
"""Nodes of each of them."""
NEIGHBOURS: Final = 3
"""Relationships of each node in the first picture that may add a node to it."""
_BETWEEN: Final = 6_000
"""Relationships that are read to find all between the nodes of the first picture."""
MOST: Final = 300
"""Nodes of one answer."""
_ASKED_LABELS: Final = 200
"""Labels whose nodes are counted at most: a server also lists some that have no nodes."""
READ_S: Final = 2.0


@dataclass(slots=True, kw_only=True)
class Picture:
    """Nodes and relationships, each once."""

    redacts: bool
    labels: Sequence[dict[str, Any]] = ()
    """Labels of the graph with the number of their nodes, the largest first."""
    labels_not_counted: int = 0
    nodes: dict[Any, dict[str, Any]] = field(default_factory=dict[Any, dict[str, Any]])
    relationships: dict[Any, dict[str, Any]] = field(default_factory=dict[Any, dict[str, Any]])

    def add_node(self, node_id: Any, labels: Iterable[str], caption: Any) -> bool:
        """Add a node, unless it is graphweft's own or there are too many; return whether it is there."""
        names = list(labels)
        if any(name.startswith(INTERNAL_PREFIX) for name in names):
            return False
        if node_id not in self.nodes and len(self.nodes) >= MOST:
            return False
        text = shown(caption, redacts=self.redacts, text=queries.CAPTION)
        self.nodes.setdefault(node_id, {"id": node_id, "labels": sorted(names), "caption": text})
        return True

    def add_neighbours(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add relationships with the node at their other end."""
        for relationship_id, type_, start, end, *other in rows:
            if self.add_node(*other):
                self.add_relationship(relationship_id, type_, start, end)

    def add_relationship(self, relationship_id: Any, type_: Any, start: Any, end: Any) -> None:
        """Add a relationship if both of its nodes are there."""
        if start in self.nodes and end in self.nodes:
            found = {"id": relationship_id, "type": type_, "start": start, "end": end}
            self.relationships[relationship_id] = found

    def first(self, most: int) -> Picture:
        """Return at most ``most`` of its nodes, with the relationships between them."""
        nodes = dict(list(self.nodes.items())[:most])
        between = {
            each["id"]: each for each in self.relationships.values() if each["start"] in nodes and each["end"] in nodes
        }
        return replace(self, nodes=nodes, relationships=between)

    def to_dict(self) -> dict[str, Any]:
        """Return its nodes and relationships as plain values, for JSON."""
        return {"nodes": list(self.nodes.values()), "relationships": list(self.relationships.values())}


async def labels_of(graph: GraphStore, app_id: str) -> tuple[list[dict[str, Any]], int]:
    """Return labels with the number of their nodes, the largest first, and how many labels were not counted."""
    names = await names_of(graph, app_id, "labels", READ_S)
    found: list[dict[str, Any]] = []
    asked = 0
    for name in names[:_ASKED_LABELS]:
        if len(found) == LABELS:
            break
        asked += 1
        try:
            table = await graph.read(app_id, queries.count_nodes(graph.dialect, name), {}, timeout_s=READ_S)
        except QueryFailed:  # a name that no query can hold
            continue
        if table.rows and table.rows[0][0]:
            found.append({"label": name, "nodes": table.rows[0][0]})
    return sorted(found, key=lambda each: -each["nodes"]), len(names) - asked


async def picture(graph: GraphStore, app_id: str, *, labels: Sequence[str], limit: int, redacts: bool) -> Picture:
    """Return about ``limit`` nodes with these labels, or some of those with the most nodes, and some neighbours.

    Relationships between these nodes are all there, unless a node has very many.
    """
    counted, uncounted = await labels_of(graph, app_id)
    known = {each["label"] for each in counted}
    wanted = [name for name in labels if name in known] or [each["label"] for each in counted[:SAMPLED]]
    found = Picture(redacts=redacts, labels=counted, labels_not_counted=uncounted)
    each = max(1, limit // max(1, len(wanted))) if labels else _EACH
    for name in wanted:
        statement = queries.sample(graph.dialect, name)
        for row in (await graph.read(app_id, statement, {"limit": each}, timeout_s=READ_S)).rows:
            found.add_node(*row)
    await connect(graph, app_id, found, list(found.nodes), NEIGHBOURS)
    await _complete(graph, app_id, found)
    return found


async def connect(graph: GraphStore, app_id: str, found: Picture, ids: Sequence[Any], each: int) -> None:
    """Add relationships of nodes to a picture."""
    if ids:
        values = {"ids": list(ids), "each": each}
        statement = queries.neighbours(graph.dialect)
        found.add_neighbours((await graph.read(app_id, statement, values, timeout_s=READ_S)).rows)


async def _complete(graph: GraphStore, app_id: str, found: Picture) -> None:
    """Add the relationships between the nodes of a picture: which of them are a node's first ones is chance."""
    if found.nodes:
        values = {"ids": list(found.nodes), "each": _BETWEEN // len(found.nodes)}
        for row in (await graph.read(app_id, queries.outgoing(graph.dialect), values, timeout_s=READ_S)).rows:
            found.add_relationship(*row)

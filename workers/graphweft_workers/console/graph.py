"""The page *Graph*: a part of an app's graph, a search, one node, and its surroundings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints

from graphweft_contracts import QueryFailed
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.console import graph_queries as queries
from graphweft_workers.console.access import Viewer
from graphweft_workers.console.questions import AppQuestion
from graphweft_workers.console.sources import Sources
from graphweft_workers.console.values import shown
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.ports.graph_store import INTERNAL_PREFIX, GraphStore
from graphweft_workers.reports.graph_names import names_of

LABELS: Final = 40
"""Labels with nodes that are shown."""
_SAMPLED: Final = 8
"""Labels of which the first picture has nodes."""
_EACH: Final = 6
"""Nodes of each of them."""
NEIGHBOURS: Final = 3
"""Relationships of each node in the first picture that may add a node to it."""
_BETWEEN: Final = 6_000
"""Relationships that are read to find all between the nodes of the first picture."""
MOST: Final = 300
"""Nodes of one answer."""
_DEGREE: Final = 10_000
_SCAN: Final = 5_000
_SCANNED_LABELS: Final = 20
_ASKED_LABELS: Final = 200
"""Labels whose nodes are counted at most: a server also lists some that have no nodes."""
_KEYS: Final = 40
_READ_S: Final = 2.0
_SEARCH_S: Final = 0.15
"""Within this time a search begins to read another label."""

type NodeId = int | Annotated[str, StringConstraints(min_length=1, max_length=200)]


class GraphQuestion(AppQuestion):
    """Asks for a part of the graph, of some labels or of those with the most nodes."""

    labels: list[Annotated[str, StringConstraints(max_length=256)]] = Field(
        default_factory=list[str], max_length=_SAMPLED
    )
    limit: int = Field(default=60, ge=1, le=MOST)


class NodeSearch(AppQuestion):
    """Asks for nodes with a text."""

    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
    limit: int = Field(default=25, ge=1, le=100)


class NodeQuestion(AppQuestion):
    """Asks for one node and some of its relationships."""

    id: NodeId
    limit: int = Field(default=25, ge=1, le=100)


@dataclass(slots=True, kw_only=True)
class Picture:
    """Nodes and relationships, each once."""

    redacts: bool
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

    def as_dict(self) -> dict[str, Any]:
        """Return it for the page."""
        return {"nodes": list(self.nodes.values()), "relationships": list(self.relationships.values())}


async def labels_of(graph: GraphStore, app_id: str) -> tuple[list[dict[str, Any]], int]:
    """Return labels with the number of their nodes, the largest first, and how many labels were not counted."""
    names = await names_of(graph, app_id, "labels", _READ_S)
    found: list[dict[str, Any]] = []
    asked = 0
    for name in names[:_ASKED_LABELS]:
        if len(found) == LABELS:
            break
        asked += 1
        try:
            table = await graph.read(app_id, queries.count_nodes(graph.dialect, name), {}, timeout_s=_READ_S)
        except QueryFailed:  # a name that no query can hold
            continue
        if table.rows and table.rows[0][0]:
            found.append({"label": name, "nodes": table.rows[0][0]})
    return sorted(found, key=lambda each: -each["nodes"]), len(names) - asked


async def picture(
    graph: GraphStore, app_id: str, question: GraphQuestion, *, redacts: bool
) -> tuple[dict[str, Any], Picture]:
    """Return the labels, and a part of the graph: some nodes of the largest labels, and some of their neighbours.

    Relationships between these nodes are all there, unless a node has very many.
    """
    labels, uncounted = await labels_of(graph, app_id)
    known = {each["label"] for each in labels}
    wanted = [name for name in question.labels if name in known] or [each["label"] for each in labels[:_SAMPLED]]
    found = Picture(redacts=redacts)
    each = max(1, question.limit // max(1, len(wanted))) if question.labels else _EACH
    for name in wanted:
        statement = queries.sample(graph.dialect, name)
        for row in (await graph.read(app_id, statement, {"limit": each}, timeout_s=_READ_S)).rows:
            found.add_node(*row)
    await connect(graph, app_id, found, list(found.nodes), NEIGHBOURS)
    await _complete(graph, app_id, found)
    return {"labels": labels, "labels_not_counted": uncounted}, found


async def draw(
    graph: GraphStore, app_id: str, *, labels: Sequence[str], limit: int, most: int, redacts: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the labels of a graph, and at most ``most`` nodes with the relationships between them."""
    question = GraphQuestion(labels=list(labels), limit=limit)
    about, found = await picture(graph, app_id, question, redacts=redacts)
    nodes = list(found.nodes.values())[:most]
    kept = {each["id"] for each in nodes}
    between = [each for each in found.relationships.values() if each["start"] in kept and each["end"] in kept]
    return about["labels"], nodes, between


async def connect(graph: GraphStore, app_id: str, found: Picture, ids: Sequence[Any], each: int) -> None:
    """Add relationships of nodes to a picture."""
    if ids:
        values = {"ids": list(ids), "each": each}
        statement = queries.neighbours(graph.dialect)
        found.add_neighbours((await graph.read(app_id, statement, values, timeout_s=_READ_S)).rows)


async def _complete(graph: GraphStore, app_id: str, found: Picture) -> None:
    """Add the relationships between the nodes of a picture: which of them are a node's first ones is chance."""
    if found.nodes:
        values = {"ids": list(found.nodes), "each": _BETWEEN // len(found.nodes)}
        for row in (await graph.read(app_id, queries.outgoing(graph.dialect), values, timeout_s=_READ_S)).rows:
            found.add_relationship(*row)


async def graph_page(sources: Sources, viewer: Viewer, question: GraphQuestion) -> dict[str, Any]:
    """Return a part of an app's graph, and how large the graph is."""
    app_id = viewer.app(question.app)
    about, found = await picture(sources.graph, app_id, question, redacts=sources.redacts)
    return about | found.as_dict() | {"began": await _began(sources, app_id)}


async def search(sources: Sources, viewer: Viewer, question: NodeSearch) -> dict[str, Any]:
    """Return nodes with a text: by their keys in the whole graph, and by any property in its first nodes."""
    app_id, graph = viewer.app(question.app), sources.graph
    found = Picture(redacts=sources.redacts)
    values = _values(question.text)
    labels, uncounted = await labels_of(graph, app_id)
    there = {each["label"] for each in labels}
    keys = sorted(each for each in await keys_of(sources, app_id) if uncounted or each[0] in there)
    for label, key in keys[:_KEYS]:
        statement = queries.with_key(graph.dialect, label, key)
        given = {"values": values, "limit": question.limit}
        for row in (await graph.read(app_id, statement, given, timeout_s=_READ_S)).rows:
            found.add_node(*row)
    until, partly, looked = SYSTEM_CLOCK.monotonic() + _SEARCH_S, False, 0
    for each in labels[:_SCANNED_LABELS]:
        if SYSTEM_CLOCK.monotonic() > until or len(found.nodes) >= question.limit:
            break
        looked += 1
        partly = partly or each["nodes"] > _SCAN
        given = {"text": question.text.lower(), "scan": _SCAN, "limit": question.limit}
        statement = queries.with_text(graph.dialect, each["label"])
        for row in (await graph.read(app_id, statement, given, timeout_s=_READ_S)).rows:
            found.add_node(*row)
    cut = len(found.nodes) > question.limit
    return {
        "nodes": list(found.nodes.values())[: question.limit],
        "partly": partly or cut or uncounted > 0 or looked < len(labels),
        "scanned": _SCAN,
    }


async def node(sources: Sources, viewer: Viewer, question: NodeQuestion) -> dict[str, Any]:
    """Return a node with its properties, the keys that name it in rules, and some of its relationships."""
    app_id, graph = viewer.app(question.app), sources.graph
    if not graph.dialect.is_node_id(question.id):
        raise Problem(422, "invalid-question", "the id is not one of this graph server")
    table = await graph.read(app_id, queries.node(graph.dialect), {"id": question.id}, timeout_s=_READ_S)
    found = Picture(redacts=sources.redacts)
    if not table.rows or not found.add_node(*table.rows[0][:3]):
        raise Problem(404, "no-node", "the node is not there any more: load the graph again")
    properties: Mapping[str, Any] = table.rows[0][3]
    labels = found.nodes[question.id]["labels"]
    known = await keys_of(sources, app_id)
    keys = [
        {"label": label, "key": key, "value": shown(properties[key], key, redacts=sources.redacts)}
        for label, key in sorted(known)
        if label in labels and isinstance(properties.get(key), str | int)
    ]
    counted = await graph.read(
        app_id,
        queries.relationship_types(graph.dialect),
        {"id": question.id, "limit": _DEGREE},
        timeout_s=_READ_S,
    )
    await connect(graph, app_id, found, [question.id], question.limit)
    types: list[dict[str, Any]] = [{"type": str(name), "count": number} for name, number in counted.rows]
    return found.as_dict() | {
        "node": found.nodes[question.id]
        | {"properties": shown(dict(properties), redacts=sources.redacts), "keys": keys, "relationships": types},
        "degree_is_partial": sum(each["count"] for each in types) >= _DEGREE,
    }


async def keys_of(sources: Sources, app_id: str) -> frozenset[tuple[str, str]]:
    """Return the (label, property) by which the active rules of an app, and built-in mutations, look nodes up."""
    decoder = await sources.decoder()
    rules = await sources.current_rules(decoder.activations, app_id)
    return rules.keys.union(*(part.cypher.keys for pack in rules.packs for part in pack.mutations))


async def _began(sources: Sources, app_id: str) -> str | None:
    """Return when the log of an app's first partition begins: what is older cannot be shown again."""
    layout = await sources.bus.partitions.layout()
    for partition in layout.partitions_of(app_id)[:1]:
        for entry in await sources.bus.log.after(partition, "", limit=1):
            return entry.received.isoformat()
    return None


def _values(text: str) -> list[str | int]:
    number = text.removeprefix("-")
    if number.isascii() and number.isdigit() and len(number) < 19:
        return [text, int(text)]
    return [text]

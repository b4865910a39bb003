"""The page *Graph*: a part of an app's graph, a search, one node, and its surroundings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints

from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.console.access import Viewer
from graphweft_workers.console.questions import AppQuestion
from graphweft_workers.console.sources import Sources
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.reports import graph_queries as queries
from graphweft_workers.reports.picture import MOST, READ_S, SAMPLED, Picture, connect, labels_of, picture
from graphweft_workers.reports.values import shown

_DEGREE: Final = 10_000
_SCAN: Final = 5_000
_SCANNED_LABELS: Final = 20
_KEYS: Final = 40
_SEARCH_S: Final = 0.15
"""Within this time a search begins to read another label."""

type NodeId = int | Annotated[str, StringConstraints(min_length=1, max_length=200)]


class GraphQuestion(AppQuestion):
    """Asks for a part of the graph, of some labels or of those with the most nodes."""

    labels: list[Annotated[str, StringConstraints(max_length=256)]] = Field(
        default_factory=list[str], max_length=SAMPLED
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


async def graph_page(sources: Sources, viewer: Viewer, question: GraphQuestion) -> dict[str, Any]:
    """Return a part of an app's graph, and how large the graph is."""
    app_id = viewer.app(question.app)
    found = await picture_of(await sources.graph_of(app_id), app_id, question, redacts=sources.redacts)
    return picture_dict(found) | {"began": await _began(sources, app_id)}


async def picture_of(graph: GraphStore, app_id: str, question: GraphQuestion, *, redacts: bool) -> Picture:
    """Return the part of a graph that a question asks for."""
    return await picture(graph, app_id, labels=question.labels, limit=question.limit, redacts=redacts)


def picture_dict(found: Picture) -> dict[str, Any]:
    """Return a part of a graph and its labels for the page."""
    return {"labels": list(found.labels), "labels_not_counted": found.labels_not_counted} | found.to_dict()


async def search(sources: Sources, viewer: Viewer, question: NodeSearch) -> dict[str, Any]:
    """Return nodes with a text: by their keys in the whole graph, and by any property in its first nodes."""
    app_id = viewer.app(question.app)
    graph = await sources.graph_of(app_id)
    found = Picture(redacts=sources.redacts)
    values = _values(question.text)
    labels, uncounted = await labels_of(graph, app_id)
    there = {each["label"] for each in labels}
    keys = sorted(each for each in await keys_of(sources, app_id) if uncounted or each[0] in there)
    for label, key in keys[:_KEYS]:
        statement = queries.with_key(graph.dialect, label, key)
        given = {"values": values, "limit": question.limit}
        for row in (await graph.read(app_id, statement, given, timeout_s=READ_S)).rows:
            found.add_node(*row)
    until, partly, looked = SYSTEM_CLOCK.monotonic() + _SEARCH_S, False, 0
    for each in labels[:_SCANNED_LABELS]:
        if SYSTEM_CLOCK.monotonic() > until or len(found.nodes) >= question.limit:
            break
        looked += 1
        partly = partly or each["nodes"] > _SCAN
        given = {"text": question.text.lower(), "scan": _SCAN, "limit": question.limit}
        statement = queries.with_text(graph.dialect, each["label"])
        for row in (await graph.read(app_id, statement, given, timeout_s=READ_S)).rows:
            found.add_node(*row)
    cut = len(found.nodes) > question.limit
    return {
        "nodes": list(found.nodes.values())[: question.limit],
        "partly": partly or cut or uncounted > 0 or looked < len(labels),
        "scanned": _SCAN,
    }


async def node(sources: Sources, viewer: Viewer, question: NodeQuestion) -> dict[str, Any]:
    """Return a node with its properties, the keys that name it in rules, and some of its relationships."""
    app_id = viewer.app(question.app)
    graph = await sources.graph_of(app_id)
    if not graph.dialect.is_node_id(question.id):
        raise Problem(422, "invalid-question", "the id is not one of this graph server")
    table = await graph.read(app_id, queries.node(graph.dialect), {"id": question.id}, timeout_s=READ_S)
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
        timeout_s=READ_S,
    )
    await connect(graph, app_id, found, [question.id], question.limit)
    types: list[dict[str, Any]] = [{"type": str(name), "count": number} for name, number in counted.rows]
    return found.to_dict() | {
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

"""A hash of a graph's content that does not depend on the order of writes or on the server.

A node is identified by its labels and properties, and then, round by round, by its neighbours: colour refinement as in
Weisfeiler and Leman (1968). The digest hashes the sorted colours of the nodes and the sorted relationships between
colours. Equal graphs have equal digests. Different graphs have different digests, except highly symmetric graphs with
many equal nodes, which refinement cannot tell apart. Nodes with a label that starts with ``__`` are not hashed, nor
are their relationships.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from graphweft_workers.ports.graph_store import Edge, GraphStore, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """The hash, in 64 hexadecimal digits, and the numbers of hashed nodes and relationships."""

    sha256: str
    nodes: int
    relationships: int


async def read_digest(store: GraphStore, app_id: str) -> Digest:
    """Return the digest of an app's graph. Reads all of it; concurrent writes may be included in part."""
    return digest_of(
        [node async for node in store.whole.nodes(app_id)], [edge async for edge in store.whole.edges(app_id)]
    )


def digest_of(nodes: Iterable[Node], edges: Iterable[Edge]) -> Digest:
    """Return the digest of nodes and relationships."""
    colours = {
        node.id: _hash("node", *sorted(node.labels), canonical(node.properties))
        for node in nodes
        if not node.is_internal
    }
    links = [
        (edge.start, edge.end, _hash("edge", edge.type, canonical(edge.properties)))
        for edge in edges
        if edge.start in colours and edge.end in colours
    ]
    distinct = len(set(colours.values()))
    # Ends when no class splits. Nodes with keys differ at once, so in practice there are 0 or 1 rounds.
    while distinct < len(colours):
        colours = _refine(colours, links)
        finer = len(set(colours.values()))
        if finer == distinct:
            break
        distinct = finer
    ends = sorted(_hash(colours[start], kind, colours[end]) for start, end, kind in links)
    return Digest(sha256=_hash(*sorted(colours.values()), "|", *ends), nodes=len(colours), relationships=len(links))


def canonical(value: Any) -> str:
    """Return a text that is equal for equal values: maps sorted by key, floats to 15 digits, times in ISO format."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return f"i{value}"
        case float():
            # Some graph servers send 15 significant digits, others all 17.
            return f"f{value:.15g}" if math.isfinite(value) else f"f{value}"
        case str():
            return f"s{len(value)}:{value}"
        case datetime() | date() | time():
            return f"t{value.isoformat()}"
        case timedelta():
            return f"d{value.total_seconds():.6f}"
        case Mapping():
            items = sorted((str(key), canonical(item)) for key, item in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            return "{" + ",".join(f"{len(key)}:{key}={item}" for key, item in items) + "}"
        case list() | tuple():
            return "[" + ",".join(canonical(item) for item in value) + "]"  # pyright: ignore[reportUnknownVariableType]
        case _:
            return f"{type(value).__name__}:{value}"


def _refine(colours: Mapping[int, str], links: Iterable[tuple[int, int, str]]) -> dict[int, str]:
    seen: dict[int, list[str]] = {node: [] for node in colours}
    for start, end, kind in links:
        seen[start].append(_hash("out", kind, colours[end]))
        seen[end].append(_hash("in", kind, colours[start]))
    return {node: _hash(colour, *sorted(seen[node])) for node, colour in colours.items()}


def _hash(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()

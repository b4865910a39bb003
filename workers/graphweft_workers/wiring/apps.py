"""The apps that have a graph, where a graph server can list them."""

from __future__ import annotations

from collections.abc import Sequence

from graphweft_workers.features.memory.retention import Apps
from graphweft_workers.ports.graph_store import GraphStore


async def apps_of_graphs(graph: GraphStore) -> Sequence[str]:
    """Return the apps with a graph; none if the server cannot list them. Raises ``GraphUnavailable``."""
    return await known_apps(graph) or ()


async def known_apps(graph: GraphStore) -> Sequence[str] | None:
    """Return the apps with a graph; None if the server cannot list them. Raises ``GraphUnavailable``."""
    return await graph.apps() if isinstance(graph, Apps) else None

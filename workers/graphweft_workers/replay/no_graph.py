"""The graph of an app that has none, because its place is another app's: nothing is read and nothing is dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, Node, OtherGraph, PlaceTaken
from graphweft_workers.support.timing import TIMING


async def store_to_erase(graph: GraphStore, app_id: str) -> GraphStore:
    """Return the store for an erasure: without a graph if the app cannot have one there. Raises ``GraphUnavailable``.

    The app's events may be on the log, in the archive and in dead letters all the same. Raises ``OtherGraph`` where
    somebody has put another graph in the place of the app's, which may be anywhere.
    """
    try:
        await graph.checkpoints(app_id, timeout_s=TIMING.replay.query_s)
    except OtherGraph:
        raise
    except PlaceTaken:
        return cast("GraphStore", _NoGraph(graph))
    return graph


class _NoGraph:
    """The parts of ``GraphStore`` that an erasure uses; it touches nothing of the other app."""

    def __init__(self, graph: GraphStore) -> None:
        self.whole: Any = _NothingWhole(graph)

    async def checkpoints(self, app_id: str, *, timeout_s: float) -> Mapping[int, Checkpoint]:
        return {}


class _NothingWhole:
    can_exchange = False
    rewrites = False

    def __init__(self, graph: GraphStore) -> None:
        self._graph = graph

    async def graph_id(self, app_id: str) -> str:
        return ""

    async def place(self, app_id: str) -> str:
        return await self._graph.whole.place(app_id)

    async def drop(self, app_id: str) -> None:
        pass

    async def nodes(self, app_id: str) -> AsyncIterator[Node]:
        nothing: tuple[Node, ...] = ()
        for node in nothing:
            yield node

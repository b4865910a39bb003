"""Lists the nodes and relationships of a graph, page by page of their ids."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from graphweft_workers.ports.graph_store import Edge, Node

_PAGE: Final = 5_000
"""Entities of one page."""
_LAST: Final = "MATCH (n) RETURN max(id(n))"
_NODES: Final = "MATCH (n) WHERE id(n) >= $a AND id(n) < $b RETURN id(n), labels(n), properties(n)"
_EDGES: Final = "MATCH (a)-[e]->(b) WHERE id(a) >= $a AND id(a) < $b RETURN id(a), id(b), type(e), properties(e)"

type Read = Callable[[str, Mapping[str, Any]], Awaitable[Sequence[tuple[Any, ...]]]]
"""Returns all rows of a statement with its values."""


async def nodes(read: Read) -> AsyncIterator[Node]:
    """Yield all nodes; see ``WholeGraphs.nodes``."""
    async for row in _pages(read, _NODES):
        yield Node(id=row[0], labels=tuple(row[1]), properties=row[2])


async def edges(read: Read) -> AsyncIterator[Edge]:
    """Yield all relationships; see ``WholeGraphs.edges``."""
    async for row in _pages(read, _EDGES):
        yield Edge(start=row[0], end=row[1], type=row[2], properties=row[3])


async def _pages(read: Read, page: str) -> AsyncIterator[tuple[Any, ...]]:
    highest = await read(_LAST, {})
    if not highest or highest[0][0] is None:
        return
    for start in range(0, int(highest[0][0]) + 1, _PAGE):
        for row in await read(page, {"a": start, "b": start + _PAGE}):
            yield row

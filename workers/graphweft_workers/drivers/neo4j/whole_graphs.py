"""The graphs of a Neo4j server as a whole: one in each database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import neo4j

from graphweft_workers.drivers.neo4j import exact
from graphweft_workers.drivers.neo4j.calls import send
from graphweft_workers.drivers.neo4j.databases import Databases
from graphweft_workers.drivers.neo4j.positions import Neo4jPositions
from graphweft_workers.drivers.neo4j.statements import DELETE_ALL, timed
from graphweft_workers.drivers.neo4j.timing import Neo4jTiming
from graphweft_workers.drivers.neo4j.values import number_of, plain
from graphweft_workers.ports.graph_store import Checkpoint, Edge, Node, Table


class Neo4jGraphs:
    """``WholeGraphs`` of one store."""

    can_exchange = False

    def __init__(
        self,
        databases: Databases,
        read: Callable[..., Awaitable[Table]],
        timing: Neo4jTiming,
        positions: Neo4jPositions,
    ) -> None:
        """``read`` is that of the store."""
        self._positions = positions
        self._databases = databases
        self._read = read
        self._timing = timing

    async def graph_id(self, app_id: str) -> str:
        """See ``WholeGraphs.graph_id``: the id of the database."""
        found = await self._read(app_id, "CALL db.info() YIELD id RETURN id", {}, timeout_s=self._timing.admin_s)
        return str(found.rows[0][0]) if found.rows else ""

    async def place(self, app_id: str) -> str:
        """See ``WholeGraphs.place``."""
        graph = await self._databases.graph(app_id)
        return f"{graph.uri}/{graph.database or ''}"

    async def drop(self, app_id: str) -> None:
        """See ``WholeGraphs.drop``. A database that graphweft made is dropped, another one is emptied."""
        await self._positions.forget(app_id)  # first: a graph that is gone although it is named counts as lost
        graph = await self._databases.graph(app_id)
        if graph.made:
            await self._databases.remove(graph)
        elif await self._databases.is_owned(graph, app_id):
            async with self._databases.session(graph, self._timing.listing_s) as session:
                await (await session.run(timed(DELETE_ALL, self._timing.listing_s))).consume()
        self._databases.forget(app_id)

    async def exchange(self, app_id: str, other: str, expected: Mapping[int, Checkpoint]) -> bool:
        """Refuse: a database cannot take the place of another one."""
        raise NotImplementedError

    async def nodes(self, app_id: str) -> AsyncIterator[Node]:
        """See ``WholeGraphs.nodes``."""
        async for row in self._listed(app_id, "MATCH (n) RETURN elementId(n), labels(n), properties(n)"):
            yield Node(id=number_of(row[0]), labels=tuple(row[1]), properties=plain(row[2]))

    async def edges(self, app_id: str) -> AsyncIterator[Edge]:
        """See ``WholeGraphs.edges``."""
        statement = "MATCH (a)-[e]->(b) RETURN elementId(a), elementId(b), type(e), properties(e)"
        async for row in self._listed(app_id, statement):
            yield Edge(start=number_of(row[0]), end=number_of(row[1]), type=row[2], properties=plain(row[3]))

    async def dump(self, app_id: str) -> AsyncIterator[bytes]:
        """See ``WholeGraphs.dump``."""
        async for line in exact.dump(partial(self._listed, app_id)):
            yield line

    async def load(self, app_id: str, lines: Iterable[bytes]) -> None:
        """See ``WholeGraphs.load``."""
        graph = await self._databases.claimed(app_id)

        async def write(statement: str, params: Mapping[str, Any]) -> list[list[Any]]:
            async with self._databases.session(graph, self._timing.listing_s) as session:
                return await (await send(session, timed(statement, self._timing.listing_s), params)).values()

        await exact.load(write, lines)

    async def _listed(self, app_id: str, statement: str) -> AsyncIterator[list[Any]]:
        graph = await self._databases.graph(app_id)
        if not await self._databases.is_owned(graph, app_id):
            return
        async with self._databases.session(graph, self._timing.listing_s, access=neo4j.READ_ACCESS) as session:
            async for record in await session.run(timed(statement, self._timing.listing_s)):
                yield record.values()

"""The graphs of a Neo4j server as a whole: one in each database, and second ones beside it; see ``namespaces``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import neo4j
from neo4j import AsyncSession

from graphweft_contracts import InvalidSettings
from graphweft_rules.cypher.query import Cypher
from graphweft_workers.drivers.neo4j import exact
from graphweft_workers.drivers.neo4j.batch_query import with_plain_vectors
from graphweft_workers.drivers.neo4j.calls import rows_of, run_admin, send
from graphweft_workers.drivers.neo4j.databases import Databases
from graphweft_workers.drivers.neo4j.dialect import quoted
from graphweft_workers.drivers.neo4j.exchange import GraphExchange
from graphweft_workers.drivers.neo4j.namespaces import Namespace, refusal
from graphweft_workers.drivers.neo4j.positions import Neo4jPositions
from graphweft_workers.drivers.neo4j.statements import (
    LIST_OF_LABELS,
    LIST_SCHEMA_CONSTRAINTS,
    LIST_SCHEMA_INDEXES,
    deletion,
    timed,
)
from graphweft_workers.drivers.neo4j.timing import Neo4jTiming
from graphweft_workers.drivers.neo4j.values import number_of, plain
from graphweft_workers.ports.graph_store import (
    INTERNAL_PREFIX,
    Checkpoint,
    Edge,
    Node,
    Refusal,
    SchemaItem,
    moved_by_another,
)

_KINDS: Final = {
    "UNIQUENESS": "unique", "NODE_PROPERTY_UNIQUENESS": "unique", "RELATIONSHIP_UNIQUENESS": "unique",
    "RELATIONSHIP_PROPERTY_UNIQUENESS": "unique", "NODE_PROPERTY_EXISTENCE": "mandatory",
    "RELATIONSHIP_PROPERTY_EXISTENCE": "mandatory",
}  # fmt: skip
"""Kinds of constraints in the words of other servers."""


def _items(kind: str, of: str, labels: Iterable[str], names: Iterable[str]) -> set[SchemaItem]:
    return {
        SchemaItem(kind=kind, label=f"{of}{label}", properties=tuple(names))
        for label in labels
        if not label.startswith(INTERNAL_PREFIX)
    }


class Neo4jGraphs:
    """``WholeGraphs`` of one store."""

    can_exchange = True

    def __init__(
        self,
        databases: Databases,
        timing: Neo4jTiming,
        positions: Neo4jPositions,
        refused: Callable[[str, str], Awaitable[Refusal | None]],
    ) -> None:
        """``refused`` asks the server about a text and an access mode."""
        self._refused = refused
        self._obstacles: dict[str, str] = {}
        """By statement, once asked."""
        self.rewrites = databases.has_second
        self._positions = positions
        self._databases = databases
        self._timing = timing

    async def graph_id(self, app_id: str) -> str:
        """See ``WholeGraphs.graph_id``: the id of the database, and the name of the second graph."""
        space = self._databases.space(app_id)
        found = [f"{id}/{space.name}" async for [id] in self._listed(app_id, "CALL db.info() YIELD id RETURN id")]
        return found[0] if found else ""

    async def place(self, app_id: str) -> str:
        """See ``WholeGraphs.place``."""
        graph = await self._databases.graph(app_id)
        return f"{graph.uri}/{graph.database or ''}/{self._databases.space(app_id).name}"

    async def drop(self, app_id: str) -> None:
        """See ``WholeGraphs.drop``. A database that graphweft made is dropped, another one is emptied."""
        await self._positions.forget(app_id)  # first: a graph that is gone although it is named counts as lost
        graph, space = await self._databases.graph(app_id), self._databases.space(app_id)
        if graph.made and not space.name:
            await self._databases.remove(graph)
        elif await self._databases.is_owned(app_id):
            async with self._databases.session(graph, self._timing.listing_s) as session:
                for statement in deletion(space):
                    await (await session.run(timed(statement, self._timing.listing_s))).consume()
                if space.name:
                    await self._drop_indexes(session, space)
        self._databases.forget(app_id)

    async def _drop_indexes(self, session: AsyncSession, space: Namespace) -> None:
        """Drop the indexes and constraints of a second graph."""
        query = timed(LIST_OF_LABELS, self._timing.admin_s)
        for name, constraint in await (await session.run(query, {"prefix": space.prefix})).values():
            kind = "INDEX" if constraint is None else "CONSTRAINT"
            await run_admin(session, f"DROP {kind} {quoted(constraint or name)} IF EXISTS")

    async def exchange(self, app_id: str, other: str, expected: Mapping[int, Checkpoint]) -> bool:
        """See ``WholeGraphs.exchange``: what differs is exchanged, in one transaction."""
        graph = await self._databases.claimed(app_id)
        database, _, name = other.partition("/")
        if not name or not (await self.graph_id(app_id)).startswith(f"{database}/"):
            raise InvalidSettings(f"the other graph of {app_id!r} is in another database: it cannot take this place")
        work = GraphExchange(self._databases, graph, app_id, Namespace(name), self._timing)
        return await work.run(expected)

    async def schema(self, app_id: str) -> frozenset[SchemaItem]:
        """See ``WholeGraphs.schema``: those of the database, for the live graph and for second ones."""
        found: set[SchemaItem] = set()
        async for kind, entity, labels, names in self._listed(app_id, LIST_SCHEMA_INDEXES):
            of = "" if entity == "NODE" else "relationship "
            for some in [[name] for name in names] if kind in ("FULLTEXT", "VECTOR") else [names]:
                found |= _items(f"{kind.lower()} index", of, labels, some)
        async for kind, labels, names in self._listed(app_id, LIST_SCHEMA_CONSTRAINTS):
            of = "relationship " if "RELATIONSHIP" in kind else ""
            found |= _items(f"{_KINDS.get(kind, kind.lower().replace('_', ' '))} constraint", of, labels, names)
        return frozenset(found)

    async def node_counts(self, app_id: str) -> Mapping[str, int]:
        """See ``WholeGraphs.node_counts``."""
        space = self._databases.space(app_id)
        found: dict[str, int] = {}
        labels = [label async for [label] in self._listed(app_id, "CALL db.labels() YIELD label RETURN label")]
        for label in (label for label in space.plain(labels) if not label.startswith(INTERNAL_PREFIX)):
            text = f"MATCH (n:{quoted(space.label(label))}) RETURN count(n)"
            async for [count] in self._listed(app_id, text):
                if count:
                    found[label] = count
        return found

    async def obstacle(self, query: Cypher) -> str:
        """See ``WholeGraphs.obstacle``: the text of a query for a second graph is made from that of the rule."""
        if not self.rewrites:
            return ""
        text = query.statement
        if text not in self._obstacles:
            self._obstacles[text] = refusal(query.outline) or await self._refusal_of_server(text)
        return self._obstacles[text]

    async def _refusal_of_server(self, text: str) -> str:
        """Return why the server refuses the text for a second graph, and not the rule's own."""
        there = await self._refused(with_plain_vectors(Namespace("checked").statement(text)), neo4j.WRITE_ACCESS)
        if there is None or not there.fails:
            return ""
        here = await self._refused(with_plain_vectors(text), neo4j.WRITE_ACCESS)
        return f"the server refuses it there: {there.reason}" if here is None else ""

    async def nodes(self, app_id: str) -> AsyncIterator[Node]:
        """See ``WholeGraphs.nodes``."""
        space = self._databases.space(app_id)
        async for row in self._listed(app_id, exact.nodes_of(space)):
            yield Node(id=number_of(row[0]), labels=space.plain(row[1]), properties=plain(row[2]))

    async def edges(self, app_id: str) -> AsyncIterator[Edge]:
        """See ``WholeGraphs.edges``."""
        async for row in self._listed(app_id, exact.edges_of(self._databases.space(app_id))):
            yield Edge(start=number_of(row[1]), end=number_of(row[2]), type=row[3], properties=plain(row[4]))

    async def dump(self, app_id: str) -> AsyncIterator[bytes]:
        """See ``WholeGraphs.dump``."""
        async for line in exact.dump(partial(self._listed, app_id), self._databases.space(app_id)):
            yield line

    async def load(self, app_id: str, lines: Iterable[bytes], *, partition: int, mark: Checkpoint) -> None:
        """See ``WholeGraphs.load``."""
        graph = await self._databases.claimed(app_id)

        async def write(statement: str, params: Mapping[str, Any]) -> list[list[Any]]:
            async with self._databases.session(graph, self._timing.listing_s) as session:
                return await (await send(session, timed(statement, self._timing.listing_s), params)).values()

        if not await exact.load(write, lines, self._databases.space(app_id), partition=partition, mark=mark):
            raise moved_by_another(app_id, partition)

    async def _listed(self, app_id: str, statement: str) -> AsyncIterator[list[Any]]:
        graph = await self._databases.graph(app_id)
        if not await self._databases.is_owned(app_id):
            return
        async with self._databases.session(graph, self._timing.listing_s, access=neo4j.READ_ACCESS) as session:
            async for row in rows_of(await session.run(timed(statement, self._timing.listing_s))):
                yield row

"""The reference: one query per mutation and event, in the order of the log, by the server's own driver."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from falkordb.asyncio.graph import AsyncGraph
from falkordb.helpers import stringify_param_value
from redis.exceptions import ResponseError

from graphweft.transports.redis.connection import connect
from graphweft_contracts import InvalidEvent, Transient, wire
from graphweft_rules import BoundMutation, RuleSet
from graphweft_rules.cypher.batch_query import ROW
from graphweft_rules.matching.pack import LogTime
from graphweft_workers.drivers.neo4j.batch_query import with_plain_vectors
from graphweft_workers.drivers.neo4j.dialect import NEO4J
from graphweft_workers.engine.plan.digest import Digest, canonical, digest_of
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dialect import GraphDialect
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import INTERNAL_PREFIX, Edge, GraphStore, Node
from graphweft_workers.ports.offsets import is_after

__all__ = (
    "Content",
    "FalkorDBReference",
    "Neo4jReference",
    "Query",
    "Reference",
    "log_of",
    "patiently",
    "queries_of",
    "query_of",
)


@dataclass(frozen=True, slots=True)
class Content:
    """Everything in a graph."""

    nodes: Sequence[Node]
    edges: Sequence[Edge]

    @classmethod
    async def of(cls, store: GraphStore, app_id: str) -> Self:
        """Return an app's graph."""
        graphs = store.whole
        return cls([node async for node in graphs.nodes(app_id)], [edge async for edge in graphs.edges(app_id)])

    @property
    def digest(self) -> Digest:
        return digest_of(self.nodes, self.edges)

    def against(self, other: Content) -> str:
        """Say what is here and not there, and the other way round: for people who look for the reason."""
        here, there = self._lines(), other._lines()
        return "\n".join([f"- {line}" for line in (there - here).elements()] + [
            f"+ {line}" for line in (here - there).elements()
        ])  # fmt: skip

    def _lines(self) -> Counter[str]:
        names = {
            node.id: f"{':'.join(sorted(node.labels))}{canonical(node.properties)}"
            for node in self.nodes
            if not any(label.startswith(INTERNAL_PREFIX) for label in node.labels)
        }
        lines = Counter(names.values())
        for edge in self.edges:
            if edge.start in names and edge.end in names:
                kind = f"{edge.type}{canonical(edge.properties)}"
                lines[f"({names[edge.start]})-[{kind}]->({names[edge.end]})"] += 1
        return lines


type Query = tuple[str, Mapping[str, Any]]
type Reference = FalkorDBReference | Neo4jReference

_NODES = "MATCH (n) RETURN id(n), labels(n), properties(n)"
_EDGES = "MATCH (a)-[r]->(b) RETURN id(a), id(b), type(r), properties(r)"
_UNFINISHED = "CALL db.indexes() YIELD status WHERE status <> 'OPERATIONAL' RETURN count(*)"
_AT_ONCE = 200
_PAGE = 10_000
_APP = "__App"
"""The label of the node that says whose a Neo4j database is."""


async def patiently[Result](call: Callable[[], Awaitable[Result]], *, longest_s: float = 60.0) -> Result:
    """Return what a call returns as soon as its server serves it."""
    async with asyncio.timeout(longest_s):
        while True:
            try:
                return await call()
            except Transient as error:
                await asyncio.sleep(min(error.retry_after_s, 0.2))


async def log_of(bus: Bus, partition: int, after: str = "") -> Sequence[Entry]:
    """Return everything in a partition behind ``after`` but activations of rules."""
    end = next(part.end for part in await patiently(bus.partitions.status) if part.id == partition)
    entries: list[Entry] = []
    at = end
    while at and (not entries or is_after(at, after)):
        # A read has a limit of bytes, and includes the entry that the read before began with.
        page = await bus.log.before(partition, at, limit=_PAGE)
        entries[:1] = page
        at = page[0].offset if len(page) > 1 else ""
    return [each for each in entries if is_after(each.offset, after) and wire.ACTIVATION not in each.fields]


def queries_of(
    entries: Iterable[Entry], rules: RuleSet, dialect: GraphDialect, app_id: str | None = None, *, partition: int = 0
) -> list[list[Query]]:
    """Return for each event of a partition in order what it does to its graph; copies and no events do nothing."""
    found: list[list[Query]] = []
    seen: set[tuple[str, str, str]] = set()
    for entry in entries:
        try:
            event = wire.decode(entry.fields, received=entry.received)
        except InvalidEvent:
            continue
        identity = (event.appid, *event.identity)
        if identity in seen or app_id not in (None, event.appid):
            continue
        seen.add(identity)
        logged = LogTime(entry.received, partition)
        found.append([query_of(bound, dialect) for bound in rules.match_event(event, logged).mutations])
    return found


def query_of(bound: BoundMutation, dialect: GraphDialect) -> Query:
    """Return a mutation as its author wrote it, but for a server that takes the author's in an order of its own."""
    form = bound.mutation.cypher.batch_query(dialect)
    if not form.always:
        statement = bound.mutation.cypher.statement
        return with_plain_vectors(statement) if dialect is NEO4J else statement, bound.params
    row = [0, *(bound.params[name] for name in form.columns)]
    return f"UNWIND $rows AS {ROW} {form.statement}", {"rows": [row]}


class FalkorDBReference:
    """A graph of its own on a FalkorDB server, which may be the one under test."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url, io_timeout_s=60.0, decode=True)

    async def run(self, queries: Sequence[Query], keys: Iterable[tuple[str, str]] = ()) -> tuple[Content, set[int]]:
        """Return what the queries, one after the other, make of nothing, and the numbers of those that were refused."""
        name = "serial-reference"
        graph = AsyncGraph(self._redis, name)
        refused: set[int] = set()
        await self._redis.delete(name)
        try:
            for label, key in sorted(keys):
                await graph.query(f"CREATE INDEX FOR (n:`{label}`) ON (n.`{key}`)")
            # While an index is built a query may see less or more than with it.
            while (await graph.query(_UNFINISHED)).result_set != [[0]]:
                pass
            for start in range(0, len(queries), _AT_ONCE):
                pipeline = self._redis.pipeline(transaction=False)
                for statement, params in queries[start : start + _AT_ONCE]:
                    pipeline.execute_command("GRAPH.QUERY", name, _header(params) + statement)
                replies = await pipeline.execute(raise_on_error=False)
                for number, reply in enumerate(replies, start):
                    if type(reply) is ResponseError:
                        refused.add(number)
                    elif isinstance(reply, Exception):
                        raise reply
            nodes = [Node(id=row[0], labels=tuple(row[1]), properties=row[2])
                     for row in (await graph.query(_NODES)).result_set]  # fmt: skip
            edges = [Edge(start=row[0], end=row[1], type=row[2], properties=row[3])
                     for row in (await graph.query(_EDGES)).result_set]  # fmt: skip
        finally:
            await self._redis.delete(name)
        return Content(nodes, edges), refused

    async def drop(self, names: Iterable[str]) -> None:
        """Take graphs away."""
        await self._redis.delete(*names)

    async def aclose(self) -> None:
        await self._redis.aclose()


class Neo4jReference:
    """A pass over an empty database of the server under test; what it makes is taken away in the end.

    A transaction holds many queries and ends behind each that may delete: behind that, Neo4j 5.26 still finds deleted
    nodes by an index, where the same transaction put them into it.
    """

    def __init__(self, url: str) -> None:
        from neo4j import AsyncGraphDatabase

        self._driver = AsyncGraphDatabase.driver(url, notifications_min_severity="OFF")
        self._indexed: set[tuple[str, str]] = set()

    async def run(self, queries: Sequence[Query], keys: Iterable[tuple[str, str]] = ()) -> tuple[Content, set[int]]:
        """See ``FalkorDBReference.run``."""
        for label, key in sorted(set(keys) - self._indexed):
            self._indexed.add((label, key))
            await self._driver.execute_query(f"CREATE INDEX IF NOT EXISTS FOR (n:`{label}`) ON (n.`{key}`)")
        refused: set[int] = set()
        try:
            start = 0
            for end, (statement, _) in enumerate(queries, 1):
                if end == len(queries) or "DELETE" in statement.upper():
                    await self._commit(queries, range(start, end), refused)
                    start = end
            nodes = [Node(id=row[0], labels=tuple(row[1]), properties=row[2]) for row in await self._rows(_NODES)]
            edges = [Edge(start=row[0], end=row[1], type=row[2], properties=row[3]) for row in await self._rows(_EDGES)]
        finally:
            await self.clear(keep=_APP, keep_positions=True)
        return Content(nodes, edges), refused

    async def _commit(self, queries: Sequence[Query], numbers: range, refused: set[int]) -> None:
        """Run queries in a transaction. An error ends it: begin it anew without what was refused."""
        from neo4j.exceptions import ClientError

        while True:
            async with self._driver.session() as session, await session.begin_transaction() as transaction:
                for number in numbers:
                    if number in refused:
                        continue
                    try:
                        await (await transaction.run(*queries[number])).consume()
                    except ClientError:
                        refused.add(number)
                        await transaction.close()  # leaving the block would commit
                        break
                else:
                    await transaction.commit()
                    return

    async def _rows(self, statement: str) -> list[list[Any]]:
        return [record.values() for record in (await self._driver.execute_query(statement)).records]

    async def clear(self, *, keep: str | None = None, keep_positions: bool = False) -> None:
        """Take everything out of the database, but nodes with the label ``keep``.

        Without ``keep_positions`` it looks to workers like a database that was lost: they read all events again.
        """
        kept = [f"NOT n:{keep}"] if keep else []
        kept += ["NOT (n:__Position AND n.app = '')"] if keep_positions else []
        await self._driver.execute_query(f"MATCH (n) {f'WHERE {" AND ".join(kept)} ' if kept else ''}DETACH DELETE n")

    async def aclose(self) -> None:
        await self._driver.close()


def _header(params: Mapping[str, Any]) -> str:
    return "CYPHER " + "".join(f"`{name}`={stringify_param_value(value)} " for name, value in params.items())

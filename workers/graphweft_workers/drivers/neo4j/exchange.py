"""Exchanges the contents of the live graph and of a second graph in its database, in one transaction.

Only what differs is exchanged: equal nodes are paired and stay where they are, with their index entries. Of two pairs
only relationships that one graph lacks are made again. Any pairing of equal nodes gives the same graphs; a better one
makes less work. So nodes with the same content are told apart by their neighbours.

Readers find either graph. They may see single old values for ``settle_s``, as after each commit.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import batched
from typing import Any, Final, cast

import neo4j
from neo4j import AsyncTransaction

from graphweft_workers.drivers.neo4j import exact
from graphweft_workers.drivers.neo4j.calls import rows_of, send
from graphweft_workers.drivers.neo4j.databases import Database, Databases
from graphweft_workers.drivers.neo4j.dialect import quoted
from graphweft_workers.drivers.neo4j.namespaces import LIVE, Namespace
from graphweft_workers.drivers.neo4j.statements import LOCK, READ_CHECKPOINTS, VALUES, timed
from graphweft_workers.drivers.neo4j.timing import Neo4jTiming
from graphweft_workers.drivers.neo4j.values import SIMPLE
from graphweft_workers.ports.graph_store import NOT_DUMPED, Checkpoint
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.graph")

_ROWS: Final = 5_000
"""Of one statement."""
_STAYING: Final = frozenset({"__App", "__Position"})
"""The labels of nodes that belong to a place and not to what is in it."""
_MOVE_EDGES: Final = (
    "UNWIND $rows AS row MATCH ()-[r:{type}]->() WHERE elementId(r) = row[0] "
    "MATCH (a) WHERE elementId(a) = row[1] MATCH (b) WHERE elementId(b) = row[2] "
    "CREATE (a)-[made:{type}]->(b) SET made = properties(r) DELETE r"
)

type _Hash = bytes


@dataclass(slots=True)
class _Graph:
    """One graph, as far as an exchange must know it."""

    labels: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Id -> labels as rules name them. Nodes share equal ones."""
    hashes: dict[str, _Hash] = field(default_factory=dict[str, bytes])
    """Id -> hash of the content; nodes about the graph itself have none."""


@dataclass(slots=True)
class _Difference:
    """What changes its graph."""

    leaving: dict[tuple[str, ...], list[str]] = field(default_factory=lambda: defaultdict(list))
    """Labels -> ids of the nodes of the live graph without an equal one."""
    coming: dict[tuple[str, ...], list[str]] = field(default_factory=lambda: defaultdict(list))
    """The same of the second graph."""
    edges: dict[str, list[list[str]]] = field(default_factory=lambda: defaultdict(list))
    """Type -> ids of a relationship, and of the nodes between which it is to be."""

    @property
    def size(self) -> int:
        """The number of nodes and relationships."""
        return sum(len(ids) for each in (self.leaving, self.coming, self.edges) for ids in each.values())


class GraphExchange:
    """Exchanges the live graph of an app and a second one."""

    def __init__(
        self, databases: Databases, graph: Database, app_id: str, second: Namespace, timing: Neo4jTiming
    ) -> None:
        self._databases = databases
        self._graph = graph
        self._app_id = app_id
        self._second = second
        self._timing = timing

    async def run(self, expected: Mapping[int, Checkpoint]) -> bool:
        """See ``WholeGraphs.exchange``."""
        second = await self._checkpoints()
        difference = await self._difference()
        limit_s = self._timing.listing_s
        async with self._databases.session(self._graph, limit_s) as session:
            transaction = await session.begin_transaction(timeout=limit_s)
            async with transaction:
                for space in (LIVE, self._second):
                    if not await self._lock(transaction, space):
                        return False
                rows = await (await send(transaction, READ_CHECKPOINTS, {})).values()
                if _of_rows(rows) != dict(expected):
                    return False
                rows = await (await send(transaction, self._second.statement(READ_CHECKPOINTS), {})).values()
                if _of_rows(rows) != second:
                    return False
                await self._apply(transaction, difference)
        logger.info("graphs_exchanged", app_id=self._app_id, changes=difference.size)
        return True

    async def _checkpoints(self) -> dict[int, Checkpoint]:
        return _of_rows([row async for row in self._listed(self._second.statement(READ_CHECKPOINTS))])

    async def _lock(self, transaction: AsyncTransaction, space: Namespace) -> bool:
        text = f"{space.statement(LOCK)} RETURN 1"
        return bool(await (await send(transaction, text, {VALUES: {"app": self._app_id}})).values())

    async def _apply(self, transaction: AsyncTransaction, difference: _Difference) -> None:
        for type, rows in difference.edges.items():
            text = _MOVE_EDGES.format(type=quoted(type))
            for some in batched(rows, _ROWS):
                await (await send(transaction, text, {"rows": [*some]})).consume()
        # First no graph has the nodes: each may have a constraint that allows one node of a key.
        moves = ((difference.leaving, LIVE, self._second), (difference.coming, self._second, LIVE))
        for nodes, old, _ in moves:
            await self._label(transaction, "REMOVE", nodes, old)
        for nodes, _, new in moves:
            await self._label(transaction, "SET", nodes, new)

    async def _label(
        self, transaction: AsyncTransaction, how: str, nodes: Mapping[tuple[str, ...], list[str]], space: Namespace
    ) -> None:
        for labels, ids in nodes.items():
            named = "".join(f":{quoted(each)}" for each in space.stored(labels))
            if named:
                text = f"UNWIND $ids AS id MATCH (n) WHERE elementId(n) = id {how} n{named}"
                for some in batched(ids, _ROWS):
                    await (await send(transaction, text, {"ids": [*some]})).consume()

    # What differs

    async def _difference(self) -> _Difference:
        found = _Difference()
        live, second = await self._read(LIVE), await self._read(self._second)
        await self._tell_apart(live, second)
        there: dict[_Hash, list[str]] = defaultdict(list)
        for node, content in live.hashes.items():
            there[content].append(node)
        partner: dict[str, str] = {}
        """Of the pairs, in both directions."""
        for node in second.labels:
            equal = there.get(second.hashes.get(node, b""))
            if equal:
                other = equal.pop()
                partner[node], partner[other] = other, node
            else:
                found.coming[second.labels[node]].append(node)
        for node, labels in live.labels.items():
            if node not in partner:
                found.leaving[labels].append(node)
        await self._compare_edges(found, partner)
        return found

    async def _compare_edges(self, found: _Difference, partner: Mapping[str, str]) -> None:
        """Find the relationships that have to be made again, between other nodes."""
        paired: dict[bytes, list[tuple[str, str, str, str]]] = defaultdict(list)
        async for edge, start, end, type, properties in self._listed(exact.edges_of(LIVE)):
            if start in partner and end in partner:
                key = _hash(properties, start, end, type)
                paired[key].append((edge, start, end, type))
            elif start in partner or end in partner:
                found.edges[type].append([edge, partner.get(start, start), partner.get(end, end)])
        async for edge, start, end, type, properties in self._listed(exact.edges_of(self._second)):
            if start in partner and end in partner:
                key = _hash(properties, partner[start], partner[end], type)
                if paired.get(key):
                    paired[key].pop()
                    continue
            if start in partner or end in partner:
                found.edges[type].append([edge, partner.get(start, start), partner.get(end, end)])
        for edges in paired.values():
            for edge, start, end, type in edges:
                found.edges[type].append([edge, partner[start], partner[end]])

    async def _read(self, space: Namespace) -> _Graph:
        found = _Graph()
        same: dict[tuple[str, ...], tuple[str, ...]] = {}
        async for node, stored, properties in self._listed(exact.nodes_of(space)):
            plain = tuple(sorted(space.plain(stored)))
            labels = same.setdefault(plain, plain)
            if not _STAYING.isdisjoint(labels):
                continue
            found.labels[node] = labels
            if NOT_DUMPED.isdisjoint(labels):
                found.hashes[node] = _hash(properties, labels)
        return found

    async def _tell_apart(self, live: _Graph, second: _Graph) -> None:
        """Give nodes with the same content other hashes by their neighbours."""
        spaces = ((live, LIVE), (second, self._second))
        several = {
            content for graph, _ in spaces for content, count in Counter(graph.hashes.values()).items() if count > 1
        }
        if not several:
            return
        for graph, space in spaces:
            around: dict[str, list[bytes]] = defaultdict(list)
            async for _, start, end, type, properties in self._listed(exact.edges_of(space)):
                for node, other, way in ((start, end, "out"), (end, start, "in")):
                    if graph.hashes.get(node) in several:
                        around[node].append(_hash(properties, way, type, graph.hashes.get(other, b"")))
            finer = {node: _joined(content, around[node]) for node, content in graph.hashes.items() if node in around}
            graph.hashes.update(finer)

    async def _listed(self, statement: str) -> AsyncIterator[list[Any]]:
        limit_s = self._timing.listing_s
        async with self._databases.session(self._graph, limit_s, access=neo4j.READ_ACCESS) as session:
            async for row in rows_of(await session.run(timed(statement, limit_s))):
                yield row


def _of_rows(rows: Iterable[Sequence[Any]]) -> dict[int, Checkpoint]:
    return {partition: Checkpoint(offset=offset, plan=plan, done=done) for partition, offset, plan, done in rows}


def _hash(properties: Mapping[str, Any], *parts: Any) -> _Hash:
    """Return a hash of exact values: 1 is not 1.0, nor is 0.0 -0.0."""
    values: Any = sorted(properties.items())
    if not all(map(_is_simple, properties.values())):
        values = exact.encoded(values)
    # Texts of simple values differ if these do, and are made ten times quicker than JSON.
    return hashlib.blake2b(repr((values, parts)).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _is_simple(value: Any) -> bool:
    if type(value) is list:
        return SIMPLE.issuperset(map(type, cast("list[object]", value)))
    return type(value) in SIMPLE


def _joined(content: _Hash, around: Iterable[bytes]) -> _Hash:
    return hashlib.blake2b(b"".join((content, *sorted(around))), digest_size=16).digest()

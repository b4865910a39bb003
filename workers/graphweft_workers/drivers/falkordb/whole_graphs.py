"""The graphs of a FalkorDB server as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

from redis.exceptions import RedisError, ResponseError

from graphweft_rules.cypher.query import Cypher
from graphweft_workers.drivers.falkordb import exact, index_repair, listing
from graphweft_workers.drivers.falkordb.errors import NO_GRAPH, translate
from graphweft_workers.drivers.falkordb.exchange import exchange
from graphweft_workers.drivers.falkordb.positions import FalkorDBPositions
from graphweft_workers.drivers.falkordb.statements import LIST_CONSTRAINTS, LIST_SCHEMA_INDEXES, quoted, run_of
from graphweft_workers.ports.graph_store import (
    INTERNAL_PREFIX,
    Checkpoint,
    Edge,
    Node,
    SchemaItem,
    moved_by_another,
)

type Rows = Callable[[str, str, str], Awaitable[list[Any]]]
"""Returns all rows of a statement, raw: from an app, a command and the text."""
type List = Callable[[str, str, Mapping[str, Any]], Awaitable[Sequence[tuple[Any, ...]]]]
"""Returns all rows of a statement, from an app, the text and its values."""


class FalkorDBGraphs:
    """``WholeGraphs`` of one store."""

    can_exchange = True
    rewrites = False

    def __init__(
        self,
        redis: Any,
        name: Callable[[str], str],
        *,
        rows: Rows,
        list_rows: List,
        named: MutableMapping[str, set[str]],
        notes: MutableMapping[tuple[str, int], str],
        positions: FalkorDBPositions,
    ) -> None:
        """``name`` returns the name of an app's graph. ``named`` and ``notes`` are what the store knows of graphs."""
        self._positions = positions
        self._redis = redis
        self._name = name
        self._rows = rows
        self._list = list_rows
        self._named = named
        self._notes = notes

    async def graph_id(self, app_id: str) -> str:
        """See ``WholeGraphs.graph_id``."""
        name = self._name(app_id)
        try:
            names = await self._redis.execute_command("GRAPH.LIST")
            return f"{run_of(await self._redis.info('server'))}/{name}" if name in names else ""
        except (RedisError, OSError) as error:
            raise translate(error) from error

    async def place(self, app_id: str) -> str:
        """See ``WholeGraphs.place``."""
        try:
            return f"{run_of(await self._redis.info('server'))}/{self._name(app_id)}"
        except (RedisError, OSError) as error:
            raise translate(error) from error

    async def drop(self, app_id: str) -> None:
        """See ``WholeGraphs.drop``."""
        self._named.pop(app_id, None)
        for key in [key for key in self._notes if key[0] == app_id]:
            del self._notes[key]
        try:
            # First: a graph that is gone although it is named counts as lost.
            await self._positions.forget(app_id)
            await self._redis.execute_command("GRAPH.DELETE", self._name(app_id))
        except ResponseError as error:
            if not str(error).startswith(NO_GRAPH):
                raise translate(error) from error
        except (RedisError, OSError) as error:
            raise translate(error) from error

    async def exchange(self, app_id: str, other: str, expected: Mapping[int, Checkpoint]) -> bool:
        """See ``WholeGraphs.exchange``."""
        try:
            names = self._name(app_id), other.partition("/")[2]
            exchanged = await exchange(self._redis, *names, expected)
            for name in names if exchanged else ():
                await index_repair.forget(self._redis, name)
            return exchanged
        except (RedisError, OSError) as error:
            raise translate(error) from error
        finally:
            self._named.pop(app_id, None)

    async def schema(self, app_id: str) -> frozenset[SchemaItem]:
        """See ``WholeGraphs.schema``."""
        found: set[SchemaItem] = set()
        for label, types, entity in await self._list(app_id, LIST_SCHEMA_INDEXES, {}):
            of = label if entity == "NODE" else f"relationship {label}"
            for name, kinds in types.items():
                found |= {SchemaItem(kind=f"{kind.lower()} index", label=of, properties=(name,)) for kind in kinds}
        for kind, label, names, entity in await self._list(app_id, LIST_CONSTRAINTS, {}):
            of = label if entity == "NODE" else f"relationship {label}"
            found.add(SchemaItem(kind=f"{kind.lower()} constraint", label=of, properties=tuple(names)))
        return frozenset(found)

    async def node_counts(self, app_id: str) -> Mapping[str, int]:
        """See ``WholeGraphs.node_counts``."""
        found: dict[str, int] = {}
        for (label,) in await self._list(app_id, "CALL db.labels() YIELD label RETURN label", {}):
            if label.startswith(INTERNAL_PREFIX) or "`" in label:  # the second is a name that no query can have
                continue
            for (count,) in await self._list(app_id, f"MATCH (n:{quoted(label)}) RETURN count(n)", {}):
                if count:
                    found[label] = count
        return found

    async def obstacle(self, query: Cypher) -> str:
        """See ``WholeGraphs.obstacle``: all graphs are alike."""
        return ""

    async def nodes(self, app_id: str) -> AsyncIterator[Node]:
        """See ``WholeGraphs.nodes``."""
        async for node in listing.nodes(partial(self._list, app_id)):
            yield node

    async def edges(self, app_id: str) -> AsyncIterator[Edge]:
        """See ``WholeGraphs.edges``."""
        async for edge in listing.edges(partial(self._list, app_id)):
            yield edge

    async def dump(self, app_id: str) -> AsyncIterator[bytes]:
        """See ``WholeGraphs.dump``."""
        async for line in exact.dump(partial(self._rows, app_id, "GRAPH.RO_QUERY")):
            yield line

    async def load(self, app_id: str, lines: Iterable[bytes], *, partition: int, mark: Checkpoint) -> None:
        """See ``WholeGraphs.load``."""
        ask = partial(self._rows, app_id, "GRAPH.QUERY")
        if not await exact.load(ask, lines, partition=partition, mark=mark):
            raise moved_by_another(app_id, partition)

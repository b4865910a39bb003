"""A graph store as the replay of a prelude sees it: its partitions have other numbers, and its app another name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphweft_workers.archive.preludes import checkpoint_number, is_of_prelude, prelude_of
from graphweft_workers.ports.graph_store import (
    Applied,
    Checkpoint,
    Edge,
    GraphStore,
    Node,
    Progress,
    Refusal,
    Table,
    Write,
)

if TYPE_CHECKING:
    from graphweft_rules.cypher.batch_query import BatchQuery
    from graphweft_rules.cypher.indexes import SearchIndex
    from graphweft_rules.cypher.query import Cypher


class PreludeGraph:
    """``GraphStore`` for one app, whatever name it is called by. The creator closes the store behind it."""

    can_exchange = False

    def __init__(self, graph: GraphStore, app_id: str, prelude: int) -> None:
        """``app_id`` is the name of the app in ``graph``, ``prelude`` the number of the prelude."""
        self._graph = graph
        self._app_id = app_id
        self._prelude = prelude
        self.dialect = graph.dialect
        self.settle_s = graph.settle_s
        self.runs_again = graph.runs_again
        self.without_turn = graph.without_turn

    def _number(self, partition: int) -> int:
        return checkpoint_number(self._prelude, partition)

    async def check(self) -> str:
        """See ``GraphStore.check``."""
        return await self._graph.check()

    async def graph_id(self, app_id: str) -> str:
        """See ``GraphStore.graph_id``."""
        return await self._graph.graph_id(self._app_id)

    async def place(self, app_id: str) -> str:
        """See ``GraphStore.place``."""
        return await self._graph.place(self._app_id)

    async def drop(self, app_id: str) -> None:
        """See ``GraphStore.drop``."""
        await self._graph.drop(self._app_id)

    async def check_query(self, query: Cypher, batch_query: BatchQuery | None = None) -> Refusal | None:
        """See ``GraphStore.check_query``."""
        return await self._graph.check_query(query, batch_query)

    async def prepare(self, app_id: str, keys: Iterable[tuple[str, str]], indexes: Iterable[SearchIndex] = ()) -> None:
        """See ``GraphStore.prepare``."""
        await self._graph.prepare(self._app_id, keys, indexes)

    async def progress(self, app_id: str, partition: int) -> Progress:
        """See ``GraphStore.progress``."""
        return await self._graph.progress(self._app_id, self._number(partition))

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> Applied:
        """See ``GraphStore.apply``."""
        return await self._graph.apply(self._app_id, self._number(partition), writes)

    async def durable(self, run: str) -> None:
        """See ``GraphStore.durable``."""
        await self._graph.durable(run)

    async def exchange(self, app_id: str, other: str, expected: Mapping[int, Checkpoint]) -> bool:
        """Do nothing: the graph of a prelude is part of one."""
        return False

    async def read(
        self,
        app_id: str,
        statement: str,
        params: Mapping[str, Any],
        *,
        timeout_s: float,
        enough: int | None = None,
        elements: bool = False,
        to_end: bool = False,
    ) -> Table:
        """See ``GraphStore.read``."""
        return await self._graph.read(
            self._app_id, statement, params, timeout_s=timeout_s, enough=enough, elements=elements, to_end=to_end
        )

    async def checkpoints(self, app_id: str, *, timeout_s: float) -> Mapping[int, Checkpoint]:
        """Return the checkpoints of the prelude's partitions."""
        found = await self._graph.checkpoints(self._app_id, timeout_s=timeout_s)
        first = self._number(0)
        return {
            number - first: checkpoint
            for number, checkpoint in found.items()
            if is_of_prelude(number) and prelude_of(number) == self._prelude
        }

    def nodes(self, app_id: str) -> AsyncIterator[Node]:
        """See ``GraphStore.nodes``."""
        return self._graph.nodes(self._app_id)

    def edges(self, app_id: str) -> AsyncIterator[Edge]:
        """See ``GraphStore.edges``."""
        return self._graph.edges(self._app_id)

    def dump(self, app_id: str) -> AsyncIterator[bytes]:
        """See ``GraphStore.dump``."""
        return self._graph.dump(self._app_id)

    async def load(self, app_id: str, lines: Iterable[bytes]) -> None:
        """See ``GraphStore.load``."""
        await self._graph.load(self._app_id, lines)

    async def aclose(self) -> None:
        """Do nothing: the creator closes the store."""

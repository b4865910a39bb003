"""What keeps a graph that is older than it was from catching up by the log of the bus alone."""

from __future__ import annotations

from dataclasses import replace

from graphweft_contracts import GraphUnavailable, InvalidSettings, QueryFailed
from graphweft_workers.archive.preludes import is_of_prelude, prelude_of
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_basis import GraphBasis, logged_basis, read_basis, write_basis
from graphweft_workers.ports.graph_store import GraphStore, is_new
from graphweft_workers.ports.purges import PurgeReader
from graphweft_workers.replay.app_log import AppLog


class GraphObstacles:
    """Answers a worker about the graph of an app: when it opens the graph, and while events take effect again."""

    def __init__(self, bus: Bus, graph: GraphStore) -> None:
        self._bus = bus
        self._graph = graph
        self._purges = PurgeReader(bus.purges)

    async def older(self, app_id: str, partition: int) -> str:
        """See ``Obstacle``: whether the graph is from before one that took its place, by what the bus says.

        A graph that is new gets the basis of one that the log makes. Raises ``BusUnavailable`` and
        ``GraphUnavailable``.
        """
        await self._purges.read()
        needed = self._purges.needed.get(app_id)
        if needed is None:
            return ""
        basis = await self._basis(app_id)
        why = basis.older_than(needed, app_id)
        if why and basis == GraphBasis() and is_new(await self._log(app_id).marks()):
            return await self.of(app_id, partition)
        return why

    async def of(self, app_id: str, partition: int) -> str:
        """See ``Obstacle``. A graph that is new gets the basis of one that the log makes.

        Raises ``BusUnavailable`` and ``GraphUnavailable``.
        """
        log = self._log(app_id)
        marks = await log.marks()
        basis = await self._basis(app_id)
        way = f"run `graphweft rebuild --app {app_id} --swap`"
        if is_new(marks) and await self._graph.whole.node_counts(app_id):
            return (
                f"the graph of {app_id!r} holds nodes and does not say of which events: somebody has deleted "
                f"graphweft's own nodes from it: {way}"
            )
        try:
            preludes = {prelude.number for prelude in await log.preludes()}
        except InvalidSettings as error:
            return f"the graph of {app_id!r} is older than the log: {error}. Then {way}"
        if preludes - {prelude_of(number) for number in marks if is_of_prelude(number)}:
            return (
                f"the graph of {app_id!r} was lost, and the log of the bus alone does not make it again, since the app "
                f"was restored from an export: {way}"
            )
        wanted = logged_basis(await self._bus.rules.activations(), app_id)
        count = (await log.erasures()).count
        await self._purges.read()
        needed = self._purges.needed.get(app_id)
        if needed is not None:  # of erasures whose archive this worker may not have
            count = max(count, needed.erasures)
        if basis == GraphBasis() and is_new(marks):
            if wanted or count:
                await write_basis(self._graph, app_id, partition, replace(basis, rules=wanted, erasures=count))
            return ""
        if basis.rules != wanted:
            return f"the graph of {app_id!r} was made by other rules than the log names for its past: {way}"
        return basis.older_than(GraphBasis(erasures=count), app_id)

    async def _basis(self, app_id: str) -> GraphBasis:
        try:
            return await read_basis(self._graph, app_id)
        except QueryFailed as error:
            raise GraphUnavailable(f"the graph of {app_id!r} did not say how it was made: {error}") from error

    def _log(self, app_id: str) -> AppLog:
        return AppLog(bus=self._bus, app_id=app_id, live=self._graph)

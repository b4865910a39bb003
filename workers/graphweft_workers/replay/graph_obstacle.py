"""What keeps a graph that is older than the log from catching up by the log of the bus alone."""

from __future__ import annotations

from dataclasses import replace

from graphweft_contracts import InvalidSettings
from graphweft_workers.archive.preludes import is_of_prelude, prelude_of
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_basis import GraphBasis, logged_basis, read_basis, write_basis
from graphweft_workers.ports.graph_store import START, GraphStore
from graphweft_workers.replay.app_log import AppLog


class GraphObstacles:
    """Answers a worker about the graph of an app, while its events take effect again."""

    def __init__(self, bus: Bus, graph: GraphStore) -> None:
        self._bus = bus
        self._graph = graph

    async def of(self, app_id: str, partition: int) -> str:
        """See ``Obstacle``. A graph that is new gets the basis of one that the log makes.

        Raises ``BusUnavailable`` and ``GraphUnavailable``.
        """
        log = AppLog(bus=self._bus, app_id=app_id, live=self._graph)
        marks = await log.marks()
        basis = await read_basis(self._graph, app_id)
        way = f"run `graphweft rebuild --app {app_id} --swap`"
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
        if basis == GraphBasis() and all(mark == START for mark in marks.values()):
            if wanted or count:
                await write_basis(self._graph, app_id, partition, replace(basis, rules=wanted, erasures=count))
            return ""
        if basis.rules != wanted:
            return f"the graph of {app_id!r} is from before the past was restated by other rules: {way}"
        if basis.erasures != count:
            return f"the graph of {app_id!r} is from before something was erased, and may hold it: {way}"
        return ""

"""Looks whether the servers of a role answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

from graphweft_contracts import GraphweftError
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.drivers import bus_driver, graph_driver
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.wiring.connections import make_bus, make_graph

logger = get_logger("graphweft.probes")

_WITH_GRAPH: Final = frozenset({"mutation", "injection", "memory", "console"})
"""The roles that ask the graph server; all ask the bus."""
_WRITES_GRAPH: Final = "mutation"
"""The role that writes graphs; all write to the bus."""
_LOOK_S: Final = 2.0
"""So long a server may take to answer."""
_NEXT: Final = "`graphweft doctor` says what fails; this process goes on by itself when the server answers"
_FRESH_S: Final = 1.0
"""What was seen of the servers counts so long: nobody has many questions sent to them."""

type _Fault = Callable[[], Awaitable[str]]
"""Returns why a server takes no writes; empty if it does."""


class ServerLook:
    """Looks whether the servers answer, at most once a second, whoever asks."""

    def __init__(
        self, bus: Bus, graph: GraphStore | None, faults: Mapping[str, _Fault], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Without ``graph``, only the bus is looked at. ``faults`` tell by server why it takes no writes."""
        self._bus = bus
        self._graph = graph
        self._faults = faults
        self._clock = clock
        self._seen: dict[str, bool] = {}
        self._at = 0.0
        self._lines = LogLimit(clock=clock)
        self._looking = asyncio.Lock()

    async def look(self) -> dict[str, bool]:
        """Return, by ``bus`` and ``graph``, whether the server answers, and takes the writes that the role needs."""
        async with self._looking:
            if not self._seen or self._clock.monotonic() - self._at > _FRESH_S:
                looks = {"bus": self._answers("bus", self._bus.partitions.layout)}
                if self._graph is not None:
                    looks["graph"] = self._answers("graph", self._graph.check)
                self._seen = dict(zip(looks, await asyncio.gather(*looks.values()), strict=True))
                self._at = self._clock.monotonic()
            return self._seen

    async def _answers(self, server: str, question: Callable[[], Awaitable[object]]) -> bool:
        """Tell whether a server answers, and takes writes; log when that changes."""
        answered, write_fault = self._seen.get(server, True), self._faults.get(server)
        try:
            async with asyncio.timeout(_LOOK_S):
                await question()
                said = "" if write_fault is None else await write_fault()
        except (GraphweftError, TimeoutError) as error:
            said = str(error) or f"no answer within {_LOOK_S:g} s"
        if said and answered:
            self._lines.warn(logger, "server_unavailable", GraphweftError(said), server=server, next=_NEXT)
        elif not said and not answered:
            logger.info("server_available", server=server)
        return not said


@asynccontextmanager
async def looking_at_servers(settings: Settings, role: str) -> AsyncGenerator[ServerLook]:
    """Look at the servers of a role, by connections of its own, while the block runs."""
    async with AsyncExitStack() as stack:
        bus = make_bus(settings, archived=False)
        stack.push_async_callback(bus.aclose)
        graph = make_graph(settings) if role in _WITH_GRAPH else None
        if graph is not None:
            stack.push_async_callback(graph.aclose)
        faults: dict[str, _Fault] = {"bus": partial(bus_driver(settings.bus).write_fault, settings.bus)}
        if role == _WRITES_GRAPH:
            faults["graph"] = partial(graph_driver(settings.graph).write_fault, settings.graph)
        yield ServerLook(bus, graph, faults)

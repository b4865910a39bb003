"""The servers that a command talks to: connected and seen to answer, or a message that says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from graphweft_contracts import BusUnavailable, GraphUnavailable, NotRunning
from graphweft_workers.bus.log import Bus
from graphweft_workers.graph.neo4j_url import NEO4J_SCHEMES
from graphweft_workers.graph.store import GraphStore
from graphweft_workers.services import make_bus, make_graph
from graphweft_workers.settings import Settings

_ANSWER_S: Final = 15.0
"""A server that stands still keeps its connections open and never answers."""


@asynccontextmanager
async def running_bus(settings: Settings) -> AsyncGenerator[Bus]:
    """Lend the bus for a command. Raises ``NotRunning`` with the next step when it does not answer."""
    bus = make_bus(settings)
    try:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await bus.partitions()
        except (BusUnavailable, TimeoutError) as error:
            raise NotRunning(_no_bus(settings, _reason(error))) from error
        yield bus
    finally:
        await bus.aclose()


@asynccontextmanager
async def running_graph(settings: Settings) -> AsyncGenerator[GraphStore]:
    """Lend the graph store for a command. Raises ``NotRunning`` with the next step when it does not answer."""
    graph = make_graph(settings)
    try:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await graph.check()
        except (GraphUnavailable, TimeoutError) as error:
            raise NotRunning(_no_graph(settings, _reason(error))) from error
        yield graph
    finally:
        await graph.aclose()


def _no_bus(settings: Settings, reason: str) -> str:
    if settings.bus_url is not None:
        return f"nothing usable answers where GRAPHWEFT_BUS_URL points; `graphweft doctor` tells more. {reason}"
    if settings.graph_url is None:
        return _no_embedded(settings)
    return (
        "GRAPHWEFT_GRAPH_URL or NEO4J_URI names a graph, GRAPHWEFT_BUS_URL is not set, and no embedded server runs on "
        f"the data folder {str(settings.data)!r}: set GRAPHWEFT_BUS_URL too"
    )


def _no_graph(settings: Settings, reason: str) -> str:
    if settings.graph_url is not None:
        on_neo4j = settings.graph.partition("://")[0] in NEO4J_SCHEMES
        named = "GRAPHWEFT_GRAPH_URL (or NEO4J_URI)" if on_neo4j else "GRAPHWEFT_GRAPH_URL"
        return f"nothing usable answers where {named} points; `graphweft doctor` tells more. {reason}"
    if settings.bus_url is None:
        return _no_embedded(settings)
    return "GRAPHWEFT_BUS_URL is set and GRAPHWEFT_GRAPH_URL is not: set GRAPHWEFT_GRAPH_URL too"


def _no_embedded(settings: Settings) -> str:
    return (
        f"nothing runs on the data folder {str(settings.data)!r}: start `graphweft up --data {settings.data}`, or set "
        "GRAPHWEFT_DATA to the folder of a running one"
    )


def _reason(error: Exception) -> str:
    words = " ".join(str(error).split())  # drivers write over several lines
    return f"What went wrong: {words}" if words else f"There was no answer within {_ANSWER_S:.0f} s"

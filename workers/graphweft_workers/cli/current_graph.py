"""The graph that a command reads for people: one from before an erasure or a restatement is shown to nobody."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from graphweft_contracts import BusUnavailable, GraphUnavailable, InvalidSettings, NotRunning
from graphweft_workers.cli.output import warn
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.running import running_bus, running_graph


@asynccontextmanager
async def current_graph(settings: Settings, app: str) -> AsyncGenerator[GraphStore]:
    """Yield the graph store, to read the graph of an app.

    Raises ``NotRunning`` like ``running_graph``, and ``GraphUnavailable`` if the graph is from before an erasure or a
    restatement. While the bus does not say whether it is, a warning says that this is not known.
    """
    async with running_graph(settings) as graph:
        if why := await _why_older(settings, graph, app):
            raise GraphUnavailable(why)
        yield graph


async def _why_older(settings: Settings, graph: GraphStore, app: str) -> str:
    from graphweft_workers.ports.basis_comparison import BasisComparison

    try:
        async with running_bus(settings) as bus:
            return await BasisComparison(graph, bus.purges).older(app)
    except (BusUnavailable, InvalidSettings, NotRunning) as error:
        warn(f"it is not known whether the graph of {app!r} is from before an erasure: {error}")
        return ""

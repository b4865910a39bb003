"""The names of properties of a graph."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from graphweft_contracts import QueryFailed
from graphweft_workers.drivers.falkordb.statements import LIST_PROPERTY_NAMES


async def read_property_names(rows: Callable[[str], Awaitable[list[Any]]]) -> frozenset[str]:
    """Return the names of all properties that a graph has ever had; none without a graph.

    ``rows`` runs a query and returns the rows of its compact reply.
    """
    try:
        return frozenset(str(name) for ((_, name),) in await rows(LIST_PROPERTY_NAMES))
    except QueryFailed as error:
        if error.code == "timeout":
            raise
        return frozenset()  # no graph

"""Makes the indexes of a graph anew once in each run of the server.

A server that loads a graph from a snapshot, with which a rewritten append-only file begins, no longer finds the number
0 (nor 0.0 and false) through an index (4.22), and MERGE creates such a node again. New indexes find it. A key beside
the graph names the run of the server in which the indexes were made; one worker makes them, and the others wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final

from redis.exceptions import ResponseError

from graphweft_contracts import GraphUnavailable, channels
from graphweft_workers.drivers.falkordb.statements import LIST_INDEXES, quoted

logger = logging.getLogger("graphweft.graph")

BUILD_S: Final = 10.0
REPAIR_S: Final = 120.0
"""The longest that a repair may take. After so long, another worker takes it over."""
_BUILT: Final = "OPERATIONAL"
_POLL_S: Final = 0.02


async def indexes_of(graph: Any) -> list[tuple[str, str, str]]:
    """Return label, property and kind of each index of a graph."""
    listed = (await graph.query(LIST_INDEXES)).result_set
    return [
        (str(label), str(name), str(kind))
        for label, _, kinds_of in listed
        for name, kinds in kinds_of.items()
        for kind in kinds
    ]


async def until_built(graph: Any, wait_s: float = BUILD_S) -> None:
    """Wait until all indexes are built: a lookup through an unfinished index misses nodes."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        if all(str(status) == _BUILT for _, status, _ in (await graph.query(LIST_INDEXES)).result_set):
            return
        await asyncio.sleep(_POLL_S)
    raise GraphUnavailable(f"the indexes of the graph {graph.name!r} are not built after {wait_s:.0f} s: wait on")


async def make_anew(redis: Any, graph: Any, run: str) -> None:
    """Make the graph's indexes anew if that was not done in this run of the server.

    Raises ``GraphUnavailable`` if another worker does not finish it, and what the server raises.
    """
    key = channels.graph_indexes(graph.name)
    until = time.monotonic() + REPAIR_S
    while await redis.get(key) != run:
        if await redis.set(f"{key}:lock", run, nx=True, px=int(REPAIR_S * 1000)):
            try:
                if await redis.get(key) != run:
                    await _make(redis, graph)
                    await redis.set(key, run)
            finally:
                await redis.delete(f"{key}:lock")
            return
        if time.monotonic() > until:
            raise GraphUnavailable(
                f"another worker has not made the indexes of the graph {graph.name!r} within {REPAIR_S:.0f} s: wait on"
            )
        await asyncio.sleep(_POLL_S)


async def forget(redis: Any, name: str) -> None:
    """Let the indexes of a graph be made anew: another graph has its name now."""
    await redis.delete(channels.graph_indexes(name))


async def _make(redis: Any, graph: Any) -> None:
    found = [(label, name) for label, name, kind in await indexes_of(graph) if kind == "RANGE"]
    for label, name in found:
        for verb in ("DROP", "CREATE"):
            statement = f"{verb} INDEX FOR (n:{quoted(label)}) ON (n.{quoted(name)})"
            try:
                await redis.execute_command("GRAPH.QUERY", graph.name, statement)
            except ResponseError as error:
                logger.warning("index not made by %s: %s", statement, error)
    if found:
        await until_built(graph, REPAIR_S)
        logger.info("%d indexes of the graph %s were made anew", len(found), graph.name)

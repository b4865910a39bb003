"""Exchanges the names of two graphs in one step (tried on 4.22).

FalkorDB refuses its commands in scripts. So the checkpoints are read under WATCH, and a transaction renames both graphs
only if no query has reached the watched one since. Even a query without an effect makes the transaction fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from redis.exceptions import ResponseError, WatchError

from graphweft_contracts import GraphUnavailable, InvalidSettings
from graphweft_workers.drivers.falkordb.statements import READ_CHECKPOINTS, checkpoint_of
from graphweft_workers.ports.graph_store import Checkpoint

_ATTEMPTS = 100
"""Queries of workers that wait, and of indexes, may come between; each attempt takes about a millisecond."""


async def exchange(redis: Any, name: str, other: str, expected: Mapping[int, Checkpoint]) -> bool:
    """See ``WholeGraphs.exchange``. Raises what the server raises."""
    between = f"{name}.{uuid4().hex}"
    for _ in range(_ATTEMPTS):
        async with redis.pipeline(transaction=True) as pipeline:
            await pipeline.watch(name)
            reply = await pipeline.execute_command("GRAPH.RO_QUERY", name, READ_CHECKPOINTS)
            if {partition: checkpoint_of([row[:3]]) for partition, *row in reply[1]} != expected:
                return False
            pipeline.multi()
            pipeline.rename(name, between)
            pipeline.rename(other, name)
            pipeline.rename(between, other)
            try:
                await pipeline.execute()
            except WatchError:
                continue
            except ResponseError as error:
                if "CROSSSLOT" in str(error) or "same slot" in str(error):
                    raise InvalidSettings(
                        f"the graphs {name!r} and {other!r} are on different nodes of the cluster: give both the same "
                        "hash tag, such as {tag}, in --graph-template and GRAPHWEFT_GRAPH_TEMPLATE"
                    ) from error
                raise
            return True
    raise GraphUnavailable(f"other queries came between each attempt to exchange {name!r} and {other!r}: try again")

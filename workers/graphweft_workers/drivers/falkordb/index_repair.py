"""Makes the indexes of a graph anew once in each run of the server.

A server that loads a graph from a snapshot, with which a rewritten append-only file begins, no longer finds the number
0 (nor 0.0 and false) through an index (4.22), and MERGE creates such a node again. New indexes find it, so those of
properties with such values are made anew. A key beside the graph names the run of the server in which that was done;
one worker does it, and the others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from redis.exceptions import RedisError, ResponseError, WatchError

from graphweft_contracts import GraphUnavailable, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.drivers.falkordb.dialect import BUILT
from graphweft_workers.drivers.falkordb.statements import LIST_INDEXES, quoted
from graphweft_workers.drivers.falkordb.timing import FALKORDB_TIMING, FalkorDBTiming
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.graph")


@dataclass(frozen=True, slots=True)
class GraphIndexes:
    """The indexes of a graph."""

    there: frozenset[tuple[str, str, str]]
    """Label, property and kind of each."""
    unfinished: frozenset[str]
    """The labels of which indexes are being built."""


async def indexes_of(graph: Any) -> GraphIndexes:
    """Return the indexes of a graph."""
    listed = (await graph.query(LIST_INDEXES)).result_set
    return GraphIndexes(
        there=frozenset(
            (str(label), str(name), str(kind))
            for label, _, kinds_of in listed
            for name, kinds in kinds_of.items()
            for kind in kinds
        ),
        unfinished=frozenset(str(label) for label, status, _ in listed if str(status) != BUILT),
    )


async def _nothing() -> None:
    pass


async def until_built(
    graph: Any,
    clock: Clock = SYSTEM_CLOCK,
    timing: FalkorDBTiming = FALKORDB_TIMING,
    *,
    label: str | None = None,
    wait_s: float | None = None,
    going_on: Callable[[], Awaitable[None]] = _nothing,
) -> None:
    """Wait until all indexes, or those of a label, are built, ``wait_s`` at most. ``going_on`` is called now and then.

    A lookup through an unfinished index misses nodes. A change of the indexes of a label while one is being built
    stops the whole server until that is built (4.22): with a vector index, 16 s for 8,000 nodes.
    """
    wait_s = timing.build_s if wait_s is None else wait_s
    until = clock.monotonic() + wait_s
    while clock.monotonic() < until:
        unfinished = (await indexes_of(graph)).unfinished
        if label not in unfinished if label is not None else not unfinished:
            return
        await going_on()
        await clock.sleep(timing.index_step_s)
    raise GraphUnavailable(f"the indexes of the graph {graph.name!r} are not built after {wait_s:.0f} s: wait on")


async def make_anew(
    redis: Any, graph: Any, run: str, clock: Clock = SYSTEM_CLOCK, timing: FalkorDBTiming = FALKORDB_TIMING
) -> None:
    """Make the graph's indexes anew if that was not done in this run of the server.

    Raises ``GraphUnavailable`` if another worker does not finish it, and what the server raises.
    """
    key = channels.graph_indexes(graph.name)
    until = clock.monotonic() + timing.repair_s
    while await redis.get(key) != run:
        lock = _Lock(redis, f"{key}:lock", clock, timing)
        if await lock.take():
            try:
                if await redis.get(key) != run:
                    await _make(redis, graph, lock, clock, timing)
                    await lock.renew()
                    await redis.set(key, run)
            finally:
                await lock.release()
            return
        if clock.monotonic() > until:
            raise GraphUnavailable(
                f"another worker has not made the indexes of the graph {graph.name!r} within {timing.repair_s:.0f} s: "
                "wait on"
            )
        await clock.sleep(timing.index_step_s)


async def are_new(redis: Any, name: str, run: str) -> None:
    """Note that all indexes of a graph were made in this run of the server."""
    await redis.set(channels.graph_indexes(name), run)


async def forget(redis: Any, name: str) -> None:
    """Let the indexes of a graph be made anew: another graph has its name now."""
    await redis.delete(channels.graph_indexes(name))


async def _make(redis: Any, graph: Any, lock: _Lock, clock: Clock, timing: FalkorDBTiming) -> None:
    there = sorted((await indexes_of(graph)).there)
    found = [(label, name) for label, name, kind in there if kind == "RANGE" and await _has_zero(graph, label, name)]
    for label, name in found:
        for verb in ("DROP", "CREATE"):
            await until_built(graph, clock, timing, label=label, wait_s=timing.repair_s, going_on=lock.renew)
            await lock.renew()
            statement = f"{verb} INDEX FOR (n:{quoted(label)}) ON (n.{quoted(name)})"
            try:
                await redis.execute_command("GRAPH.QUERY", graph.name, statement)
            except ResponseError as error:
                logger.warning("index_not_made", graph=graph.name, statement=statement, error=str(error))
    if found:
        await until_built(graph, clock, timing, wait_s=timing.repair_s, going_on=lock.renew)
        logger.info("indexes_made_anew", graph=graph.name, indexes=len(found))


async def _has_zero(graph: Any, label: str, name: str) -> bool:
    """Tell whether a node has a value that the index may have lost; of a list, that one of its items may be lost."""
    value = f"coalesce(n.{quoted(name)})"  # no index is used for an expression
    try:
        rows = await graph.ro_query(
            f"MATCH (n:{quoted(label)}) WHERE {value} = 0 OR {value} = false OR typeOf({value}) = 'List' "
            "RETURN 1 LIMIT 1"
        )
    except ResponseError:  # it took too long
        return True
    return bool(rows.result_set)


class _Lock:
    """A lock that its holder renews, so that the others soon go on after a holder that was killed.

    The holder renews it before each command. It ends later than a command that the server does not answer.
    """

    def __init__(self, redis: Any, key: str, clock: Clock, timing: FalkorDBTiming) -> None:
        self._clock = clock
        self._lock_s = timing.lock_s
        self._redis = redis
        self._key = key
        self._token = uuid4().hex
        self._renew_at = 0.0

    async def take(self) -> bool:
        """Take the lock if nobody has it. A caller that is cancelled meanwhile leaves no lock."""
        taking = asyncio.ensure_future(
            self._redis.set(self._key, self._token, nx=True, px=int(self._lock_s * 1000))
        )  # fmt: skip
        try:
            taken = bool(await asyncio.shield(taking))
        except asyncio.CancelledError:
            # The server may take the command after whatever another connection sends now: so wait for its reply.
            await asyncio.gather(taking, return_exceptions=True)
            await self.release()
            raise
        self._renew_at = self._clock.monotonic() + self._lock_s / 3
        return taken

    async def renew(self) -> None:
        """Keep the lock. Raises ``GraphUnavailable`` if another worker has it now."""
        now = self._clock.monotonic()
        if now < self._renew_at:
            return
        if not await self._change(lambda pipeline: pipeline.set(self._key, self._token, px=int(self._lock_s * 1000))):
            raise GraphUnavailable("another worker makes the indexes of the graph now: wait for it")
        self._renew_at = now + self._lock_s / 3

    async def release(self) -> None:
        """Give up the lock, unless another worker has it now. While the server is unavailable, it ends by itself."""
        with contextlib.suppress(RedisError, OSError):  # an error would take the place of a cancellation
            await self._change(lambda pipeline: pipeline.delete(self._key))

    async def _change(self, command: Callable[[Any], object]) -> bool:
        """Run a command if the lock is still held; FalkorDB's users may run no scripts."""
        async with self._redis.pipeline(transaction=True) as pipeline:
            await pipeline.watch(self._key)
            if await pipeline.get(self._key) != self._token:
                return False
            pipeline.multi()
            command(pipeline)
            try:
                await pipeline.execute()
            except WatchError:
                return False
            return True

"""Makes the indexes of a graph anew once in each run of the server.

A server that loads a graph from a snapshot, with which a rewritten append-only file begins, no longer finds the number
0 (nor 0.0 and false) through an index (4.22), and MERGE creates such a node again. New indexes find it. A key beside
the graph names the run of the server in which the indexes were made; one worker makes them, and the others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from redis.exceptions import RedisError, ResponseError, WatchError

from graphweft_contracts import GraphUnavailable, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.drivers.falkordb.dialect import BUILT
from graphweft_workers.drivers.falkordb.statements import LIST_INDEXES, quoted
from graphweft_workers.drivers.falkordb.timing import FALKORDB_TIMING, FalkorDBTiming
from graphweft_workers.lazy_logger import get_logger

logger = get_logger("graphweft.graph")


async def indexes_of(graph: Any) -> list[tuple[str, str, str]]:
    """Return label, property and kind of each index of a graph."""
    listed = (await graph.query(LIST_INDEXES)).result_set
    return [
        (str(label), str(name), str(kind))
        for label, _, kinds_of in listed
        for name, kinds in kinds_of.items()
        for kind in kinds
    ]


async def _nothing() -> None:
    pass


async def until_built(
    graph: Any,
    clock: Clock = SYSTEM_CLOCK,
    timing: FalkorDBTiming = FALKORDB_TIMING,
    *,
    wait_s: float | None = None,
    going_on: Callable[[], Awaitable[None]] = _nothing,
) -> None:
    """Wait until all indexes are built, ``wait_s`` at most: a lookup through an unfinished index misses nodes.

    ``going_on`` is called now and then.
    """
    wait_s = timing.build_s if wait_s is None else wait_s
    until = clock.monotonic() + wait_s
    while clock.monotonic() < until:
        if all(str(status) == BUILT for _, status, _ in (await graph.query(LIST_INDEXES)).result_set):
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
    found = [(label, name) for label, name, kind in await indexes_of(graph) if kind == "RANGE"]
    for label, name in found:
        for verb in ("DROP", "CREATE"):
            await lock.renew()
            statement = f"{verb} INDEX FOR (n:{quoted(label)}) ON (n.{quoted(name)})"
            try:
                await redis.execute_command("GRAPH.QUERY", graph.name, statement)
            except ResponseError as error:
                logger.warning("index_not_made", graph=graph.name, statement=statement, error=str(error))
    if found:
        await until_built(graph, clock, timing, wait_s=timing.repair_s, going_on=lock.renew)
        logger.info("indexes_made_anew", graph=graph.name, indexes=len(found))


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

"""Lets the slow reads of a graph and its writes take turns, across all processes.

A write waits until the reads of its graph have ended. FalkorDB 4.22 holds the lock of the whole server while it waits,
so one slow read and one write to the same graph stop every app, and on Redis the bus too. Slow reads therefore say that
they run, in sorted sets on the graph server, and a write to their graph is sent only once they have ended.

Both sides first say that they are there, and then look for the other side; so at least one of them sees the other. The
read withdraws, the write waits. A read that has waited for long goes before writes that have not begun, and a write
that has waited for longer goes before all reads that have not. An entry has the server's time as its end: what a killed
process has left counts no longer than that.

Writes pay nothing while no slow reads are known: a reader announces its graph, and begins when the workers, which look
four times a second, have seen it.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import NoPermissionError, RedisError

from graphweft_contracts import channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.drivers.falkordb.timing import FALKORDB_TIMING, FalkorDBTiming
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.refused_right import AGAIN_S, RefusedRight
from graphweft_workers.support.tasks import end_tasks

logger = get_logger("graphweft.graph")

_MOST_GRAPHS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A slow read that runs, or waits since a time of the server."""

    runs: bool
    since_ms: int
    id: str
    graph: str

    def __str__(self) -> str:
        return f"{'r' if self.runs else 'w'}:{self.since_ms}:{self.id}:{self.graph}"

    @classmethod
    def of(cls, name: str) -> _Read:
        state, since, id, graph = name.split(":", 3)
        return cls(runs=state == "r", since_ms=int(since), id=id, graph=graph)


class ReadTurns:
    """The turns of one process; make one for each client. If its user lacks the rights, nobody waits here."""

    def __init__(self, client: Any, *, clock: Clock = SYSTEM_CLOCK, timing: FalkorDBTiming = FALKORDB_TIMING) -> None:
        self._client = client
        self._clock = clock
        self._timing = timing
        self._ahead_ms: float | None = None
        """How far the server's clock is ahead of this process's monotonic one."""
        self._asked_at = 0.0
        """When the server was last asked for its time."""
        self._announced: dict[str, float] = {}
        """By graph: the server's time of its last announcement."""
        self._heeded: frozenset[str] = frozenset()
        """Graphs with slow reads, as writers know them."""
        self._looking: asyncio.Task[None] | None = None
        self._looks = RefusedRight(clock)
        self._turns = RefusedRight(clock)
        self._closed = False

    async def aclose(self) -> None:
        """Stop looking for announced graphs."""
        self._closed = True
        await end_tasks(self._looking)

    @asynccontextmanager
    async def reading(self, graph: str, *, until: float, of_graph: int, of_all: int) -> AsyncGenerator[None]:
        """Wait for the turn of a slow read that ends at the monotonic time ``until`` at the latest.

        At most ``of_graph`` slow reads of a graph, and ``of_all`` of the server, have a turn at the same time. Raises
        ``TimeoutError`` if there is no turn before ``until``, and ``RedisError`` or ``OSError`` without a server.
        """
        names: list[str] = []
        try:
            if self._turns.is_due:
                try:
                    async with asyncio.timeout(max(0.0, until - self._clock.monotonic())):
                        await self._enter(graph, until, of_graph, of_all, names)
                    self._turns.allow()
                except NoPermissionError as error:
                    self._refuse(self._turns, error)
            yield
        finally:
            if names and not self._turns.is_refused:
                with suppress(RedisError, OSError):
                    await self._client.zrem(channels.SLOW_READS, *names)

    def heeds(self, graph: str) -> bool:
        """Tell whether writes of a graph need a turn."""
        if self._looking is None and not self._closed:
            self._looking = asyncio.create_task(self._look(), name="graphweft-slow-reads")
        return graph in self._heeded and self._turns.is_due

    @asynccontextmanager
    async def writing(self, graph: str) -> AsyncGenerator[None]:
        """Wait until no slow read of a graph runs; none begins in the block. It costs nothing without slow reads."""
        if not self.heeds(graph):
            yield
            return
        name = f"{uuid.uuid4().hex}:{graph}"
        try:
            try:
                await self._wait_for_reads(graph, name)
                self._turns.allow()
            except NoPermissionError as error:
                self._refuse(self._turns, error)
            yield
        finally:
            with suppress(RedisError, OSError):
                await self._client.zrem(channels.SLOW_WRITES, name)

    async def _wait_for_reads(self, graph: str, name: str) -> None:
        """Return when no slow read of a graph runs; ``name`` is that of the write."""
        yields_until_ms = await self._now_ms() + self._timing.yields_ms
        while True:
            now_ms = await self._now_ms()
            pipeline = self._client.pipeline(transaction=False)
            pipeline.zadd(channels.SLOW_WRITES, {name: now_ms + self._timing.write_ms})
            pipeline.zrangebyscore(channels.SLOW_READS, now_ms, "+inf")
            _, names = await pipeline.execute()
            reads = _of_graph(graph, names)
            yields = now_ms < yields_until_ms
            if yields and any(not read.runs and now_ms - read.since_ms > self._timing.first_ms for read in reads):
                await self._client.zrem(channels.SLOW_WRITES, name)
            elif not any(read.runs for read in reads):
                return
            await self._clock.sleep(self._timing.turn_step_s)

    async def _enter(self, graph: str, until: float, of_graph: int, of_all: int, names: list[str]) -> None:
        """Return when a read has its turn; ``names`` gets what to remove at its end."""
        await self._announce(graph)
        since_ms, id = int(await self._now_ms()), uuid.uuid4().hex
        runs = str(_Read(runs=True, since_ms=since_ms, id=id, graph=graph))
        waits = str(_Read(runs=False, since_ms=since_ms, id=id, graph=graph))
        names += (runs, waits)
        while True:
            now_ms = await self._now_ms()
            ends_ms = now_ms + (until - self._clock.monotonic()) * 1000 + self._timing.end_ms
            pipeline = self._client.pipeline(transaction=False)
            pipeline.zremrangebyscore(channels.SLOW_READS, "-inf", now_ms)
            pipeline.zadd(channels.SLOW_READS, {runs: ends_ms})
            pipeline.zrangebyscore(channels.SLOW_READS, now_ms, "+inf")
            pipeline.zrangebyscore(channels.SLOW_WRITES, now_ms, "+inf")
            *_, reads, writes = await pipeline.execute()
            running = [read for read in map(_Read.of, reads) if read.runs]
            own = sum(read.graph == graph for read in running)
            written = any(write.partition(":")[2] == graph for write in writes)
            if own <= of_graph and len(running) <= of_all and not written:
                await self._client.zrem(channels.SLOW_READS, waits)
                return
            pipeline = self._client.pipeline(transaction=False)
            pipeline.zrem(channels.SLOW_READS, runs)
            pipeline.zadd(channels.SLOW_READS, {waits: now_ms + self._timing.waits_ms})
            await pipeline.execute()
            # Two reads that see each other both withdraw, so each waits for a time of its own.
            await self._clock.sleep(self._timing.turn_step_s * random.uniform(0.5, 1.5))

    async def _announce(self, graph: str) -> None:
        """Return once all workers know that a graph has slow reads."""
        now_ms = await self._now_ms()
        announced = self._announced.get(graph)
        if announced is None or now_ms - announced > self._timing.again_ms:
            ends = await self._client.zscore(channels.SLOW_GRAPHS, graph)
            pipeline = self._client.pipeline(transaction=False)
            pipeline.zremrangebyscore(channels.SLOW_GRAPHS, "-inf", now_ms)
            pipeline.zadd(channels.SLOW_GRAPHS, {graph: now_ms + self._timing.announced_ms})
            await pipeline.execute()
            if announced is None and ends is not None and float(ends) > now_ms:
                announced = float(ends) - self._timing.announced_ms  # by another process
            elif announced is None or now_ms - announced > self._timing.announced_ms:
                announced = now_ms
            await self._clock.sleep(max(0.0, announced + self._timing.seen_ms - now_ms) / 1000)
            # Now, so that it is announced again in time; the workers have known of it without a gap.
            self._announced[graph] = now_ms
            if len(self._announced) > _MOST_GRAPHS:
                del self._announced[next(iter(self._announced))]

    async def _look(self) -> None:
        while not self._closed:
            try:
                announced = await self._client.zrangebyscore(channels.SLOW_GRAPHS, "-inf", "+inf", withscores=True)
                # Usually none is, and the time is not needed.
                now_ms = await self._now_ms(again=True) if announced else 0.0
                self._heeded = frozenset(graph for graph, until_ms in announced if until_ms >= now_ms)
                self._looks.allow()
            except NoPermissionError as error:
                self._heeded = frozenset()
                self._refuse(self._looks, error)
                await self._clock.sleep(AGAIN_S)
            except (RedisError, OSError):
                pass  # the next write tells that the server is unavailable
            await self._clock.sleep(self._timing.announced_look_s)

    async def _now_ms(self, *, again: bool = False) -> float:
        """Return the server's time in milliseconds; it is asked anew as often as a read announces its graph.

        Its clock may be set, another server may take its place, and this machine may have slept.
        """
        ahead_ms, now_s = self._ahead_ms, self._clock.monotonic()
        if ahead_ms is None or again or (now_s - self._asked_at) * 1000 > self._timing.again_ms:
            seconds, micros = await self._client.time()
            self._asked_at = self._clock.monotonic()
            ahead_ms = self._ahead_ms = float(seconds * 1000 + micros / 1000 - self._asked_at * 1000)
        return self._clock.monotonic() * 1000 + ahead_ms

    def _refuse(self, right: RefusedRight, error: NoPermissionError) -> None:
        is_known = self._looks.is_refused or self._turns.is_refused
        right.refuse()
        if not is_known:
            logger.warning(
                "read_turns_off",
                keys=f"{channels.SLOW}:*",
                error=str(error),
                next="a slow query of one app can stop all apps while its graph is written: give the user of the graph "
                "server the lines of `graphweft acl falkordb` again; they are used within a minute",
            )


def _of_graph(graph: str, names: Iterable[str]) -> list[_Read]:
    return [read for read in map(_Read.of, names) if read.graph == graph]

"""Waits for new entries of many streams over one connection."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError, ResponseError

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.drivers.redis.timing import REDIS_BUS_TIMING, RedisBusTiming
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.refused_right import RefusedRight
from graphweft_workers.support.tasks import end_tasks

logger = get_logger("graphweft.bus")


def offset_number(offset: str) -> tuple[int, int]:
    """Return an offset as numbers, which are in the order of the stream; the empty offset comes first."""
    if not offset:
        return (0, 0)
    milliseconds, _, sequence = offset.partition("-")
    return (int(milliseconds), int(sequence))


@dataclass(eq=False, slots=True, kw_only=True)
class _Waiting:
    stream: str
    after: str
    until: float
    found: asyncio.Future[bool]


class StreamWaiter:
    """Blocks one connection on all streams that somebody waits for.

    One XREAD names all of them. A further stream ends it by CLIENT UNBLOCK, and the next XREAD names that one too. A
    connection for each stream would be simpler, but a worker that reads 64 partitions would hold 64.
    """

    def __init__(self, client: Any, *, clock: Clock = SYSTEM_CLOCK, timing: RedisBusTiming = REDIS_BUS_TIMING) -> None:
        """``client`` is a ``redis.asyncio.Redis`` whose connections time out later than any wait ends."""
        self._client = client
        self._clock = clock
        self._timing = timing
        self._waiting: set[_Waiting] = set()
        self._task: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None
        self._named: frozenset[_Waiting] = frozenset()
        """Those whose streams the running XREAD names."""
        self._connection_id: int | None = None
        self._unblocks = RefusedRight(clock)

    async def wait(self, stream: str, after: str, wait_s: float) -> bool:
        """Return True when a stream has an entry after an offset, and False after ``wait_s``.

        Raises ``RedisError`` or ``OSError``.
        """
        waiting = _Waiting(
            stream=stream,
            after=after or "0-0",
            until=self._clock.monotonic() + wait_s,
            found=asyncio.get_running_loop().create_future(),
        )
        self._waiting.add(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="graphweft-stream-waiter")
        elif self._named and self._unblocks.is_due and (self._waking is None or self._waking.done()):
            self._waking = asyncio.create_task(self._wake())
        try:
            return await waiting.found
        finally:
            self._waiting.discard(waiting)

    async def aclose(self) -> None:
        """End; those who wait get an ``OSError``."""
        tasks = [task for task in (self._task, self._waking) if task is not None]
        await end_tasks(*tasks)

    async def _run(self) -> None:
        error: Exception = OSError("the connection is closed")
        connection = self._client.client()
        try:
            self._connection_id = int(await connection.execute_command("CLIENT", "ID"))
            while self._waiting:
                await self._look(connection)
        except (RedisError, OSError) as failure:
            error = failure
        finally:
            with contextlib.suppress(RedisError, OSError):
                await connection.aclose()
            self._named = frozenset()
            self._connection_id = None
            for each in self._waiting:
                if not each.found.done():
                    each.found.set_exception(error)

    async def _look(self, connection: Any) -> None:
        now = self._clock.monotonic()
        after: dict[str, str] = {}
        for each in self._waiting:
            known = after.get(each.stream)
            if known is None or offset_number(each.after) < offset_number(known):
                after[each.stream] = each.after
        longest_s = self._timing.slice_s if self._unblocks.is_refused else self._timing.longest_wait_s
        wait_s = min(max(0.001, min(each.until for each in self._waiting) - now), longest_s)
        self._named = frozenset(self._waiting)
        try:
            reply = await connection.execute_command(
                "XREAD", "COUNT", 1, "BLOCK", max(1, int(wait_s * 1000)), "STREAMS", *after, *after.values()
            )
        finally:
            named, self._named = self._named, frozenset()
        grown = {name.decode() for name, _ in reply or ()}
        now = self._clock.monotonic()
        for each in named:
            if (each.stream in grown or each.until <= now + 0.001) and not each.found.done():
                each.found.set_result(each.stream in grown)
                self._waiting.discard(each)

    async def _wake(self) -> None:
        """End the running XREAD. The server may not have begun it yet, so ask until it has ended."""
        named = self._named
        while self._named is named and named:
            try:
                ended = await self._client.execute_command("CLIENT", "UNBLOCK", self._connection_id)
                self._unblocks.allow()
                if ended:
                    return
            except ResponseError as error:
                if self._unblocks.refuse():
                    logger.warning("client_unblock_refused", error=str(error), next="allow this user CLIENT UNBLOCK")
                return
            except (RedisError, OSError):
                return  # the XREAD fails too
            await self._clock.sleep(self._timing.unblock_s)

"""Tells a write that took long from one that waited for it.

From its first write on, a query keeps all others from writing, and the execution time and the time limit of those
others include their wait (4.22): beside a write of 0.9 s, one of a millisecond took 1.2 s. The server does not say who
waited. So each worker says on the server which of its writes took long, when, and how long their statements usually
take, and looks who else said so at the same time. Of writes of several graphs that overlap, the one whose statement
usually takes longest had the server.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import RedisError

from graphweft_contracts import channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.drivers.falkordb.timing import FALKORDB_TIMING, FalkorDBTiming
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.refused_right import RefusedRight

logger = get_logger("graphweft.graph")

_CLEARLY: Final = 2.0
"""How many times as long as another the statement of a write usually takes that the other is believed to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongWrite:
    """A write that took long, by the time of the server in milliseconds."""

    graph: str
    began_ms: float
    ended_ms: float
    usual_s: float
    """What its statement usually takes in this graph, without waits."""

    def encode(self) -> str:
        """Return it as text; no two are equal."""
        usual_us = round(self.usual_s * 1e6)
        return f"{self.began_ms:.0f}:{self.ended_ms:.0f}:{usual_us}:{uuid.uuid4().hex}:{self.graph}"

    @classmethod
    def decode(cls, text: str) -> LongWrite | None:
        """Read what ``encode`` has made; None for what is in another form, as another version may write it."""
        try:
            began, ended, usual_us, _, graph = text.split(":", 4)
            return cls(graph=graph, began_ms=int(began), ended_ms=int(ended), usual_s=int(usual_us) / 1e6)
        except (ValueError, OverflowError):
            return None


def waited_s(write: LongWrite, others: Iterable[LongWrite]) -> float:
    """Return for how long a write is believed to have waited for writes of other graphs."""
    found_ms, counted_ms = 0.0, write.began_ms
    for other in sorted(others, key=lambda each: each.began_ms):
        if other.graph != write.graph and other.usual_s > _CLEARLY * write.usual_s:
            end_ms = min(other.ended_ms, write.ended_ms)
            found_ms += max(0.0, end_ms - max(other.began_ms, counted_ms))
            counted_ms = max(counted_ms, end_ms)
    return found_ms / 1000


class LongWrites:
    """The long writes of all workers of a graph server."""

    def __init__(self, client: Any, *, clock: Clock = SYSTEM_CLOCK, timing: FalkorDBTiming = FALKORDB_TIMING) -> None:
        self._client = client
        self._clock = clock
        self._timing = timing
        self._allowed = RefusedRight(clock)

    async def waited_s(
        self, graph: str, began_s: float, ended_s: float, usual_s: Sequence[float], *, look: bool = True
    ) -> list[float]:
        """Say that writes of a graph took long; return for how long each of them has waited for others.

        They were under way from ``began_s`` to ``ended_s`` on the monotonic clock; ``usual_s`` is what the statement of
        each usually takes. Without ``look``, or if the server does not answer, none has waited.
        """
        try:
            seconds, micros = await self._client.time()
            ahead_ms = seconds * 1000 + micros / 1000 - self._clock.monotonic() * 1000
            began_ms, ended_ms = began_s * 1000 + ahead_ms, ended_s * 1000 + ahead_ms
            writes = [LongWrite(graph=graph, began_ms=began_ms, ended_ms=ended_ms, usual_s=each) for each in usual_s]
            pipeline = self._client.pipeline(transaction=False)
            pipeline.zremrangebyscore(channels.LONG_WRITES, "-inf", ended_ms - self._timing.long_kept_ms)
            pipeline.zadd(channels.LONG_WRITES, {write.encode(): ended_ms for write in writes})
            await pipeline.execute()
            if not look:
                return [0.0] * len(writes)
            await self._clock.sleep(self._timing.long_look_s)  # others that ended at the same time say so, too
            others = await self._client.zrangebyscore(channels.LONG_WRITES, began_ms, "+inf")
        except (RedisError, OSError) as error:
            self._warn(error)
            return [0.0] * len(usual_s)
        self._allowed.allow()
        said = [found for other in others if (found := LongWrite.decode(other)) is not None]
        return [waited_s(write, said) for write in writes]

    def _warn(self, error: Exception) -> None:
        if self._allowed.refuse():
            logger.warning(
                "long_writes_unknown",
                error=str(error),
                next="apps may rest for the time that their writes wait for those of others: if the user of the graph "
                f"server lacks rights on {channels.LONG_WRITES}, give it the lines of `graphweft acl falkordb` again",
            )

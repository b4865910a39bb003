"""How long writes take, and how long they may: from its first write on, a query keeps the server from other work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import Clock
from graphweft_workers.drivers.falkordb.errors import TIMED_OUT
from graphweft_workers.drivers.falkordb.late_work import works_late
from graphweft_workers.drivers.falkordb.long_writes import LongWrites
from graphweft_workers.drivers.falkordb.rows import run_time_ms
from graphweft_workers.drivers.falkordb.shared_queries import SHARED_MS, WriteQuery
from graphweft_workers.drivers.falkordb.timing import FalkorDBTiming
from graphweft_workers.ports.graph_store import Write

PIPELINE: Final = 500
"""Queries of one round trip; it bounds the server's queue."""
_UNKNOWN_S: Final = 0.02
"""The assumed time of a statement that was not sent before."""
_FADING: Final = 0.9
"""What remains of a long time with each further query that is quicker."""
_MUCH_LONGER: Final = 10.0
"""How many times as long as usual a surprise takes."""
_UNLIMITED_MS: Final = 1 << 31


class WriteTimes:
    """The times of statements, which bound what is sent together."""

    def __init__(self, long_writes: LongWrites, clock: Clock, timing: FalkorDBTiming) -> None:
        self._long_writes = long_writes
        self._clock = clock
        self._timing = timing
        self._times: BoundedDict[tuple[str, str], float] = BoundedDict()
        """By graph and statement: about the longest time of its latest queries, without waits."""
        self._surprises: BoundedDict[str, float] = BoundedDict()
        """By graph: when a quick statement last took long and no other write explained it, on the monotonic clock."""

    def most(self, graph: str, writes: Sequence[Write], first: int, most_s: float) -> int:
        """Return how many writes from ``first`` on take no longer than ``most_s`` together; at least one."""
        left = most_s
        end = min(len(writes), first + PIPELINE)
        for number in range(first, end):
            left -= self._usual_s(graph, writes[number])
            if left < 0:
                return max(1, number - first)
        return end - first

    def limit_ms(self, writes: Sequence[Write], query: WriteQuery) -> int:
        """Return the time limit of a query for writes; that of the store may be lower."""
        if query.shared:
            return SHARED_MS
        write = writes[query.first]
        if write.limit == "full" or write.query is None or not works_late(write.query.outline):
            return _UNLIMITED_MS
        if write.limit == "long":
            return self._timing.long_ms
        return self._timing.short_ms if len(write.rows) == 1 else self._timing.rows_ms

    async def held_s(
        self, graph: str, writes: Sequence[Write], queries: Sequence[WriteQuery], replies: Sequence[Any], began_s: float
    ) -> tuple[list[float], bool]:
        """Return, by write, for how long the server may have done nothing else, and learn from it.

        Also return whether a query ran into its limit that did little but wait for others: no fault of its own.

        The queries were sent at ``began_s`` on the monotonic clock, and the replies have just come. A write that ran
        into its limit is the last one: those after it had no effect. To undo it may take longer than the limit, and the
        server does not say how long, so it has what is left of the time since then. What a query waited for others does
        not count.
        """
        ended_s = self._clock.monotonic()
        took = self._took_s(queries, replies, ended_s - began_s)
        done, has_waited = queries[: len(took)], False
        holds = [_may_hold(writes, query) for query in done]
        long = [number for number, took_s in enumerate(took) if holds[number] and took_s >= self._timing.long_s]
        if long:
            usual_s = [self._expected_s(graph, _writes_of(writes, done[each])) for each in long]
            look = all(write.limit != "full" for write in writes)  # who replays does not rest
            waited = await self._long_writes.waited_s(graph, began_s, ended_s, usual_s, look=look)
            for number, usual, waited_s in zip(long, usual_s, waited, strict=True):
                left_s = max(0.0, took[number] - waited_s)
                if look and left_s >= self._timing.long_s and self._is_surprise(graph, left_s, usual):
                    left_s = 0.0
                if _timed_out(replies[number]):
                    has_waited = left_s < min(took[number] / 2, self._timing.long_s)
                took[number] = left_s
        found: list[float] = []
        for query, took_s, may_hold in zip(done, took, holds, strict=True):
            share_s = took_s / (query.end - query.first)
            for write in _writes_of(writes, query):
                found.append(share_s if may_hold else 0.0)
                if write.query is not None:
                    key = graph, write.query.statement
                    self._times[key] = max(share_s, _FADING * self._times.get(key, 0.0))
        refused = next((number for number, reply in enumerate(replies) if isinstance(reply, Exception)), None)
        return found if refused is None or refused < len(done) else [*found, 0.0], has_waited

    def _is_surprise(self, graph: str, took_s: float, usual_s: float) -> bool:
        """Tell whether a long time of a quick statement is the first one of its graph for long.

        Work that no worker announces may have had the server or the machine. If it comes again, it is the statement's.
        """
        if took_s < _MUCH_LONGER * usual_s:
            return False
        now = self._clock.monotonic()
        last = self._surprises.get(graph)
        self._surprises[graph] = now
        return last is None or now - last >= self._timing.surprise_s

    def _took_s(self, queries: Sequence[WriteQuery], replies: Sequence[Any], elapsed_s: float) -> list[float]:
        """Return the times of queries up to the first that failed, with it if it ran into its limit."""
        found: list[float] = []
        for _, reply in zip(queries, replies, strict=True):
            if isinstance(reply, Exception):
                if _timed_out(reply):
                    found.append(max(0.0, elapsed_s - sum(found)))
                break
            found.append((run_time_ms(reply) or 0.0) / 1000)
        return found

    def _expected_s(self, graph: str, writes: Sequence[Write]) -> float:
        """Return what writes that took long together usually take: a new one rather had the server than a quick one."""
        known = [self._times.get((graph, write.query.statement)) for write in writes if write.query is not None]
        return sum(self._timing.long_s if each is None else each for each in known)

    def _usual_s(self, graph: str, write: Write) -> float:
        return 0.0 if write.query is None else self._times.get((graph, write.query.statement), _UNKNOWN_S)


def _writes_of(writes: Sequence[Write], query: WriteQuery) -> Sequence[Write]:
    return writes[query.first : query.end]


def _may_hold(writes: Sequence[Write], query: WriteQuery) -> bool:
    """Tell whether a query may do more than a little work after its first write."""
    return query.shared or any(
        write.query is not None and works_late(write.query.outline) for write in _writes_of(writes, query)
    )


def _timed_out(reply: Any) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith(TIMED_OUT)

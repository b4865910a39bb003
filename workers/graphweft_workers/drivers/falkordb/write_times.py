"""How long writes take, and how long they may: from its first write on, a query keeps the server from other work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_workers.drivers.falkordb.errors import TIMED_OUT
from graphweft_workers.drivers.falkordb.late_work import works_late
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
_UNLIMITED_MS: Final = 1 << 31


class WriteTimes:
    """The times of statements, which bound what is sent together."""

    def __init__(self, timing: FalkorDBTiming) -> None:
        self._timing = timing
        self._times: BoundedDict[str, float] = BoundedDict()
        """By statement: about the longest time of its latest queries."""

    def most(self, writes: Sequence[Write], first: int, most_s: float) -> int:
        """Return how many writes from ``first`` on take no longer than ``most_s`` together; at least one."""
        left = most_s
        end = min(len(writes), first + PIPELINE)
        for number in range(first, end):
            query = writes[number].query
            if query is not None:
                left -= self._times.get(query.statement, _UNKNOWN_S)
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

    def held_s(
        self, writes: Sequence[Write], queries: Sequence[WriteQuery], replies: Sequence[Any], elapsed_s: float
    ) -> list[float]:
        """Return, by write, for how long the server may have done nothing else; learn from it.

        A write that ran into its limit is the last one: those after it had no effect. To undo it may take longer than
        the limit, and the server does not say how long, so it has what is left of ``elapsed_s``.
        """
        found: list[float] = []
        for query, reply in zip(queries, replies, strict=True):
            failed = isinstance(reply, Exception)
            if failed and not str(reply).startswith(TIMED_OUT):
                return [*found, 0.0]
            took_s = max(0.0, elapsed_s) if failed else (run_time_ms(reply) or 0.0) / 1000
            elapsed_s -= took_s
            took_s /= query.end - query.first
            for write in writes[query.first : query.end]:
                late = write.query is not None and works_late(write.query.outline)
                found.append(took_s if late or query.shared else 0.0)
                if write.query is not None:
                    statement = write.query.statement
                    self._times[statement] = max(took_s, _FADING * self._times.get(statement, 0.0))
            if failed:
                break
        return found

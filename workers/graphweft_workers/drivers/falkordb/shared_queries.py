"""Writes with few rows share one query, which has one guard and moves the checkpoint once (tried on 4.22)::

    MATCH (__gw:__Progress) WHERE … WITH __gw
    CALL { UNWIND $__gw_rows0 AS row … } CALL { UNWIND $__gw_rows1 AS row … } …
    SET __gw.pos = …

If each write has one row, the subqueries are the rules' own texts, whose parameters have names of their own.

The server ends one subquery before it begins the next, so each sees what those before it wrote. A query waits a quarter
of a millisecond for the server's threads, which is longer than a few rows take. If a shared query is refused, the store
sends its writes apart, which shows the one at fault.

From its first write on, a query blocks the server's main thread. Apart, a mutation that searches for long before it
writes blocks nobody; in a shared query it may. So a shared query has few rows and a short time limit, and what takes
long runs apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from graphweft_contracts import QueryFailed
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.falkordb.statements import are_single, guarded, spares_checkpoints
from graphweft_workers.ports.graph_store import Write

SHARED_MS: Final = 250
"""The time limit of a shared query."""
SLOW_MS: Final = 25.0
"""A shared query that runs longer is not shared the next times."""
_ROWS: Final = 200
"""Rows of a shared query; more gain nothing."""
_WRITES: Final = 12
_APART: Final = 50
"""How often mutations run apart after their shared query was refused or slow."""
_SEQUENCES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteQuery:
    """The text for the writes with the numbers from ``first`` to before ``end``."""

    first: int
    end: int
    text: str

    @property
    def shared(self) -> bool:
        """Whether several writes share the query."""
        return self.end - self.first > 1


class SharedQueries:
    """Makes queries out of writes. A sequence of mutations shares a query from the second time on.

    The server plans each new text, at half a millisecond or more, and keeps a limited number of plans.
    """

    def __init__(self) -> None:
        self._apart: BoundedDict[tuple[str, ...], int] = BoundedDict(_SEQUENCES)
        """By sequence of mutations: how often they run apart before they share a query."""

    def queries(self, partition: int, writes: Sequence[Write], *, share: bool = True) -> Iterator[WriteQuery]:
        """Yield the queries for writes, in order. Raises ``QueryFailed`` at a write with values that cannot be sent."""
        first = 0
        while first < len(writes):
            end = _end_of_few(writes, first) if share else first + 1
            text = self._shared(partition, writes[first:end])
            if text is not None:
                yield WriteQuery(first=first, end=end, text=text)
            else:
                for number in range(first, end):
                    yield WriteQuery(first=number, end=number + 1, text=guarded(partition, writes[number : number + 1]))
            first = end

    def keep_apart(self, writes: Sequence[Write]) -> None:
        """Do not share a query the next times: that of these writes was refused, or slow."""
        self._apart[_sequence(writes)] = _APART

    def _shared(self, partition: int, writes: Sequence[Write]) -> str | None:
        if len(writes) < 2:
            return None
        sequence = _sequence(writes)
        apart = self._apart.get(sequence, 1)
        self._apart[sequence] = max(0, apart - 1)
        if apart:
            return None
        try:
            return guarded(partition, writes)
        except QueryFailed:  # apart, those before the one at fault take effect
            return None


def _end_of_few(writes: Sequence[Write], first: int) -> int:
    """Return the end of the writes from ``first`` on that may share a query; it holds one at least."""
    rows = 0
    for number in range(first, min(len(writes), first + _WRITES)):
        write = writes[number]
        rows += len(write.rows)
        if rows > _ROWS or not _may_share(write):
            return max(number, first + 1)
    return min(len(writes), first + _WRITES)


def _may_share(write: Write) -> bool:
    batch_query = write.batch_query_for(FALKORDB)
    return (
        write.query is not None
        and batch_query is not None
        and batch_query.mode == "ordered"
        and spares_checkpoints(write.query.outline)
    )


def _sequence(writes: Sequence[Write]) -> tuple[str, ...]:
    """Return what the text of a shared query is made of."""
    if are_single(writes):
        return tuple(write.query.statement for write in writes if write.query)
    return tuple(form.statement for write in writes if (form := write.batch_query_for(FALKORDB)))

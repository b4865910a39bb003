"""Which batch queries share a statement.

The server plans each new statement: 50 ms for each batch query in it on a warm server, seconds on a cold one. So a
batch query first has a statement of its own, whatever stands beside it in a batch. Those that come often share one:
then a batch is one statement, however its rows alternate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from graphweft_rules.cypher.batch_query import BatchQuery
from graphweft_workers.drivers.neo4j.statements import Part, Work
from graphweft_workers.ports.graph_store import Write

_TOGETHER: Final = 8
"""Batch queries of one statement. Adding one compiles the whole again, at 50 ms or more for each."""
_OFTEN: Final = 24
"""Writes of a batch query that have statements of their own, at a millisecond each, before it shares one."""


class Groups:
    """Groups of batch queries, each with one statement. They keep their places in it, so that it does not change."""

    def __init__(self, often: int = _OFTEN) -> None:
        """A batch query shares a statement when it has had more than ``often`` writes."""
        self._often = often
        self._groups: list[list[BatchQuery]] = []
        self._group_of: dict[str, list[BatchQuery]] = {}
        self._single: dict[str, BatchQuery] = {}
        """Batch queries that share no statement yet."""
        self._writes = Counter[str]()
        """By statement of these: their writes so far."""

    def parts(self, work: Work) -> list[Part]:
        """Split the work into parts, each of one statement."""
        self._count(work)
        parts: list[Part] = []
        together: list[tuple[Write, BatchQuery | None]] = []
        shared: tuple[BatchQuery, ...] = ()
        for write, batch_query in work:
            batch_queries = self._sharing(batch_query)
            alone = write.query is not None and batch_query is None
            if together and (alone or (batch_queries and shared and batch_queries != shared)):
                parts.append(self._part(together, shared))
                together, shared = [], ()
            if alone:
                parts.append(Part([(write, batch_query)]))
            else:
                together.append((write, batch_query))
                shared = shared or batch_queries
        if together:
            parts.append(self._part(together, shared))
        return parts

    def join(self, batch_queries: Sequence[BatchQuery]) -> None:
        """Let batch queries share statements from now on, in an order that does not depend on which came first."""
        added = sorted(
            (each for each in batch_queries if each.statement not in self._group_of), key=lambda each: each.statement
        )
        for batch_query in added:
            if not self._groups or len(self._groups[-1]) == _TOGETHER:
                self._groups.append([])
            self._groups[-1].append(batch_query)
            self._group_of[batch_query.statement] = self._groups[-1]
            self._forget(batch_query)

    def remove(self, batch_query: BatchQuery) -> None:
        """Take out a batch query that the server refuses; nothing happens if it is not there."""
        self._forget(batch_query)
        group = self._group_of.pop(batch_query.statement, None)
        if group is not None:
            group.remove(batch_query)

    def _count(self, work: Work) -> None:
        """Count writes, and join the batch queries that have become frequent with those that soon will be."""
        for _, batch_query in work:
            if batch_query is not None and batch_query.statement not in self._group_of:
                self._single[batch_query.statement] = batch_query
                self._writes[batch_query.statement] += 1
        if any(count > self._often for count in self._writes.values()):
            self.join([each for name, each in self._single.items() if self._writes[name] > self._often // 2])

    def _sharing(self, batch_query: BatchQuery | None) -> tuple[BatchQuery, ...]:
        if batch_query is None:
            return ()
        return tuple(self._group_of.get(batch_query.statement, (batch_query,)))

    def _part(self, work: Work, batch_queries: tuple[BatchQuery, ...]) -> Part:
        return Part(work, batch_queries, is_new=any(each.statement in self._single for each in batch_queries))

    def _forget(self, batch_query: BatchQuery) -> None:
        self._single.pop(batch_query.statement, None)
        self._writes.pop(batch_query.statement, None)

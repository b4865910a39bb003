"""Which batch queries share a statement."""

from __future__ import annotations

from typing import Final

from graphweft_rules.cypher.batch_query import BatchQuery
from graphweft_workers.drivers.neo4j.statements import Part, Work
from graphweft_workers.ports.graph_store import Write

_TOGETHER: Final = 8
"""Batch queries of one statement. Adding one compiles the whole again, at 50 ms or more for each."""


class Groups:
    """Groups of batch queries, each with one statement. They keep their places in it, so that it does not change."""

    def __init__(self) -> None:
        self._groups: list[list[BatchQuery]] = []
        self._group_of: dict[str, list[BatchQuery]] = {}

    def parts(self, work: Work) -> list[Part]:
        """Split the work into parts that share a statement."""
        for _, batch_query in work:
            if batch_query is not None and batch_query.statement not in self._group_of:
                if not self._groups or len(self._groups[-1]) == _TOGETHER:
                    self._groups.append([])
                self._groups[-1].append(batch_query)
                self._group_of[batch_query.statement] = self._groups[-1]
        parts: list[Part] = []
        together: list[tuple[Write, BatchQuery | None]] = []
        shared: tuple[BatchQuery, ...] = ()
        for write, batch_query in work:
            batch_queries = tuple(self._group_of[batch_query.statement]) if batch_query is not None else ()
            alone = write.query is not None and batch_query is None
            if together and (alone or (batch_queries and shared and batch_queries != shared)):
                parts.append(Part(together, shared))
                together, shared = [], ()
            if alone:
                parts.append(Part([(write, batch_query)]))
            else:
                together.append((write, batch_query))
                shared = shared or batch_queries
        if together:
            parts.append(Part(together, shared))
        return parts

    def remove(self, batch_query: BatchQuery) -> None:
        """Take out a batch query that the server refuses; nothing happens if it is not there."""
        group = self._group_of.pop(batch_query.statement, None)
        if group is not None:
            group.remove(batch_query)

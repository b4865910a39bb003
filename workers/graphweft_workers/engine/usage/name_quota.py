"""Refuses rows that would bring more names of properties than the graph of an app may have.

Names come from the text of rules, which has few, or from maps in events (``SET n += $map``). Only rows of the second
kind are looked at. Some servers keep every name of a graph for its whole life, and look names up one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_rules import BoundMutation
from graphweft_rules.cypher.given_names import given_names, name_sources
from graphweft_workers.engine.usage.usage_reporter import MeasuredGraphs


class NameQuota:
    """Knows the names of the graphs whose rules take names from events."""

    def __init__(self, graph: MeasuredGraphs, limit: Callable[[str], int | None]) -> None:
        """``limit`` returns the quota of an app; None is no quota."""
        self._graph = graph
        self._limit = limit
        self._known: BoundedDict[str, set[str]] = BoundedDict()
        """By app: names that its graph has, or gets from rows that were not refused."""

    @staticmethod
    def concerns(row: BoundMutation) -> bool:
        """Return whether a row takes names from its event; the other rows of its mutation do so too."""
        return bool(name_sources(row.mutation.cypher.outline))

    async def refused(self, app_id: str, rows: Sequence[BoundMutation]) -> Mapping[int, str]:
        """Return the rows, by identity, that bring a name beyond the quota, in their order, each with the reason.

        The names of the other rows count as the graph's. Raises ``GraphUnavailable``.
        """
        found: dict[int, str] = {}
        limit = self._limit(app_id)
        if limit is None:
            return found
        known = self._known.get(app_id)
        fresh = False
        taken: set[str] = set()
        for row in rows:
            sources = name_sources(row.mutation.cypher.outline)
            if not sources:
                continue
            if known is None:
                known, fresh = await self._read(app_id), True
            new = set(given_names(sources, row.params)) - known
            if new and len(known) + len(new) > limit and not fresh:  # what was thought to come may not have come
                known, fresh = await self._read(app_id), True
                known |= taken
                new -= known
            if new and len(known) + len(new) > limit:
                found[id(row)] = (
                    f"the graph of {app_id!r} has {len(known):,} names of properties, its quota is {limit:,}, and the "
                    f"maps of this event have {len(new):,} more: write names that are data as values (a node for each "
                    "pair), or raise `quotas: {property_names: …}` of the app, then retry this dead letter"
                )
            else:
                known |= new
                taken |= new
        return found

    async def _read(self, app_id: str) -> set[str]:
        try:
            names = await self._graph.property_names(app_id)
        except QueryFailed as error:
            raise GraphUnavailable(f"the names of properties of {app_id!r} cannot be counted: {error}") from error
        known = self._known[app_id] = set(names)
        return known

"""Runs one injection query: Cypher, a ranked search, or a ranked retrieval of facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from graphweft_contracts import GraphUnavailable, QueryFailed, ReasonCode
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules import BoundQuery
from graphweft_rules.files.model import Place
from graphweft_rules.matching.graphrag import GraphragQuery
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.rows import QueryFailure, QueryResult
from graphweft_workers.ports.fact_retriever import TOO_SLOW, FactRetriever
from graphweft_workers.ports.graph_store import GraphStore, Table
from graphweft_workers.retrieval.search import Searcher, SearchRows
from graphweft_workers.telemetry.metrics import DB_DURATION

_SEEDS_SHARE: Final = 0.4
"""Largest share of a query's time for the search for seeds."""
_FACTS_SHARE: Final = 0.85
"""Share of a query's time for finding facts; the rest is for packing them."""


@dataclass(slots=True)
class QueryRunner:
    """Runs queries of all apps. Without ``facts``, ``graphrag:`` queries fail as disabled."""

    graph: GraphStore
    searcher: Searcher
    facts: FactRetriever | None
    background: Background
    clock: Clock = SYSTEM_CLOCK
    _warm: BoundedDict[str, None] = field(default_factory=BoundedDict[str, None])
    """Apps whose graph has been asked for facts."""

    def skip_facts(self, app_id: str) -> None:
        """Log that facts were wanted but the graph was not asked."""
        if self.facts is not None:
            self.facts.log_unavailable(app_id)

    async def run(self, app_id: str, bound: BoundQuery, limit_s: float) -> QueryResult | QueryFailure:
        """Return the rows of a query within about ``limit_s``.

        Raises ``InvalidSettings``, and ``QueryFailed`` and ``GraphUnavailable`` as ``GraphStore.read`` does.
        """
        kind = "facts" if bound.graphrag is not None else "search" if bound.search is not None else "cypher"
        with DB_DURATION.timed(kind, clock=self.clock):
            return await self._run(app_id, bound, limit_s)

    async def _run(self, app_id: str, bound: BoundQuery, limit_s: float) -> QueryResult | QueryFailure:
        place = bound.query.place
        if bound.graphrag is not None:
            return await self._run_facts(app_id, bound.graphrag, place, limit_s)
        if bound.search is not None:
            found = await self.searcher.search(app_id, bound.search, timeout_s=limit_s)
            return QueryResult(table=found.table, incomplete=_degraded(found, place))
        assert bound.cypher is not None
        statement, limit = bound.cypher.statement, bound.query.most_rows
        return QueryResult(
            table=await self.graph.read(app_id, statement, bound.params, timeout_s=limit_s, enough=limit, to_end=True)
        )

    async def _run_facts(
        self, app_id: str, query: GraphragQuery, place: Place, limit_s: float
    ) -> QueryResult | QueryFailure:
        """Return facts as rows of one column. A disabled retriever reads nothing, not even seeds."""
        facts = self.facts
        if facts is None or not facts.enabled:
            self.skip_facts(app_id)
            return QueryFailure(
                reason="disabled", detail=f"{place}: graphrag is off: set GRAPHRAG_ENABLED=true to turn it on"
            )
        if app_id not in self._warm:  # a server that has just started plans for seconds
            self._warm[app_id] = None
            self.background.start(facts.warm(app_id))
        until = self.clock.monotonic() + limit_s * _FACTS_SHARE
        seeds: list[Any] = list(query.seeds)
        incomplete: QueryFailure | None = None
        if query.search is not None:
            try:
                found = await self.searcher.search(app_id, query.search, timeout_s=limit_s * _SEEDS_SHARE)
            except (QueryFailed, GraphUnavailable) as error:  # the names in the question still lead to facts
                reason: ReasonCode = "graph_unavailable" if isinstance(error, GraphUnavailable) else "query_error"
                incomplete = QueryFailure(reason=reason, detail=f"{place}: the search for seeds failed: {error}")
            else:
                seeds += found.rows()
                incomplete = _degraded(found, place)
        left_s = max(0.001, until - self.clock.monotonic())
        result = await facts.retrieve(app_id, query.text, seeds, left_s, memory=query.memory)
        too_slow = result.reason == TOO_SLOW
        if result.outcome == "unavailable":
            if too_slow:
                return QueryFailure(reason="timeout", detail=f"{place}: the graph returned no facts in time")
            raise GraphUnavailable(f"{place}: the graph server is unavailable")
        if result.outcome == "failed":
            return QueryFailure(reason="query_error", detail=f"{place}: the graph's answer is invalid: {result.reason}")
        if result.partial:
            incomplete = QueryFailure(
                reason="timeout" if too_slow else "graph_unavailable",
                detail=f"{place}: a part of the graph was not searched: {result.reason}",
            )
        return QueryResult(
            table=Table(columns=("fact",), rows=tuple((fact,) for fact in result.facts)), incomplete=incomplete
        )


def _degraded(found: SearchRows, place: Place) -> QueryFailure | None:
    if found.degraded is None:
        return None
    return QueryFailure(reason="embedder_unavailable", detail=f"{place}: {found.degraded}")

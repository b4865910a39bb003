"""The context pipeline: from a context request to its reply, before the deadline.

1. ``match``: the rules, or a search in the request, give the queries with their parameters.
2. ``positions``: a request with ``after`` waits until the graph holds its own writes.
3. ``fetch``: rows from the cache or from the graph (``query_runner``), where searches and facts come ranked.
4. ``reply``: the rows are packed into blocks, within the request's tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from graphweft_contracts import ContextReply, ContextRequest, GraphUnavailable, ReasonCode
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_rules import MatchedQueries, RuleSet
from graphweft_rules.files.findings import errors
from graphweft_rules.output.token_count import TokenCounter, count_characters
from graphweft_workers.apps import no_rules
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.breaker import Breaker
from graphweft_workers.injection.cache import Cache
from graphweft_workers.injection.fetch import RowFetcher
from graphweft_workers.injection.graph_ages import GraphAges
from graphweft_workers.injection.index_versions import IndexVersions
from graphweft_workers.injection.match import match_request
from graphweft_workers.injection.positions import InvalidPosition, Position, Positions, WaitResult
from graphweft_workers.injection.purges import PurgeFollower
from graphweft_workers.injection.query_runner import QueryRunner
from graphweft_workers.injection.reply import ReplyBuilder, empty_reply
from graphweft_workers.injection.rows import QueryFailure, RequestRows
from graphweft_workers.injection.shown_place import shown_place
from graphweft_workers.injection.versions import GraphVersions
from graphweft_workers.injection.work_turns import WorkTurns
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.fact_retriever import FactRetriever
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.scope_indexes import ScopeIndexes
from graphweft_workers.retrieval.search import IndexNames, Searcher
from graphweft_workers.rule_sets.active_rules import ActiveRules, FixedRules
from graphweft_workers.rule_sets.lost_rules import MissingRules, RulesLost
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING, Timing

logger = get_logger("graphweft.injection")

_PURGES_SHARE: Final = 0.5
"""The share of a request's time after which the purges are read, in case the graph returns nothing."""
_QUERIES_SHARE: Final = 0.4
_QUERIES_S: Final = 1.0
"""How much of the budget a wait for ``after`` leaves for the queries behind it: a share, and this time at most."""


class ContextPipeline:
    """Answers the context requests of all apps; make one for each process. It connects to nothing until a request.

    If the graph is unavailable or too slow for a query, the reply has the query's last rows, unless they are older
    than ``last_good_s``, or the bus does not say in time whether something of them was erased. Their block has its age,
    ``missing`` names the query and the reason, and the reply is partial.
    ``cache_bytes=0`` keeps no rows, not even these. Indexes of scopes that are searched again and again take up to
    ``index_bytes``.

    ``off`` are the apps that get no context; ``*`` means all. Without ``bus``, requests with ``after`` are refused.
    Without ``embedder``, searches use words and recency only. Without ``facts``, ``graphrag:`` is off. ``count`` counts
    tokens. ``may_use(app_id, workflow)`` tells whether an app may use the rules of a workflow; the reply for a workflow
    that it may not use is the same as for one without rules. Without ``redact``, texts keep secrets. The pipeline
    closes none of its arguments.
    """

    def __init__(
        self,
        rules: RuleSet | ActiveRules,
        graph: GraphStore,
        *,
        bus: Bus | None = None,
        query_timeout_s: float = 5.0,
        embedder: Embedder | None = None,
        index_names: IndexNames | None = None,
        cache_bytes: int = 64 * 1024**2,
        index_bytes: int = 0,
        facts: FactRetriever | None = None,
        last_good_s: float = 600.0,
        off: frozenset[str] = frozenset(),
        may_use: Callable[[str, str], bool] = lambda app_id, workflow: True,
        count: TokenCounter = count_characters,
        redact: bool = True,
        root: Path | None = None,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = TIMING,
    ) -> None:
        """``clock`` is also that of clock functions in queries, and of the validity of facts in searches.

        ``root`` is the folder of rules: replies show places of rules from there on.
        """
        self.rules = active = FixedRules(rules) if isinstance(rules, RuleSet) else rules
        self.cache = Cache(cache_bytes, clock=clock)
        """Its counters are for metrics."""
        self._off = off
        self._may_use = may_use
        self._clock = clock
        self._timing = timing.context
        self._breaker = Breaker(clock, timing.context)
        self._background = Background()
        self._compiling: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._versions = GraphVersions(graph, self._breaker, self._background, clock, timing.context)
        self._positions = (
            Positions(bus, self._versions, active, self._background, clock, timing.context) if bus is not None else None
        )
        self.indexes = ScopeIndexes(
            graph,
            IndexVersions(self._versions, self.cache),
            index_bytes,
            embedder.model if embedder is not None else None,
            written=lambda: active.summary.written,
            clock=clock,
            timing=timing.retrieval,
        )
        """Its counters are for metrics."""
        self.purges = (
            PurgeFollower(bus.purges, self.cache, self.indexes, facts, self._background, clock)
            if bus is not None
            else None
        )
        """Call ``follow`` from time to time: rows that something was erased of leave the memory then."""
        self._ages = (
            None
            if self.purges is None
            else GraphAges(graph, self.purges, self._breaker, self._background, clock, timing.context)
        )
        searcher = Searcher(
            graph, embedder, names=index_names or IndexNames(), scopes=self.indexes, clock=clock,
            timing=timing.retrieval,
        )  # fmt: skip
        runner = QueryRunner(graph, searcher, facts, self._background, clock)
        self._rows = RowFetcher(
            runner,
            self.cache,
            self._versions,
            self._breaker,
            self._background,
            query_timeout_s=query_timeout_s,
            clock=clock,
        )
        self._turns = WorkTurns(clock, timing.context)
        self._replies = ReplyBuilder(
            self.cache, last_good_s, count, redact=redact, root=root, turns=self._turns, clock=clock
        )
        self._root = root

    async def answer(self, request: ContextRequest) -> ContextReply:
        """Return the context for ``request`` before its deadline, with a reason for each missing block.

        Never raises on account of graph, bus, rules or request.
        """
        started = self._clock.monotonic()
        left_s = request.deadline_ms / 1000 - self._clock.now().timestamp()
        reserve_s = min(max(left_s * self._timing.reserve, self._timing.least_reserve_s), self._timing.most_reserve_s)
        left_s = max(0.001, left_s - reserve_s)
        try:
            return await self._answer(request, started, self._clock.monotonic() + left_s)
        except Exception as error:  # a defect must not cost the caller its whole budget
            logger.exception("answer_failed", workflow=request.workflow, agent=request.agent)
            return self._empty(request, started, "internal_error", type(error).__name__)

    async def _compiled(self, rules: RuleSet, workflow: str, until: float) -> bool:
        """Compile a workflow that is not compiled yet; return whether it is by the monotonic time ``until``."""
        if rules.is_compiled(workflow):
            return True
        key = (id(rules), workflow)
        compiling = self._compiling.get(key)
        if compiling is None:
            compiling = self._background.start(asyncio.to_thread(rules.compile, [workflow]))
            self._compiling[key] = compiling
            compiling.add_done_callback(lambda _: self._compiling.pop(key, None))
        await asyncio.wait([compiling], timeout=max(0.0, until - self._clock.monotonic()))
        return rules.is_compiled(workflow)

    def counts(self) -> dict[str, int]:
        """Return the counters of the cache and of the indexes of scopes."""
        return {**self.cache.counts(), **self.indexes.counts()}

    async def aclose(self) -> None:
        """Cancel background work; call it before you close the graph and the bus."""
        await self.indexes.aclose()
        await self._background.aclose()

    async def _answer(self, request: ContextRequest, started: float, until: float) -> ContextReply:
        app_id, arrived = request.app_id, self._clock.monotonic()
        if app_id in self._off or "*" in self._off:
            return self._empty(request, started, "disabled", f"context is switched off for {app_id!r} by its operators")
        if request.search is None and not self._may_use(app_id, request.workflow):
            return self._empty(request, started, "no_rules", no_rules(request.workflow))
        rules = self.rules.current(app_id)
        matched = await self._matched(rules, request, started, until)
        if isinstance(matched, ContextReply):
            return matched
        position: Position | None = None
        if request.after is not None:
            if self._positions is None:
                detail = "this responder has no bus, so it cannot wait for the position in `after`"
                return self._empty(request, started, "invalid_request", detail)
            try:
                position = await self._positions.read(request.after, self._wait_until(until, queries=True))
            except InvalidPosition as error:
                return self._empty(request, started, "invalid_request", str(error))
        reached: WaitResult | None = None
        reads_graph = bool(matched.queries) or position is not None
        # If the graph answers late or never, the purges are needed at the end, when there is no time to read them.
        asking = None
        if self.purges is not None and matched.queries:
            delay_s = max(0.0, until - arrived) * _PURGES_SHARE
            asking = asyncio.get_running_loop().call_later(delay_s, self.purges.read)
        entered: str = self._breaker.enter(app_id) if reads_graph else "closed"
        if entered == "trial":
            self._versions.read(app_id)  # the request's queries may be too slow to tell whether the server is back
        try:
            if self._ages is not None and reads_graph and entered != "open":
                try:
                    if older := await self._ages.older(app_id, until):
                        return self._empty(request, started, "graph_unavailable", older)
                except GraphUnavailable:
                    entered = "unknown"
            if entered in {"open", "unknown"}:
                outcomes: list[RequestRows | QueryFailure] = self._rows.refuse(app_id, matched.queries)
            else:
                if position is not None and self._positions is not None:
                    reached = await self._positions.reach(
                        app_id, position, self._wait_until(until, bool(matched.queries))
                    )
                outcomes = await self._rows.fetch(app_id, matched.queries, until, reached.version if reached else None)
        finally:
            if asking is not None:
                asking.cancel()
            if entered == "trial":
                self._breaker.leave(app_id)
        may_be_erased = False
        if self.purges is not None and self._replies.can_replace(app_id, matched, outcomes):
            may_be_erased = not await self.purges.is_followed(
                arrived, max(until, self._clock.monotonic() + self._timing.purges_s)
            )
        stale_by = None
        if request.after is not None and (reached is None or reached.behind is not None):
            stale_by = await self._behind(reached, until)
        try:
            # What is later than the time for packing, twice, reaches nobody.
            async with asyncio.timeout(max(0.0, until - self._clock.monotonic()) + 2 * self._timing.most_reserve_s):
                return await self._replies.build(
                    request,
                    started,
                    matched,
                    outcomes,
                    stale_by=stale_by,
                    rules=rules.digest,
                    may_be_erased=may_be_erased,
                )
        except TimeoutError:
            return self._empty(request, started, "timeout", "the blocks were not packed in time: ask for fewer rows")

    async def _matched(
        self, rules: RuleSet, request: ContextRequest, started: float, until: float
    ) -> MatchedQueries | ContextReply:
        """Return the queries of a request, or the reply that says why there are none."""
        if request.search is None and isinstance(rules, MissingRules):
            return self._empty(request, started, "no_rules", str(RulesLost(rules.digest)))
        if request.search is None and not await self._compiled(rules, request.workflow, until):
            detail = f"the rules of the workflow {request.workflow!r} are compiled at its first request; ask again"
            return self._empty(request, started, "timeout", detail)
        try:
            async with asyncio.timeout(max(0.0, until - self._clock.monotonic())):
                matched = await match_request(
                    rules, request, clock=self._clock, slice_s=self._timing.begin_s, turns=self._turns
                )
        except TimeoutError:
            return self._empty(request, started, "timeout", "the conditions of the rules were not decided in time")
        if isinstance(matched, str):
            return self._empty(request, started, "invalid_request", matched)
        if request.search is None and request.workflow not in rules.workflows:
            return self._empty(request, started, "no_rules", no_rules(request.workflow))
        if request.search is None and (problem := rules.problem(request.workflow)) is not None:
            first = (errors(problem.findings) or problem.findings)[0]
            detail = f"the rules of the workflow {request.workflow!r} do not compile with this version: "
            detail += f"{shown_place(first.place, self._root)}: {first.message}"
            return self._empty(request, started, "no_rules", detail)
        return matched

    def _empty(self, request: ContextRequest, started: float, reason: ReasonCode, detail: str) -> ContextReply:
        return empty_reply(request, self._clock.monotonic() - started, reason, detail)

    def _wait_until(self, until: float, queries: bool) -> float:
        left_s = max(0.0, until - self._clock.monotonic())
        return until - (min(left_s * _QUERIES_SHARE, _QUERIES_S) if queries else 0.0)

    async def _behind(self, reached: WaitResult | None, until: float) -> int:
        """Return how many events the graph lacks, as far as that is known in time; at least 1."""
        counting = reached.behind if reached else None
        if counting is None:
            return 1
        await asyncio.wait([counting], timeout=max(0.0, until - self._clock.monotonic()))
        return counting.result() if counting.done() and not counting.cancelled() else 1

"""Asks the graph server before the first event whether it accepts the queries of rules.

Only the server finds unbound names and unknown functions. Otherwise every event would become a dead letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import batched
from pathlib import Path
from typing import Final

from graphweft_contracts import QueryFailed
from graphweft_rules.cypher.batch_query import BatchQuery
from graphweft_rules.cypher.clauses import outline
from graphweft_rules.cypher.node_labels import shared_labels
from graphweft_rules.cypher.query import Cypher
from graphweft_rules.files.findings import Finding, RulesError, errors, ordered
from graphweft_rules.files.model import Place, TextPlace
from graphweft_rules.matching.mutation import CompiledMutation
from graphweft_rules.matching.workflow import CompiledInjection
from graphweft_workers.ports.dialect import GraphDialect
from graphweft_workers.ports.graph_store import GraphStore, Refusal
from graphweft_workers.retrieval.statements import enriched
from graphweft_workers.retrieval.targets import scoped
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.rules")

CODE: Final = "server-refused"
_AT_ONCE: Final = 16
"""Concurrent checks."""
_LONGEST: Final = 160
"""The longest reason in characters: servers list everything that they expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFindings:
    """The result of a check. A finding of level error is a query that would fail for every event."""

    count: int
    """The number of checked queries; equal ones count once."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentQuery:
    """A query as it is sent, and the number of lines before the rule's own."""

    query: Cypher
    batch_query: BatchQuery | None = None
    above: int = 0


async def check_queries(graph: GraphStore, parts: Iterable[CompiledMutation | CompiledInjection]) -> QueryFindings:
    """Ask the server about the queries of rules, as the worker and the responder send them.

    Searches and ``graphrag`` use graphweft's own queries, so only a ``retrieval_query`` is checked. Raises
    ``GraphUnavailable``, and ``QueryFailed`` if the server does not allow queries to be checked.
    """
    given = [(part, part.cypher) for part in parts if part.cypher is not None]
    shared = shared_labels(cypher for part, cypher in given if isinstance(part, CompiledMutation))
    asked: dict[_SentQuery, list[tuple[CompiledMutation | CompiledInjection, Cypher]]] = {}
    for part, cypher in given:
        asked.setdefault(_query_as_sent(part, cypher, graph.dialect, shared), []).append((part, cypher))
    findings: list[Finding] = []
    for some in batched(asked, _AT_ONCE):
        asking = (graph.check_query(each.query, each.batch_query) for each in some)
        for each, refusal in zip(some, await asyncio.gather(*asking, return_exceptions=True), strict=True):
            if isinstance(refusal, BaseException):
                raise refusal
            if refusal is not None:
                findings += (_finding(refusal, each, *of, graph.dialect) for of in asked[each])
    return QueryFindings(count=len(asked), findings=ordered(findings))


async def refuse_wrong_queries(
    graph: GraphStore, parts: Iterable[CompiledMutation | CompiledInjection], root: Path | None = None
) -> None:
    """Raise ``RulesError`` with all findings if the server refuses a query for good; log other findings.

    ``root`` is the folder from which the rules name their files. Log a warning if the server does not allow queries to
    be checked. Raises ``GraphUnavailable``.
    """
    try:
        checked = await check_queries(graph, parts)
    except QueryFailed as error:
        logger.warning("queries_not_checked", error=str(error))
        return
    findings = [finding if root is None else finding.under(root) for finding in checked.findings]
    if errors(findings):
        raise RulesError(findings)
    for finding in findings:
        logger.warning("query_doubtful", finding=str(finding))
    logger.info("queries_checked", queries=checked.count)


def _query_as_sent(
    part: CompiledMutation | CompiledInjection, cypher: Cypher, dialect: GraphDialect, shared: frozenset[str] | None
) -> _SentQuery:
    if isinstance(part, CompiledMutation):
        return _SentQuery(query=cypher, batch_query=cypher.batch_query(dialect, shared))
    if part.search is None:
        return _SentQuery(query=cypher)
    # The variables are the same for every target.
    target = scoped(part.search.options.get("of", "all"), {}, now="")[0]
    text = enriched(dialect, target, (), retrieval_query=cypher.statement, values={}).text
    above = text.count("\n") - cypher.statement.rstrip("; \t\n").count("\n")
    return _SentQuery(query=replace(cypher, outline=outline(text)), above=above)


def _finding(
    refusal: Refusal,
    asked: _SentQuery,
    part: CompiledMutation | CompiledInjection,
    cypher: Cypher,
    dialect: GraphDialect,
) -> Finding:
    written = part.written if isinstance(part, CompiledMutation) else part.query.written
    if refusal.fails:
        message = f"{dialect.title} refuses this query: {_short(refusal.reason)}: correct it"
    else:
        message = f"{dialect.title} does not take this query here: {_short(refusal.reason)}: "
        message += "correct it, or use a server that accepts it"
    return Finding(
        level="error" if refusal.fails else "warning",
        code=CODE,
        message=message,
        place=_place(written or TextPlace(place=part.place), cypher, refusal.place, asked.above),
    )


def _place(written: TextPlace, cypher: Cypher, place: tuple[int, int] | None, above: int) -> Place:
    """Return the server's place in the rule file, or the beginning of the query."""
    line, column = place or (0, 0)
    return written.at(*cypher.origin(line - above, column)) if line > above else written.at(1, 1)


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST].rpartition(' ')[0]} …"

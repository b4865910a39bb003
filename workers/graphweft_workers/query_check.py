"""The queries of rules before the first event: the graph server is asked whether it takes each of them.

What can be told from files alone, loading has told. A name that no clause binds, or a function that is not there, only
the server knows; found by events, each of these would be a dead letter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import batched
from typing import Final

from graphweft_contracts import QueryFailed
from graphweft_rules.batching import BatchForm, Dialect
from graphweft_rules.cypher import Cypher
from graphweft_rules.findings import Finding, RulesError, errors, ordered
from graphweft_rules.footprint import shared_labels
from graphweft_rules.model import Place, Written
from graphweft_rules.workflow import CompiledInjection, CompiledMutation
from graphweft_workers.graph.store import GraphStore, Refusal
from graphweft_workers.retrieval.dialects import language
from graphweft_workers.retrieval.statements import enriched
from graphweft_workers.retrieval.target import scoped

logger = logging.getLogger("graphweft.rules")

CODE: Final = "server-refused"
_AT_ONCE: Final = 16
"""Queries on their way to the server."""
_LONGEST: Final = 160
"""Characters of a reason: servers list everything that they would have taken."""
_NAMES: Final[dict[Dialect, str]] = {"falkordb": "FalkorDB", "neo4j": "Neo4j"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a server says of queries; an error among the findings is a query that would fail for every event."""

    count: int
    """Queries that were asked about; equal ones count once."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A query as it is sent, and the lines in front of the author's."""

    query: Cypher
    form: BatchForm | None = None
    above: int = 0


async def check_queries(graph: GraphStore, parts: Iterable[CompiledMutation | CompiledInjection]) -> Checked:
    """Ask the server about the queries of rules, in the texts that worker and responder send.

    Searches and ``graphrag`` send texts of ours, so of these only a ``retrieval_query`` is looked at. Raises
    ``GraphUnavailable``, and ``QueryFailed`` when the server does not let queries be checked.
    """
    given = [(part, part.cypher) for part in parts if part.cypher is not None]
    shared = shared_labels(cypher for part, cypher in given if isinstance(part, CompiledMutation))
    asked: dict[_Asked, list[tuple[CompiledMutation | CompiledInjection, Cypher]]] = {}
    for part, cypher in given:
        asked.setdefault(_asked(part, cypher, graph.dialect, shared), []).append((part, cypher))
    findings: list[Finding] = []
    for some in batched(asked, _AT_ONCE):
        asking = (graph.check_query(each.query, each.form) for each in some)
        for each, refusal in zip(some, await asyncio.gather(*asking, return_exceptions=True), strict=True):
            if isinstance(refusal, BaseException):
                raise refusal
            if refusal is not None:
                findings += (_finding(refusal, each, *of, graph.dialect) for of in asked[each])
    return Checked(count=len(asked), findings=ordered(findings))


async def refuse_wrong_queries(graph: GraphStore, parts: Iterable[CompiledMutation | CompiledInjection]) -> None:
    """Raise ``RulesError`` with all findings when the server refuses a query for good; log what may be wrong.

    A server that does not let queries be checked is warned of. Raises ``GraphUnavailable``.
    """
    try:
        checked = await check_queries(graph, parts)
    except QueryFailed as error:
        logger.warning("the queries of the rules are used unchecked: %s", error)
        return
    if errors(checked.findings):
        raise RulesError(checked.findings)
    for finding in checked.findings:
        logger.warning("%s", finding)
    logger.info("the graph server was asked about %d queries of the rules, and refuses none", checked.count)


def _asked(
    part: CompiledMutation | CompiledInjection, cypher: Cypher, dialect: Dialect, shared: frozenset[str] | None
) -> _Asked:
    if isinstance(part, CompiledMutation):
        return _Asked(query=cypher, form=cypher.form(dialect, shared))
    if part.search is None:
        return _Asked(query=cypher)
    # What it goes on from is bound alike whatever is searched.
    target = scoped(part.search.of, {}, now="")[0]
    text = enriched(language(dialect), target, (), retrieval_query=cypher.statement, values={}).text
    above = text.count("\n") - cypher.statement.rstrip("; \t\n").count("\n")
    return _Asked(query=replace(cypher, statement=text), above=above)


def _finding(
    refusal: Refusal, asked: _Asked, part: CompiledMutation | CompiledInjection, cypher: Cypher, dialect: Dialect
) -> Finding:
    written = part.written if isinstance(part, CompiledMutation) else part.query.written
    if refusal.fails:
        message = f"{_NAMES[dialect]} refuses this query: {_short(refusal.reason)}: correct it"
    else:
        message = f"{_NAMES[dialect]} does not take this query here: {_short(refusal.reason)}: "
        message += "correct it, or see to it that the server which runs it does"
    return Finding(
        level="error" if refusal.fails else "warning",
        code=CODE,
        message=message,
        place=_place(written or Written(place=part.place), cypher, refusal.place, asked.above),
    )


def _place(written: Written, cypher: Cypher, place: tuple[int, int] | None, above: int) -> Place:
    """Return where in the file the server's place is; the query's beginning where it names none of the author's."""
    line, column = place or (0, 0)
    return written.at(*cypher.origin(line - above, column)) if line > above else written.at(1, 1)


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST].rpartition(' ')[0]} …"

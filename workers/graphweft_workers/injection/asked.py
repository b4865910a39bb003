"""A search that a request brings itself, made into a query as rules have them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from graphweft_contracts import Block
from graphweft_contracts.search import SearchQuery
from graphweft_rules import BoundQuery
from graphweft_rules.clauses import outline
from graphweft_rules.clock import clock_values
from graphweft_rules.model import InjectionQuery, Place
from graphweft_rules.searches import parse_retrieval

_NAME: Final = "search"
_PLACE: Final = Place(file="request")
_QUERY: Final = InjectionQuery(id=_NAME, inject_as=_NAME, format="results", place=_PLACE)


def asked(search: SearchQuery, now: datetime) -> BoundQuery | str:
    """Return the query of a request's search, or what is wrong with its Cypher.

    A rule's author may call procedures. Whoever sends a request may be anybody with a token, so here that is refused.
    """
    if search.retrieval_query is None:
        return BoundQuery(rule=_NAME, query=_QUERY, cypher=None, params=dict(search.params), search=search)
    if "\\u" in search.retrieval_query.lower():
        # Neo4j 5 reads these before it looks for strings and comments, so the text is another one than we see.
        return "retrieval_query: write characters themselves, not as a backslash and u"
    cypher = parse_retrieval(search.retrieval_query)
    for problem in cypher.problems:
        if problem.level == "error":
            return f"retrieval_query, line {problem.line}, column {problem.column}: {problem.message}"
    query = outline(cypher.statement)
    for clause in query.clauses:
        if clause.keyword == "CALL" and query.words.text(clause.words[0] + 1) not in ("{", "("):
            return "retrieval_query: a request may call no procedure; do that in a rule"
    if any(token.keyword == "USE" for token in query.tokens):
        return "retrieval_query: a request is about the graph of its app; leave USE out"
    params = {**search.params, **clock_values(cypher.clock, now)}
    bound = search.model_copy(update={"retrieval_query": cypher.statement, "params": params})
    return BoundQuery(rule=_NAME, query=_QUERY, cypher=cypher, params=params, search=bound)


def as_rows(block: Block, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Block:
    """Return a block with its rows as values, for programs; the text of the answer has them as lines."""
    value = [dict(zip(columns, row, strict=True)) for row in rows[: block.rows]]
    return block.model_copy(update={"format": "list", "value": value})

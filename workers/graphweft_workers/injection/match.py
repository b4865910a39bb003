"""Match: finds the queries for a context request, from the rules or from the search in the request itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Final

from graphweft_contracts import ContextRequest
from graphweft_contracts.clock import Clock
from graphweft_contracts.search import SearchQuery
from graphweft_rules import BoundQuery, MatchedQueries, RuleSet
from graphweft_rules.cypher.query import Cypher, line_and_column
from graphweft_rules.cypher.request_query import request_problem
from graphweft_rules.files.model import InjectionQuery, Place
from graphweft_rules.matching.clock import clock_values
from graphweft_rules.matching.searches import parse_retrieval
from graphweft_workers.injection.work_turns import WorkTurns
from graphweft_workers.text.long_values import are_long

_LONG: Final = 1_000
"""Characters and items of a context that is matched in a thread: the conversion for one condition takes long, too."""
_NAME: Final = "search"
_PLACE: Final = Place(file="request")
_QUERY: Final = InjectionQuery(id=_NAME, inject_as=_NAME, format="results", place=_PLACE)
_MEMORY_QUERY: Final = replace(_QUERY, format="memory")


async def match_request(
    rules: RuleSet, request: ContextRequest, *, clock: Clock, slice_s: float, turns: WorkTurns
) -> MatchedQueries | str:
    """Return the queries for a request, or an error message about the Cypher of its search.

    A condition takes 10 ms at most, but all conditions of an agent may take a second. So what is not matched within
    ``slice_s`` is matched in slices of it, for which the apps take turns.
    """
    now = clock.now()
    if request.search is not None:
        bound = bind_search(request.search, now)
        return bound if isinstance(bound, str) else MatchedQueries(queries=(bound,))
    steps = rules.request_steps(request, now)

    def advance() -> MatchedQueries | None:
        until = clock.monotonic() + slice_s
        try:
            while True:
                next(steps)
                if clock.monotonic() > until:
                    return None
        except StopIteration as end:
            found: MatchedQueries = end.value
            return found

    is_long = are_long([request.context], _LONG)
    found = None if is_long else advance()
    while found is None:
        await asyncio.sleep(0)  # a turn that is free comes at once
        async with turns.turn(request.app_id):
            found = await asyncio.to_thread(advance) if is_long else advance()
    return found


def bind_search(search: SearchQuery, now: datetime) -> BoundQuery | str:
    """Return the query of a search in a request, or an error message about its Cypher.

    Rules may call procedures. Requests may not: anybody with a token can send one.
    """
    if search.retrieval_query is None:
        asked = _MEMORY_QUERY if search.finds_memory else _QUERY
        return BoundQuery(rule=_NAME, query=asked, cypher=None, params=dict(search.params), search=search)
    if "\\u" in search.retrieval_query.lower():
        # Some graph servers resolve these before they parse, so the server would run another text than was checked.
        return "retrieval_query: backslash escapes (\\u) are not allowed; write the characters themselves"
    cypher = parse_retrieval(search.retrieval_query)
    for problem in cypher.problems:
        if problem.level == "error":
            return f"retrieval_query, line {problem.line}, column {problem.column}: {problem.message}"
    if refused := _request_problem(cypher):
        return f"retrieval_query{refused}"
    params = {**search.params, **clock_values(cypher.clock, now)}
    bound = search.model_copy(update={"retrieval_query": cypher.statement, "params": params})
    return BoundQuery(rule=_NAME, query=_QUERY, cypher=cypher, params=params, search=bound)


@lru_cache(maxsize=256)
def _request_problem(cypher: Cypher) -> str:
    """Return the place and the reason why a request may not run a query without errors; empty if it may."""
    query = cypher.outline
    for clause in query.clauses:
        if clause.keyword == "CALL" and query.words.text(clause.words[0] + 1) not in ("{", "("):
            return ": a request may not call procedures; call them in a rule"
    if any(token.keyword == "USE" for token in query.words.tokens):
        return ": USE is not allowed; a request reads the graph of its app"
    if (found := request_problem(query)) is not None:
        line, column = cypher.origin(*line_and_column(cypher.statement, found[1]))
        return f", line {line}, column {column}: {found[0]}"
    return ""

"""Batch queries on Neo4j (checked on 5.26).

::

    UNWIND $rows AS __gw_row WITH __gw_row[1] AS __gw_p0, __gw_row[2] AS __gw_p1
    CALL (__gw_p0, __gw_p1) { <the rule's query, with __gw_p0 for its first parameter> }

The server runs the subquery row by row, and each row sees the writes of earlier rows, so the result equals one query
per row in their order. Without CALL, each clause would run for all rows before the next clause.

A query that deletes and also writes runs ``single``: a later row would find deleted nodes by an index.

Some places that take a parameter do not take a variable. This module refuses those that the text shows; the store lets
the server check each batch query before its first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from graphweft_rules.cypher.batch_query import ROW, BatchQuery
from graphweft_rules.cypher.clauses import Outline, QueryWords, outline
from graphweft_rules.cypher.expressions import AGGREGATES
from graphweft_rules.cypher.named_calls import named_calls
from graphweft_rules.cypher.tokens import tokenize

_VALUE: Final = "__gw_p"
_OPENING: Final = ("(", "[", "{")


class _SingleOnly(Exception):
    """Rows cannot share a query; the message tells the rule's author why."""


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


def neo4j_batch_query(query: Outline, columns: Iterable[str]) -> BatchQuery:
    """Return how rows of a statement run on Neo4j: see ``Dialect.batch_query``. Never raises.

    The text is incomplete: the caller appends ``RETURN count(*)``, or a clause that continues with each row.
    """
    names = tuple(columns)
    statement = with_plain_vectors(query.text)
    if statement != query.text:
        query = outline(statement)
    values = {name: f"{_VALUE}{number}" for number, name in enumerate(names)}
    try:
        _check_deletes(query)
        edits = [*_calls(query, values), *_results(query, statement), *_params(query, values)]
    except _SingleOnly as error:
        return BatchQuery(mode="single", statement=statement, columns=names, reason=str(error))
    bound = ", ".join(f"{ROW}[{number}] AS {value}" for number, value in enumerate(values.values(), start=1))
    head = f"WITH {bound} " if bound else ""
    # The line break ends a comment on the last line.
    text = f"{head}CALL ({', '.join(values.values())}) {{ {_edited(statement, edits)}\n}}"
    return BatchQuery(mode="ordered", statement=text, columns=names)


def with_plain_vectors(statement: str) -> str:
    """Return a statement without calls of ``vecf32``: on Neo4j a vector is a list of numbers."""
    if "vecf32" not in statement.lower():
        return statement
    tokens = tokenize(statement)
    solid = [token for token in tokens if token.kind not in ("space", "comment")]
    calls = {token.start for token, following in pairwise(solid) if token.keyword == "VECF32" and following.text == "("}
    # Blanks keep the places that the server reports.
    return "".join(" " * len(token.text) if token.start in calls else token.text for token in tokens)


def _check_deletes(query: Outline) -> None:
    """Refuse a query that deletes and also creates index entries.

    Neo4j 5.26 still finds a deleted node by an index entry of the same transaction.
    """
    keywords = {clause.keyword for clause in query.clauses}
    if keywords & {"DELETE", "DETACH"} and keywords & {"SET", "MERGE", "CREATE"}:
        raise _SingleOnly("Neo4j finds nodes that an earlier row wrote and deleted: delete in a mutation of its own")


def _params(query: Outline, values: dict[str, str]) -> Iterator[_Edit]:
    words = query.words
    for clause in query.clauses:
        params = [index for index in clause.words if words.tokens[index].kind == "param"]
        if params and clause.keyword in ("LIMIT", "SKIP"):
            name = words.tokens[params[0]].text
            raise _SingleOnly(f"{clause.keyword} {name} cannot differ by row: write the number, or use a slice")
        for index in params:
            if clause.keyword in ("CREATE", "MERGE") and _is_whole_map(words, index):
                text = words.tokens[index].text
                raise _SingleOnly(f"CREATE needs a parameter as whole map: write CREATE (n:Label) SET n = {text}")
    for word in words.tokens:
        if word.kind == "param":
            if word.identifier not in values:
                raise _SingleOnly(f"{word.text} has no value")
            yield _Edit(word.start, word.end, values[word.identifier])


def _is_whole_map(words: QueryWords, index: int) -> bool:
    """Tell whether the parameter is the whole map of a node or relationship: ``(n:Label $p)``."""
    named = bool(words.identifier(index - 1)) and words.text(index - 2) in ("(", "[", ":", "&")
    return named and words.keyword(index - 1) not in ("NOT", "DISTINCT") and words.text(index + 1) in (")", "]")


def _calls(query: Outline, values: dict[str, str]) -> Iterator[_Edit]:
    """Import the values into subqueries: a CALL sees only the variables that it names."""
    words = query.words
    for clause in query.clauses:
        if clause.keyword != "CALL":
            continue
        opening = clause.words[0] + 1
        brace = words.closing(opening) + 1 if words.text(opening) == "(" else opening
        if words.text(brace) != "{":
            continue  # a procedure
        inside = [word.identifier for word in words.tokens[brace : words.closing(brace)] if word.kind == "param"]
        used = [values[name] for name in dict.fromkeys(inside) if name in values]
        if not used:
            continue
        if brace > opening:
            if words.text(opening + 1) == "*":
                continue
            end = words.tokens[brace - 1].start
            yield _Edit(end, end, ", ".join(used) if brace == opening + 2 else f", {', '.join(used)}")
            continue
        if words.keyword(brace + 1) == "WITH":
            raise _SingleOnly("the old CALL { WITH n … } cannot see the row: write CALL (n) { … }")
        yield _Edit(words.tokens[brace].start, words.tokens[brace].start, f"({', '.join(used)}) ")


def _results(query: Outline, statement: str) -> Iterator[_Edit]:
    """Give each returned expression the name that the server would give it, because a subquery must name them."""
    words = query.words
    main = [clause for clause in query.clauses if clause.depth == 0]
    for number, clause in enumerate(main):
        if clause.keyword not in ("RETURN", "WITH"):
            continue
        first = clause.words[0] + 1
        while words.keyword(first) == "DISTINCT":
            first += 1
        following = main[number + 1].words[0] if number + 1 < len(main) else len(words.tokens)
        if clause.keyword == "RETURN" and words.text(first) == "*":
            if any(other.keyword == "UNION" for other in main):
                raise _SingleOnly("RETURN * in a UNION: name the columns, or remove RETURN")
            # It would return our variables; without it, all writes still happen.
            if number + 1 == len(main) and first + 1 == following:
                yield _Edit(words.tokens[clause.words[0]].start, words.tokens[following - 1].end, "FINISH")
                return
            raise _SingleOnly("RETURN * before another clause: name the columns, or remove RETURN")
        for item in _items(words, first, following):
            _check_aggregate(query, item)
            if clause.keyword == "RETURN" and not _is_named(words, item):
                start, end = words.tokens[item.start].start, words.tokens[item.stop - 1].end
                name = statement[start:end].replace("`", "``")
                yield _Edit(end, end, f" AS `{name}`")


def _items(words: QueryWords, first: int, end: int) -> Iterator[range]:
    start = index = first
    while index < end:
        if words.text(index) == ",":
            yield range(start, index)
            start = index + 1
        index = words.closing(index) + 1 if words.text(index) in _OPENING else index + 1
    if start < end:
        yield range(start, end)


def _is_named(words: QueryWords, item: range) -> bool:
    """Tell whether the item has a name: an alias, or it is a variable or the map projection of one."""
    alias = words.keyword(item.stop - 2) == "AS" and len(item) > 2
    variable = len(item) == 1 and bool(words.identifier(item.start)) and words.tokens[item.start].kind != "param"
    projection = (
        bool(words.identifier(item.start))
        and words.text(item.start + 1) == "{"
        and words.closing(item.start + 1) == item.stop - 1
        and words.keyword(item.start) not in ("COUNT", "EXISTS", "COLLECT")
    )
    constant = variable and words.keyword(item.start) in ("NULL", "TRUE", "FALSE", "INF", "INFINITY", "NAN")
    return alias or (variable and not constant) or projection


def _check_aggregate(query: Outline, item: range) -> None:
    """Refuse ``count(*) + $p``: next to an aggregate the server takes a parameter, but not a variable."""
    words = query.words
    calls = [call for call in named_calls(query) if call.place in item and call.lower in AGGREGATES]
    inside = {index for call in calls for index in range(call.opening, words.closing(call.opening))}
    outside = [index for index in item if index not in inside and words.tokens[index].kind == "param"]
    if calls and outside:
        name = words.tokens[outside[0]].text
        raise _SingleOnly(f"an aggregate expression uses {name}: aggregate in a WITH of its own, then use {name}")


def _edited(statement: str, edits: list[_Edit]) -> str:
    parts: list[str] = []
    position = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < position:
            continue  # inside a removed part
        parts += (statement[position : edit.start], edit.text)
        position = edit.end
    return "".join(parts) + statement[position:]

"""Many rows of a mutation in one query on Neo4j (checked on 5.26).

::

    UNWIND $rows AS __gw_row WITH __gw_row[1] AS __gw_p0, __gw_row[2] AS __gw_p1
    CALL (__gw_p0, __gw_p1) { <the rule's query, with __gw_p0 for its first parameter> }

The server runs the subquery for one row after the other, and each sees what those before it wrote, so the result is
that of one query per row in their order. Without CALL it is not: there clauses run for all rows one after the other.

A row that deletes and writes more has a transaction of its own: a later row would find by an index what it deleted.

A variable is not allowed everywhere a parameter is. What can be told from the text is told here; the store asks the
server about the rest before it uses a form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from graphweft_rules.batching import ROW, BatchForm
from graphweft_rules.clauses import Outline, Words, outline
from graphweft_rules.tokens import tokenize

_VALUE: Final = "__gw_p"
_AGGREGATES: Final = frozenset(
    {"COUNT", "SUM", "AVG", "MIN", "MAX", "COLLECT", "STDEV", "STDEVP", "PERCENTILECONT", "PERCENTILEDISC"}
)
_OPENING: Final = ("(", "[", "{")


class _SingleOnly(Exception):
    """Why rows cannot share a query, for the rule's author."""


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


def neo4j_form(statement: str, columns: Iterable[str]) -> BatchForm:
    """Return how rows of a statement with these parameters run on Neo4j; never raises.

    The form's text has no end: behind it ``RETURN count(*)`` or a clause that goes on with one row per row stands.
    """
    names = tuple(columns)
    statement = with_plain_vectors(statement)
    query = outline(statement)
    values = {name: f"{_VALUE}{number}" for number, name in enumerate(names)}
    try:
        _check_deletes(query)
        edits = [*_calls(query, values), *_results(query, statement), *_params(query, values)]
    except _SingleOnly as error:
        return BatchForm(mode="single", statement=statement, columns=names, reason=str(error))
    bound = ", ".join(f"{ROW}[{number}] AS {value}" for number, value in enumerate(values.values(), start=1))
    head = f"WITH {bound} " if bound else ""
    # The line break ends a comment on the last line.
    text = f"{head}CALL ({', '.join(values.values())}) {{ {_edited(statement, edits)}\n}}"
    return BatchForm(mode="ordered", statement=text, columns=names)


def with_plain_vectors(statement: str) -> str:
    """Return a statement without the word ``vecf32`` of FalkorDB: here a vector is the list of numbers itself."""
    if "vecf32" not in statement.lower():
        return statement
    tokens = tokenize(statement)
    solid = [token for token in tokens if token.kind not in ("space", "comment")]
    calls = {token.start for token, following in pairwise(solid) if token.keyword == "VECF32" and following.text == "("}
    # As long as before, so that the server's places fit the statement.
    return "".join(" " * len(token.text) if token.start in calls else token.text for token in tokens)


def _check_deletes(query: Outline) -> None:
    """Refuse what deletes and also makes index entries.

    Neo4j 5.26 goes on finding a node by an entry that the transaction made and deleted again.
    """
    keywords = {clause.keyword for clause in query.clauses}
    if keywords & {"DELETE", "DETACH"} and keywords & {"SET", "MERGE", "CREATE"}:
        raise _SingleOnly("Neo4j finds what a row before it set and deleted: delete in a mutation of its own")


def _params(query: Outline, values: dict[str, str]) -> Iterator[_Edit]:
    words = query.words
    for clause in query.clauses:
        params = [index for index in clause.words if words.tokens[index].kind == "param"]
        if params and clause.keyword in ("LIMIT", "SKIP"):
            name = words.tokens[params[0]].text
            raise _SingleOnly(f"{clause.keyword} {name} cannot differ within a query: write the number, or use a slice")
        for index in params:
            if clause.keyword in ("CREATE", "MERGE") and _is_whole_map(words, index):
                text = words.tokens[index].text
                raise _SingleOnly(f"CREATE takes a map only from a parameter: write CREATE (n:Label) SET n = {text}")
    for word in words.tokens:
        if word.kind == "param":
            if word.identifier not in values:
                raise _SingleOnly(f"{word.text} has no value")
            yield _Edit(word.start, word.end, values[word.identifier])


def _is_whole_map(words: Words, index: int) -> bool:
    """Tell whether the parameter is all properties of a node or relationship: ``(n:Label $p)``."""
    named = bool(words.identifier(index - 1)) and words.text(index - 2) in ("(", "[", ":", "&")
    return named and words.keyword(index - 1) not in ("NOT", "DISTINCT") and words.text(index + 1) in (")", "]")


def _calls(query: Outline, values: dict[str, str]) -> Iterator[_Edit]:
    """Let subqueries see the values: each CALL sees only what it names."""
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
    """Name what the query returns as the server would name it: a subquery must, and names of ours stay out of it."""
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
                raise _SingleOnly("RETURN * in a UNION: name what is returned, or leave RETURN out")
            # It would return our names as well; what is behind it decides nothing, all writes are made.
            if number + 1 == len(main) and first + 1 == following:
                yield _Edit(words.tokens[clause.words[0]].start, words.tokens[following - 1].end, "FINISH")
                return
            raise _SingleOnly("RETURN * with more behind it: name what is returned, or leave RETURN out")
        for item in _items(words, first, following):
            _check_aggregate(words, item)
            if clause.keyword == "RETURN" and not _is_named(words, item):
                start, end = words.tokens[item.start].start, words.tokens[item.stop - 1].end
                name = statement[start:end].replace("`", "``")
                yield _Edit(end, end, f" AS `{name}`")


def _items(words: Words, first: int, end: int) -> Iterator[range]:
    start = index = first
    while index < end:
        if words.text(index) == ",":
            yield range(start, index)
            start = index + 1
        index = words.closing(index) + 1 if words.text(index) in _OPENING else index + 1
    if start < end:
        yield range(start, end)


def _is_named(words: Words, item: range) -> bool:
    """Tell whether the item has a name of its own: an alias, or it is a variable or a map projection of one."""
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


def _check_aggregate(words: Words, item: range) -> None:
    """Refuse ``count(*) + $p``: what is counted with has to be a parameter, or grouped by."""
    inside: set[int] = set()
    aggregates = False
    for index in item:
        if words.keyword(index) in _AGGREGATES and words.text(index + 1) == "(" and words.text(index - 1) != ".":
            aggregates = True
            inside.update(range(index + 1, words.closing(index + 1)))
    outside = [index for index in item if index not in inside and words.tokens[index].kind == "param"]
    if aggregates and outside:
        name = words.tokens[outside[0]].text
        raise _SingleOnly(f"an expression that counts rows holds {name}: count in a WITH of its own, then use {name}")


def _edited(statement: str, edits: list[_Edit]) -> str:
    parts: list[str] = []
    position = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < position:
            continue  # inside what is left out
        parts += (statement[position : edit.start], edit.text)
        position = edit.end
    return "".join(parts) + statement[position:]

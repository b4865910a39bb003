"""Searches of injection rules, compiled, and bound to one request.

A request that lacks a scope of the rule skips the search, which would otherwise find memories of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from graphweft_contracts.memory import SCOPE_PATTERN, MemoryScope
from graphweft_contracts.search import SearchOptions, SearchQuery, query_text, texts_of
from graphweft_rules.cypher.clauses import Outline
from graphweft_rules.cypher.part_parser import read_parts
from graphweft_rules.cypher.parts import ExpressionPart, PatternError, ProjectionItem, ProjectionPart
from graphweft_rules.cypher.problems import Level, QueryProblem
from graphweft_rules.cypher.query import Cypher, parse
from graphweft_rules.files.model import InjectionSearch
from graphweft_rules.matching.parameters import Absent, ParameterSource, Scope, compile_param
from graphweft_rules.text_limits import RETRIEVAL, length_problem

_MOST_SHOWN: Final = 200
"""Messages of a chat that are looked at."""
_RETURNED: Final = ("text", "score")
_WIDER: Final = "without the scope the search would find memories of others"
_TYPES: Final[dict[type, str]] = {
    bool: "true or false",
    dict: "a map",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "a text",
    type(None): "null",
}


def refers(value: Any) -> bool:
    """Tell whether a value of a rule holds a reference, in whatever depth."""
    if isinstance(value, dict):
        return any(refers(each) for each in value.values())  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return any(refers(each) for each in value)  # pyright: ignore[reportUnknownVariableType]
    return isinstance(value, str) and value.startswith("$") and not value.startswith("$$")


def plain_value(value: Any) -> Any:
    """Return a value of a rule without references, as requests get it."""
    found = compile_param(value).resolve(Scope(context={}, event={}, app_id="", chat_id=""))
    return None if isinstance(found, Absent) else found


class SearchError(ValueError):
    """A search that can never work; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledSearch:
    """A search with parsed references."""

    memory: tuple[tuple[str, ParameterSource], ...] | None
    query: ParameterSource | None
    history: int
    options: SearchOptions
    filters: tuple[tuple[str, ParameterSource], ...] = ()

    def bind(self, scope: Scope, retrieval_query: str | None, params: dict[str, Any]) -> SearchQuery | str:
        """Return the search for one request, or why it is skipped: with names of keys and references, never values."""
        try:
            memory = None if self.memory is None else scope_of(self.memory, scope)
            text = "" if self.query is None else text_of(self.query, scope, self.history)
            filters = {name: _filter(name, source, scope) for name, source in self.filters}
            shown = () if self.query is None or memory is None else _shown_before(self.query, scope)
        except NotReadyError as error:
            return str(error)
        try:
            return SearchQuery(
                text=text, memory=memory, shown=shown, retrieval_query=retrieval_query, params=params, **self.options,
                **filters,
            )  # fmt: skip
        except ValidationError as error:
            return f"invalid search: {said(error)}"


class NotReadyError(ValueError):
    """A request lacks a value for a search; the message names keys and references, never values."""


def scope_of(sources: tuple[tuple[str, ParameterSource], ...], scope: Scope) -> MemoryScope:
    """Return the scope of a request's search. Raises ``NotReadyError``."""
    given: dict[str, str] = {}
    for name, source in sources:
        value = source.resolve(scope)
        if isinstance(value, Absent):
            raise NotReadyError(
                f"the scope {name!r} needs {value.name}, which is missing: give it with the request, {_WIDER}"
            )
        if not isinstance(value, str):
            raise NotReadyError(f"the scope {name!r} must be a text, not {_type(value)}: {_WIDER}")
        given[name] = value
    try:
        return MemoryScope(**given)
    except ValidationError as error:
        raise NotReadyError(f"invalid scope: {said(error)}") from error


def _filter(name: str, source: ParameterSource, scope: Scope) -> Any:
    """Return the value of a filter. Raises ``NotReadyError``: without it the search would find more, or others."""
    value = source.resolve(scope)
    if isinstance(value, Absent):
        raise NotReadyError(f"{name} of the search needs {value.name}, which is missing: give it with the request")
    if fault := filter_fault(name, value):
        raise NotReadyError(f"{fault}: without it the search would find more, or memories of others")
    return value


def filter_fault(name: str, value: Any) -> str | None:
    """Return why a value of a filter limits nothing, or less than it should; None if it does not.

    Null is such a value at any depth: a scope with a null is wider than the rule says.
    """
    faults = (f"{where} of the search is null" for where, each in _parts(name, value) if each is None)
    if fault := next(faults, None):
        return fault
    if name in {"tags", "metadata"} and isinstance(value, dict | list | tuple) and not value:
        return f"{name} of the search is empty"
    return None


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value and what it holds, in whatever depth, each with its place."""
    yield name, value
    if isinstance(value, dict):
        entries: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        for key, each in entries.items():
            yield from _parts(f"{name}.{key}", each)
    elif isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        for place, each in enumerate(items):
            yield from _parts(f"{name}.{place}", each)


def text_of(source: ParameterSource, scope: Scope, history: int) -> str:
    """Return the text of a search: the value itself, or ``query_text`` of messages. Raises ``NotReadyError``."""
    value = source.resolve(scope)
    if isinstance(value, Absent):
        raise NotReadyError(f"the search's query needs {value.name}, which is missing: give it with the request")
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        messages = cast("Sequence[Any]", value)
        if messages and not any(isinstance(message, dict) for message in messages):
            raise NotReadyError("the search's query is a list without messages: give each item a role and a text")
        return query_text(messages, history)
    raise NotReadyError(f"the search's query must be a text or a list of messages, not {_type(value)}")


def _shown_before(source: ParameterSource, scope: Scope) -> tuple[str, ...]:
    """Return the texts of the messages before the last one: who sends a chat shows them to the model already."""
    value = source.resolve(scope)
    if not isinstance(value, list | tuple):
        return ()
    return tuple(texts_of(cast("Sequence[Any]", value)[-_MOST_SHOWN:])[:-1])


def _type(value: Any) -> str:
    return _TYPES.get(type(value), f"of the type {type(value).__name__}")  # pyright: ignore[reportUnknownArgumentType]


def compile_search(search: InjectionSearch) -> CompiledSearch:
    """Compile a search. Raises ``SearchError`` if it can never work."""
    memory = search.memory
    try:
        any_scope = None if memory is None else MemoryScope(**dict.fromkeys(memory, "x"))
        plain = {name: plain_value(value) for name, value in search.filters.items() if not refers(value)}
        SearchQuery(memory=any_scope, **search.options, **plain)
        if memory is None and search.filters:
            raise SearchError(f"{min(search.filters)} is for what is remembered: write memory, or leave it out")
        query_text((), search.message_history_count)
        return CompiledSearch(
            memory=None if memory is None else tuple((name, compile_param(value)) for name, value in memory.items()),
            query=None if search.query is None else compile_param(search.query),
            history=search.message_history_count,
            options=search.options,
            filters=tuple((name, compile_param(value)) for name, value in search.filters.items()),
        )
    except ValidationError as error:
        raise SearchError(said(error)) from error
    except ValueError as error:
        raise SearchError(str(error)) from error


def said(error: ValidationError) -> str:
    """Return the faults of a model's fields, without values."""
    found = [(".".join(map(str, each["loc"])), _in_words(each)) for each in error.errors()]
    return "; ".join(f"{field}: {message}" if field else message for field, message in found)


def _in_words(fault: ErrorDetails) -> str:
    if fault["type"] == "string_pattern_mismatch" and fault.get("ctx", {}).get("pattern") == SCOPE_PATTERN:
        return "control characters, and blanks at either end, are not allowed"
    return fault["msg"].removeprefix("Value error, ")


def parse_retrieval(text: str) -> Cypher:
    """Parse a ``retrieval_query``: an injection query that goes on from ``node`` and ``score``. Never raises."""
    return _kept(text) if length_problem(text, RETRIEVAL) is None else _parsed(text)


def _parsed(text: str) -> Cypher:
    return parse(text, role="injection", limits=RETRIEVAL, further=_retrieval_problems)


_kept: Final = lru_cache(maxsize=256)(_parsed)
"""Requests have such queries, too, and anybody can send many."""


def _retrieval_problems(query: Outline) -> Iterator[QueryProblem]:
    words = query.words

    def problem(level: Level, code: str, message: str, index: int) -> QueryProblem:
        return QueryProblem(level, code, message, words.tokens[index].start)

    main = [clause for clause in query.clauses if clause.depth == 0]
    union = next((clause for clause in main if clause.keyword == "UNION"), None)
    if union is not None:
        message = "node and score are not visible after UNION: put both parts into CALL (node, score) { … }"
        yield problem("error", "retrieval-union", message, union.words[0])
        return
    last = next((clause for clause in reversed(main) if clause.keyword == "RETURN"), None)
    if last is None:
        message = "the retrieval_query returns nothing: end it with RETURN node.text AS text, score ORDER BY score DESC"
        yield problem("error", "retrieval-columns", message, 0)
        return
    try:
        parts = read_parts(query)
    except PatternError:
        return  # not supported here: the server decides
    returned = next(part for part in parts if isinstance(part, ProjectionPart) and part.clause is last)
    names = {item.alias for item in returned.items}
    missing = [name for name in _RETURNED if name not in names]
    if missing and not returned.star:
        message = f"the retrieval_query returns no column {' and no column '.join(map(repr, missing))}: "
        message += "it must return at least text and score, as in RETURN node.text AS text, score"
        yield problem("error", "retrieval-columns", message, last.words[0])
    sorts = [part for part in parts if isinstance(part, ExpressionPart) and part.keyword == "ORDER"]
    order = next((part for part in sorts if part.clause in main[main.index(last) :]), None)
    first = order.items[0] if order else None
    best_first = (
        first and _sorted_by(query, first) == "score" and words.keyword(first.expression.stop).startswith("DESC")
    )
    if not best_first:
        message = "the retrieval_query does not order by score: end it with ORDER BY score DESC"
        yield problem("warning", "retrieval-order", message, order.clause.words[0] if order else last.words[0])


def _sorted_by(query: Outline, item: ProjectionItem) -> str:
    """Return the column or property of a sort item; empty for other expressions."""
    words, expression = query.words, item.expression
    alone = len(expression) == 1 or (len(expression) == 3 and words.text(expression.start + 1) == ".")
    return words.identifier(expression.stop - 1) if alone else ""

"""Parses the clauses of a query into parts.

It knows the Cypher that the supported graph servers share and raises ``PatternError`` for anything else. A caller that
must know the effects of a query then assumes that the query may have any effect.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphweft_rules.cypher.clauses import Clause, Outline, QueryWords, once
from graphweft_rules.cypher.parts import (
    CallPart,
    DeletePart,
    ExpressionPart,
    ForeachPart,
    Part,
    PatternError,
    PatternKeyword,
    PatternPart,
    ProjectionItem,
    ProjectionKeyword,
    ProjectionPart,
    Property,
    RemovePart,
    SetItem,
    SetKind,
    SetPart,
    UnionPart,
    UnwindPart,
)
from graphweft_rules.cypher.pattern_parser import (
    KEYWORDS,
    map_entries,
    not_empty,
    outside_brackets,
    path_patterns,
    split_at_commas,
    variable_name,
)


def read_parts(query: Outline) -> tuple[Part, ...]:
    """Return the parts of a query in the order of their keywords; nested clauses follow the part that holds them.

    Raises ``PatternError``.
    """
    found = _parts_or_error(query)
    if isinstance(found, PatternError):
        raise PatternError(found.place, found.message)  # a new one, because each raise adds to a traceback
    return found


@once
def _parts_or_error(query: Outline) -> tuple[Part, ...] | PatternError:
    try:
        return _parts(query)
    except PatternError as error:
        return PatternError(error.place, error.message)


def _parts(query: Outline) -> tuple[Part, ...]:
    if query.stray is not None:
        raise PatternError(0, "a bracket has no partner")
    clauses = query.clauses
    if not clauses or clauses[0].words[0] != 0:
        raise PatternError(0, "the query does not begin with a clause")
    parts: list[Part] = []
    for number, clause in enumerate(clauses):
        before = clauses[number - 1].keyword if number else ""
        part = _part(query, clause, before)
        if part is not None:
            parts.append(part)
    return tuple(parts)


def literal_map(query: Outline, expression: range) -> tuple[Property, ...] | None:
    """Return the entries of ``{name: value, …}``; None for any other expression."""
    words = query.words
    if not expression or words.text(expression.start) != "{" or words.closing(expression.start) != expression.stop - 1:
        return None
    return tuple(map_entries(words, expression.start))


def _part(query: Outline, clause: Clause, before: str) -> Part | None:
    """Return the part of a clause; None for OPTIONAL, DETACH and ON, which belong to the next clause."""
    words = query.words
    inside = _inside(words, clause)
    keyword = clause.keyword
    match keyword:
        case "OPTIONAL" | "DETACH" | "ON":
            return None
        case "MATCH":
            optional: PatternKeyword = "OPTIONAL MATCH" if before == "OPTIONAL" else "MATCH"
            return PatternPart(clause=clause, keyword=optional, paths=tuple(path_patterns(words, inside)))
        case "MERGE" | "CREATE":
            paths = tuple(path_patterns(words, inside))
            if keyword == "MERGE" and len(paths) != 1:
                raise PatternError(clause.words[0], "MERGE takes one path")
            return PatternPart(clause=clause, keyword=keyword, paths=paths)
        case "SET":
            on = words.keyword(clause.words[0] - 1) if clause.conditional else ""
            items = tuple(_set_item(words, span) for span in split_at_commas(words, inside))
            return SetPart(clause=clause, on="CREATE" if on == "CREATE" else "MATCH" if on else "", items=items)
        case "REMOVE":
            return RemovePart(
                clause=clause, items=tuple(_remove_item(words, span) for span in split_at_commas(words, inside))
            )
        case "DELETE":
            plain = tuple(_item(words, span) for span in split_at_commas(words, inside))
            return DeletePart(clause=clause, detach=before == "DETACH", items=plain)
        case "WITH" | "RETURN" | "YIELD":
            return _projection(words, clause, keyword, inside)
        case "UNWIND":
            unwound = _item(words, inside)
            if words.keyword(inside.stop - 2) != "AS":
                raise PatternError(clause.words[0], "UNWIND without AS")
            return UnwindPart(clause=clause, expression=unwound.expression, variable=unwound.alias)
        case "FOREACH":
            return _foreach(words, clause)
        case "WHERE" | "SKIP" | "LIMIT":
            whole = (ProjectionItem(expression=inside, alias="", place=inside.start),)
            return ExpressionPart(clause=clause, keyword=keyword, items=whole)
        case "ORDER":
            return ExpressionPart(clause=clause, keyword="ORDER", items=tuple(_sort_items(words, inside)))
        case "CALL":
            return _call(query, clause, inside)
        case "UNION":
            if inside and not (len(inside) == 1 and words.keyword(inside.start) == "ALL"):
                raise PatternError(inside.start, "unexpected words after UNION")
            return UnionPart(clause=clause, all=bool(inside))
        case _:
            raise PatternError(clause.words[0], f"{keyword} is not supported")


def _inside(words: QueryWords, clause: Clause) -> range:
    """Return the words after the clause's keyword, nested clauses included."""
    start, stop = clause.words[0] + 1, clause.words[-1] + 1
    while stop > start and words.text(stop - 1) == ";":
        stop -= 1
    return range(start, stop)


def _set_item(words: QueryWords, span: range) -> SetItem:
    start = span.start
    second, third, fourth = (words.text(start + number) for number in (1, 2, 3))
    if second == "." and fourth == "=" and words.identifier(start + 2):
        return _assignment(words, "property", span, (words.identifier(start + 2),), value=span[4:])
    if second == "=":
        return _assignment(words, "replace", span, value=span[2:])
    if second == "+" and third == "=":
        return _assignment(words, "update", span, value=span[3:])
    return _labels_item(words, span)


def _remove_item(words: QueryWords, span: range) -> SetItem:
    if len(span) == 3 and words.text(span.start + 1) == "." and words.identifier(span.start + 2):
        return _assignment(words, "property", span, (words.identifier(span.start + 2),))
    return _labels_item(words, span)


def _labels_item(words: QueryWords, span: range) -> SetItem:
    labels: list[str] = []
    for index in range(span.start + 1, span.stop, 2):
        if words.text(index) != ":" or index + 1 >= span.stop or not words.identifier(index + 1):
            raise PatternError(span.start, "an item of an unknown form")
        labels.append(words.identifier(index + 1))
    if not labels:
        raise PatternError(span.start, "an item of an unknown form")
    return _assignment(words, "label", span, tuple(labels))


def _assignment(
    words: QueryWords, kind: SetKind, span: range, names: tuple[str, ...] = (), *, value: range | None = None
) -> SetItem:
    value = None if value is None else not_empty(value)
    return SetItem(
        kind=kind, variable=variable_name(words, span.start), names=names, value=value, place=span.start
    )  # fmt: skip


def _item(words: QueryWords, span: range) -> ProjectionItem:
    if len(span) > 2 and words.keyword(span.stop - 2) == "AS":
        alias = variable_name(words, span.stop - 1)
        return ProjectionItem(expression=range(span.start, span.stop - 2), alias=alias, place=span.start)
    own = len(span) == 1 and words.keyword(span.start) not in KEYWORDS
    return ProjectionItem(
        expression=not_empty(span), alias=words.identifier(span.start) if own else "", place=span.start
    )


def _projection(words: QueryWords, clause: Clause, keyword: ProjectionKeyword, inside: range) -> ProjectionPart:
    distinct = words.keyword(inside.start) == "DISTINCT"
    if distinct:
        inside = inside[1:]
    spans = list(split_at_commas(words, inside))
    stars = [span for span in spans if len(span) == 1 and words.text(span.start) in ("*", "-")]
    return ProjectionPart(
        clause=clause,
        keyword=keyword,
        distinct=distinct,
        star=bool(stars),
        items=tuple(_item(words, span) for span in spans if span not in stars),
    )


def _sort_items(words: QueryWords, inside: range) -> Iterator[ProjectionItem]:
    if words.keyword(inside.start) != "BY":
        raise PatternError(inside.start, "ORDER without BY")
    for span in split_at_commas(words, inside[1:]):
        stop = span.stop
        if words.keyword(stop - 1) in ("ASC", "ASCENDING", "DESC", "DESCENDING"):
            stop -= 1
        yield ProjectionItem(expression=not_empty(range(span.start, stop)), alias="", place=span.start)


def _foreach(words: QueryWords, clause: Clause) -> ForeachPart:
    opening = clause.words[0] + 1
    inside = outside_brackets(words, range(opening + 1, words.closing(opening)))
    bar = next((index for index in inside if words.text(index) == "|"), None)
    if bar is None or words.text(opening) != "(" or words.keyword(opening + 2) != "IN":
        raise PatternError(clause.words[0], "FOREACH of an unknown form")
    expression = not_empty(range(opening + 3, bar))
    return ForeachPart(clause=clause, variable=variable_name(words, opening + 1), expression=expression)


def _call(query: Outline, clause: Clause, inside: range) -> CallPart:
    words = query.words
    index = inside.start
    imports: tuple[str, ...] | None = None
    if words.text(index) == "(":
        listed = range(index + 1, words.closing(index))
        imports = tuple(variable_name(words, span.start) for span in split_at_commas(words, listed)) if listed else ()
        index = words.closing(index) + 1
    if words.text(index) == "{":
        if words.closing(index) != inside.stop - 1:
            raise PatternError(index, "unexpected words after a subquery")
        if not any(other.words[0] == index + 1 for other in query.clauses):
            raise PatternError(index, "a subquery does not begin with a clause")
        return CallPart(clause=clause, procedure="", imports=imports, arguments=None)
    start = index
    while index < inside.stop and words.text(index) != "(":
        index += 1
    name = "".join(words.identifier(position) or words.text(position) for position in range(start, index)).lower()
    closing = words.closing(index) if index < inside.stop else inside.stop
    if imports is not None or not name or closing + 1 < inside.stop:
        raise PatternError(clause.words[0], "CALL of an unknown form")
    return CallPart(clause=clause, procedure=name, imports=None, arguments=range(index + 1, closing))

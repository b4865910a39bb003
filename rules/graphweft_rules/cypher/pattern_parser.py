"""Parses node, relationship and path patterns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from graphweft_rules.cypher.clauses import QueryWords
from graphweft_rules.cypher.parts import (
    Direction,
    NodePattern,
    PathPattern,
    PatternError,
    Property,
    RelationshipPattern,
)

KEYWORDS: Final = frozenset(
    {
        *("AND", "ASC", "ASCENDING", "AS", "CASE", "CONTAINS", "DESC", "DESCENDING", "DISTINCT", "ELSE", "END", "ENDS"),
        *("FALSE", "IN", "IS", "NOT", "NULL", "OR", "STARTS", "THEN", "TRUE", "WHEN", "WHERE", "WITH", "XOR"),
    }
)
"""Bare names that are part of an expression's own language."""
_PATH_FUNCTIONS: Final = frozenset({"shortestpath", "allshortestpaths"})
OPENING: Final = frozenset("([{")


def split_at_commas(words: QueryWords, span: range) -> Iterator[range]:
    """Yield the spans between commas outside of brackets. Raises ``PatternError`` for an empty one."""
    start, index = span.start, span.start
    while index < span.stop:
        if words.text(index) == ",":
            yield not_empty(range(start, index))
            start = index + 1
        index = words.closing(index) + 1 if words.text(index) in OPENING else index + 1
    yield not_empty(range(start, span.stop))


def not_empty(span: range) -> range:
    """Return the span. Raises ``PatternError`` if it is empty."""
    if not span:
        raise PatternError(max(0, span.start - 1), "something is missing here")
    return span


def variable_name(words: QueryWords, index: int) -> str:
    """Return the variable at the index. Raises ``PatternError`` for another word or a keyword."""
    name = words.identifier(index)
    if not name:
        raise PatternError(index, f"expected a name instead of {words.text(index)!r}")
    if words.keyword(index) in KEYWORDS:
        raise PatternError(index, f"the variable {name!r} is named like a keyword")
    return name


def path_patterns(words: QueryWords, span: range) -> Iterator[PathPattern]:
    """Yield the paths of a MATCH, MERGE or CREATE. Raises ``PatternError``."""
    for path in split_at_commas(words, span):
        index, variable, function = path.start, "", ""
        if words.text(index + 1) == "=":
            variable = variable_name(words, index)
            index += 2
        stop = path.stop
        if words.identifier(index).lower() in _PATH_FUNCTIONS and words.text(index + 1) == "(":
            function = words.identifier(index).lower()
            if words.closing(index + 1) != stop - 1:
                raise PatternError(index, "unexpected words after a path function")
            index, stop = index + 2, stop - 1
        yield _path(words, range(index, stop), variable, function)


def _path(words: QueryWords, span: range, variable: str, function: str) -> PathPattern:
    nodes = [_node(words, span.start, span.stop)]
    relationships: list[RelationshipPattern] = []
    index = words.closing(span.start) + 1
    while index < span.stop:
        after = _arrow_end(words, index, span.stop)
        nodes.append(_node(words, after, span.stop))
        relationships.append(_relationship(words, range(index, after), nodes[-2], nodes[-1]))
        index = words.closing(after) + 1
    return PathPattern(
        variable=variable,
        function=function,
        nodes=tuple(nodes),
        relationships=tuple(relationships),
        place=span.start,
    )


def _arrow_end(words: QueryWords, index: int, stop: int) -> int:
    """Return where the next node begins, given the first word of an arrow."""
    position = index
    while position < stop and words.text(position) != "(":
        position = words.closing(position) + 1 if words.text(position) in OPENING else position + 1
    if position >= stop:
        raise PatternError(index, "a path ends without a node")
    return position


def _node(words: QueryWords, index: int, stop: int) -> NodePattern:
    end = words.closing(index)
    if words.text(index) != "(" or end >= stop:
        raise PatternError(index, "expected a node")
    if words.text(index + 1) == "(":
        raise PatternError(index, "a path in parentheses")
    inner = _inner(words, range(index + 1, end))
    labels, alternatives, excluding = _label_expression(words, inner.labels)
    return NodePattern(
        variable=inner.variable,
        labels=labels,
        alternatives=alternatives,
        excluding=excluding,
        properties=inner.properties,
        map_parameter=inner.map_parameter,
        where=inner.where,
        place=index,
    )


def _relationship(words: QueryWords, arrow: range, left: NodePattern, right: NodePattern) -> RelationshipPattern:
    texts = [words.text(index) for index in arrow]
    bracket = texts.index("[") if "[" in texts else -1
    inner = _Inner()
    many = False
    if bracket >= 0:
        opening = arrow.start + bracket
        closing = words.closing(opening)
        head, tail = "".join(texts[:bracket]), "".join(texts[closing - arrow.start + 1 :])
        star = next(
            (index for index in outside_brackets(words, range(opening + 1, closing)) if words.text(index) == "*"), None
        )
        if star is None:
            inner = _inner(words, range(opening + 1, closing))
        else:
            many = True
            inner = _inner(words, range(opening + 1, star), _length_end(words, star, closing), closing)
    else:
        joined = "".join(texts)
        head, tail = ("<-", joined[2:]) if joined.startswith("<-") else ("-", joined[1:])
    shape = (head, tail)
    directions: dict[tuple[str, str], Direction] = {
        ("-", "->"): "right",
        ("<-", "-"): "left",
        ("-", "-"): "both",
        ("<-", "->"): "both",
    }
    if shape not in directions:
        raise PatternError(arrow.start, "a relationship of an unknown form")
    direction = directions[shape]
    types, alternatives, excluding = _label_expression(words, inner.labels)
    if len(types) > 1 or (types and alternatives):
        raise PatternError(arrow.start, "a relationship of two types at once")
    return RelationshipPattern(
        variable=inner.variable,
        types=() if excluding else types + alternatives,
        properties=inner.properties,
        map_parameter=inner.map_parameter,
        where=inner.where,
        direction=direction,
        many=many,
        start=right if direction == "left" else left,
        end=left if direction == "left" else right,
        place=arrow.start,
    )


def outside_brackets(words: QueryWords, span: range) -> Iterator[int]:
    """Yield the indices of the span outside of brackets."""
    index = span.start
    while index < span.stop:
        if words.text(index) in OPENING:
            index = words.closing(index) + 1
            continue
        yield index
        index += 1


def _length_end(words: QueryWords, star: int, stop: int) -> int:
    """Return the index after ``*``, ``*2``, ``*1..3``, ``*..3`` or ``*1..``."""
    index = star + 1
    while index < stop and (words.text(index) == "." or words.text(index).isdigit()):
        index += 1
    return index


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inner:
    """The content of the brackets of a node or a relationship."""

    variable: str = ""
    labels: range = range(0)
    properties: tuple[Property, ...] = ()
    map_parameter: str = ""
    where: range | None = None


def _inner(words: QueryWords, head: range, rest_start: int | None = None, rest_stop: int = 0) -> _Inner:
    """Parse ``variable:Labels {…} WHERE …``; after a length (``*1..3``), map and condition begin at ``rest_start``."""
    index = head.start
    variable = ""
    if index < head.stop and words.identifier(index) and words.keyword(index) not in ("WHERE", "IS"):
        variable = variable_name(words, index)
        index += 1
    labels = range(0)
    if index < head.stop and (words.text(index) == ":" or words.keyword(index) == "IS"):
        if words.keyword(index) == "IS":
            raise PatternError(index, "IS for labels")
        start = index
        while index < head.stop and not _ends_labels(words, index):
            index = words.closing(index) + 1 if words.text(index) == "(" else index + 1
        labels = range(start, index)
    if rest_start is not None:
        if index != head.stop:
            raise PatternError(index, "words before a length")
        index, stop = rest_start, rest_stop
    else:
        stop = head.stop
    properties: tuple[Property, ...] = ()
    map_parameter = ""
    if index < stop and words.text(index) == "{":
        properties = tuple(map_entries(words, index))
        index = words.closing(index) + 1
    elif index < stop and words.tokens[index].kind == "param":
        map_parameter = words.tokens[index].identifier
        index += 1
    where: range | None = None
    if index < stop and words.keyword(index) == "WHERE":
        where = not_empty(range(index + 1, stop))
        index = stop
    if index != stop:
        raise PatternError(index, f"{words.text(index)!r} in a pattern")
    return _Inner(variable=variable, labels=labels, properties=properties, map_parameter=map_parameter, where=where)


def _ends_labels(words: QueryWords, index: int) -> bool:
    return words.text(index) == "{" or words.tokens[index].kind == "param" or words.keyword(index) == "WHERE"


def _label_expression(words: QueryWords, span: range) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return (labels of every node, labels of which each node has one, whether the expression is more complex)."""
    if not span:
        return (), (), False
    names: list[str] = []
    operators: set[str] = set()
    nested = False
    for index in range(span.start + 1, span.stop):
        text = words.text(index)
        if words.identifier(index):
            names.append(words.identifier(index))
        elif text in ("&", "|", ":"):
            operators.add("&" if text == ":" and words.text(index - 1) != "|" else "|" if text == ":" else text)
        elif text in ("!", "%", "(", ")"):
            nested = True
        else:
            raise PatternError(index, f"{text!r} in a label expression")
    if nested or len(operators) > 1:
        return (), (), True
    if not names:
        raise PatternError(span.start, "a label is missing")
    return ((), tuple(names), False) if operators == {"|"} else (tuple(names), (), False)


def map_entries(words: QueryWords, brace: int) -> Iterator[Property]:
    """Yield the entries of the map that opens at ``brace``. Raises ``PatternError``."""
    span = range(brace + 1, words.closing(brace))
    if not span:
        return
    for entry in split_at_commas(words, span):
        if not words.identifier(entry.start) or words.text(entry.start + 1) != ":":
            raise PatternError(entry.start, "a map entry without a name")
        value = not_empty(range(entry.start + 2, entry.stop))
        yield Property(name=words.identifier(entry.start), value=value, place=entry.start)

"""The parts of a query's clauses: node and relationship patterns, what is set, what is projected, what is read.

It goes one step further than ``clauses`` and says which words are a variable, a label, a property or an expression. It
knows the Cypher that FalkorDB and Neo4j 5 share. Whatever it does not know raises ``PatternError``: a caller that needs
to be sure what a query touches then takes it to touch anything. Every place is the index of a word in the outline, and
every expression is the ``range`` of its words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from graphweft_rules.clauses import Clause, Outline, Words

_KEYWORDS: Final = frozenset(
    {
        *("AND", "ASC", "ASCENDING", "AS", "CASE", "CONTAINS", "DESC", "DESCENDING", "DISTINCT", "ELSE", "END", "ENDS"),
        *("FALSE", "IN", "IS", "NOT", "NULL", "OR", "STARTS", "THEN", "TRUE", "WHEN", "WHERE", "WITH", "XOR"),
    }
)
"""Bare names that are part of an expression's own language."""
_QUANTIFIERS: Final = frozenset({"all", "any", "none", "single", "filter", "extract"})
_SUBQUERIES: Final = frozenset({"EXISTS", "COUNT", "COLLECT"})
_PATH_FUNCTIONS: Final = frozenset({"shortestpath", "allshortestpaths"})
_OPENING: Final = frozenset("([{")
_CLOSING: Final = frozenset(")]}")

Direction = Literal["right", "left", "both"]
PatternKeyword = Literal["MATCH", "OPTIONAL MATCH", "MERGE", "CREATE"]
ProjectionKeyword = Literal["WITH", "RETURN", "YIELD"]
SetKind = Literal["property", "label", "replace", "update"]


class PatternError(Exception):
    """The query has something that is not understood here; ``place`` is the index of its word."""

    def __init__(self, place: int, message: str) -> None:
        super().__init__(message)
        self.place = place
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """``name: value`` in the map of a pattern or in a literal map."""

    name: str
    value: range
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePattern:
    """``(variable:Label {name: value} WHERE …)``. A bound variable may stand here again, with or without labels."""

    variable: str
    """Empty when the pattern has none."""
    labels: tuple[str, ...]
    """What every node here has, by the pattern: ``:A:B`` and ``:A&B``."""
    alternatives: tuple[str, ...]
    """``:A|B``: every node here has one of these at least. Empty when the pattern says nothing of the kind."""
    excluding: bool
    """The label expression says more than ``labels`` and ``alternatives``, by ``!``, ``%`` or nesting: fewer match."""
    properties: tuple[Property, ...]
    map_parameter: str
    """The parameter that stands for the whole map, ``(n $props)``; empty for none."""
    where: range | None
    """The condition inside the pattern."""
    place: int
    """Of the opening parenthesis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationshipPattern:
    """``-[variable:TYPE {name: value} WHERE …]->`` between two nodes of a path."""

    variable: str
    types: tuple[str, ...]
    """One of these; empty means any type, which is also how ``!T`` and ``%`` are given."""
    properties: tuple[Property, ...]
    map_parameter: str
    where: range | None
    direction: Direction
    many: bool
    """Of variable length, ``*``: the variable is a list."""
    start: NodePattern
    """Where the relationship begins; for direction ``both`` the node to the left in the text."""
    end: NodePattern
    place: int
    """Of the first word between the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPattern:
    """One path: nodes in the order of the text, one more than the relationships between them."""

    variable: str
    """Of ``p = …``; empty for none."""
    function: str
    """``shortestpath`` or ``allshortestpaths`` when the path stands in one; empty otherwise."""
    nodes: tuple[NodePattern, ...]
    relationships: tuple[RelationshipPattern, ...]
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An expression of WITH, RETURN, YIELD, DELETE or ORDER BY."""

    expression: range
    alias: str
    """The name it has from here on: behind AS, or its own when it is one name. Empty for other expressions."""
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetItem:
    """What SET or REMOVE does to a variable.

    ``property``: ``n.x = value`` (``value`` is None in REMOVE). ``label``: ``n:A:B``. ``replace``: ``n = value``.
    ``update``: ``n += value``; see ``literal_map`` for the names in it.
    """

    kind: SetKind
    variable: str
    names: tuple[str, ...]
    """The property, or the labels; empty for a whole map."""
    value: range | None
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternPart:
    """MATCH, OPTIONAL MATCH, MERGE or CREATE."""

    clause: Clause
    keyword: PatternKeyword
    paths: tuple[PathPattern, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPart:
    """SET, by itself or behind ON CREATE or ON MATCH."""

    clause: Clause
    on: Literal["", "CREATE", "MATCH"]
    items: tuple[SetItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePart:
    """REMOVE of properties and labels."""

    clause: Clause
    items: tuple[SetItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePart:
    """DELETE or DETACH DELETE."""

    clause: Clause
    detach: bool
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionPart:
    """WITH, RETURN, or YIELD behind a procedure."""

    clause: Clause
    keyword: ProjectionKeyword
    distinct: bool
    star: bool
    """``*`` stands among the items."""
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwindPart:
    """``UNWIND expression AS variable``."""

    clause: Clause
    expression: range
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeachPart:
    """``FOREACH (variable IN expression | …)``. The clauses behind the bar follow as parts one level deeper."""

    clause: Clause
    variable: str
    expression: range


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressionPart:
    """WHERE, ORDER BY, SKIP or LIMIT: words that go with the clause before them."""

    clause: Clause
    keyword: Literal["WHERE", "ORDER", "SKIP", "LIMIT"]
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPart:
    """``CALL {…}``, whose clauses follow one level deeper, or ``CALL procedure(…)``."""

    clause: Clause
    procedure: str
    """Dotted name in lower case; empty for a subquery."""
    imports: tuple[str, ...] | None
    """The variables of ``CALL (a, b) {…}``; None when the subquery has no such list."""
    arguments: range | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionPart:
    """UNION or UNION ALL."""

    clause: Clause
    all: bool


Part = (
    PatternPart
    | SetPart
    | RemovePart
    | DeletePart
    | ProjectionPart
    | UnwindPart
    | ForeachPart
    | ExpressionPart
    | CallPart
    | UnionPart
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyRead:
    """``variable.name`` in an expression."""

    variable: str
    """Empty when the property is one of a computed value or of a comprehension's variable: it may be anybody's."""
    name: str
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableUse:
    """A variable as a whole: returned, compared, given to a function, indexed. All of an entity may be read by it."""

    variable: str
    """Empty for all properties of a comprehension's variable, ``x {.*}``: they may be anybody's."""
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTest:
    """``variable:Label`` in an expression; ``labels`` are all that the test names."""

    variable: str
    labels: tuple[str, ...]
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """``name(arguments)``; the name is in lower case, with its dots."""

    name: str
    arguments: range
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """What an expression uses. Words of subqueries (EXISTS, COUNT, COLLECT) are not in it: they are parts deeper."""

    reads: tuple[PropertyRead, ...]
    variables: tuple[VariableUse, ...]
    labels: tuple[LabelTest, ...]
    calls: tuple[FunctionCall, ...]
    parameters: tuple[tuple[str, int], ...]
    """(name without the dollar, place)."""
    subqueries: tuple[int, ...]
    """Places of subqueries."""


def read_parts(query: Outline) -> tuple[Part, ...]:
    """Return the parts of a query in the order of their keywords, subqueries and FOREACH after the part they are in.

    Raises ``PatternError``.
    """
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


def uses(query: Outline, expression: range) -> Uses:
    """Return what an expression uses, for a range of words that some part gives. Raises ``PatternError``."""
    walk = _Walk(query=query, first_words=frozenset(clause.words[0] for clause in query.clauses))
    walk.expression(expression.start, expression.stop, frozenset())
    return Uses(
        reads=tuple(walk.reads),
        variables=tuple(walk.variables),
        labels=tuple(walk.labels),
        calls=tuple(walk.calls),
        parameters=tuple(walk.parameters),
        subqueries=tuple(walk.subqueries),
    )


def literal_map(query: Outline, expression: range) -> tuple[Property, ...] | None:
    """Return the entries of ``{name: value, …}`` when the expression is just that, else None."""
    words = query.words
    if not expression or words.text(expression.start) != "{" or words.closing(expression.start) != expression.stop - 1:
        return None
    return tuple(_map(words, expression.start))


def _part(query: Outline, clause: Clause, before: str) -> Part | None:
    """Return the part that a clause is; None for words that only go before the next clause's keyword."""
    words = query.words
    inside = _inside(words, clause)
    keyword = clause.keyword
    match keyword:
        case "OPTIONAL" | "DETACH" | "ON":
            return None
        case "MATCH":
            optional: PatternKeyword = "OPTIONAL MATCH" if before == "OPTIONAL" else "MATCH"
            return PatternPart(clause=clause, keyword=optional, paths=tuple(_paths(words, inside)))
        case "MERGE" | "CREATE":
            paths = tuple(_paths(words, inside))
            if keyword == "MERGE" and len(paths) != 1:
                raise PatternError(clause.words[0], "MERGE takes one path")
            return PatternPart(clause=clause, keyword=keyword, paths=paths)
        case "SET":
            on = words.keyword(clause.words[0] - 1) if clause.conditional else ""
            items = tuple(_set_item(words, span) for span in _split(words, inside))
            return SetPart(clause=clause, on="CREATE" if on == "CREATE" else "MATCH" if on else "", items=items)
        case "REMOVE":
            return RemovePart(clause=clause, items=tuple(_remove_item(words, span) for span in _split(words, inside)))
        case "DELETE":
            plain = tuple(_item(words, span) for span in _split(words, inside))
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
            whole = (Item(expression=inside, alias="", place=inside.start),)
            return ExpressionPart(clause=clause, keyword=keyword, items=whole)
        case "ORDER":
            return ExpressionPart(clause=clause, keyword="ORDER", items=tuple(_sort_items(words, inside)))
        case "CALL":
            return _call(query, clause, inside)
        case "UNION":
            if inside and not (len(inside) == 1 and words.keyword(inside.start) == "ALL"):
                raise PatternError(inside.start, "words behind UNION")
            return UnionPart(clause=clause, all=bool(inside))
        case _:
            raise PatternError(clause.words[0], f"{keyword} is not read here")


def _inside(words: Words, clause: Clause) -> range:
    """Return the words behind the clause's keyword, those of clauses inside it among them."""
    start, stop = clause.words[0] + 1, clause.words[-1] + 1
    while stop > start and words.text(stop - 1) == ";":
        stop -= 1
    return range(start, stop)


def _split(words: Words, span: range) -> Iterator[range]:
    """Yield what stands between commas outside of brackets. Raises ``PatternError`` for a gap."""
    start, index = span.start, span.start
    while index < span.stop:
        if words.text(index) == ",":
            yield _filled(range(start, index))
            start = index + 1
        index = words.closing(index) + 1 if words.text(index) in _OPENING else index + 1
    yield _filled(range(start, span.stop))


def _filled(span: range) -> range:
    if not span:
        raise PatternError(max(0, span.start - 1), "something is missing here")
    return span


def _name(words: Words, index: int) -> str:
    """Return the variable at the index. Raises ``PatternError`` for other words and for names hard to tell apart."""
    name = words.identifier(index)
    if not name:
        raise PatternError(index, f"a name should stand in the place of {words.text(index)!r}")
    if words.keyword(index) in _KEYWORDS:
        raise PatternError(index, f"the variable {name!r} is named like a keyword")
    return name


# --- patterns ---


def _paths(words: Words, span: range) -> Iterator[PathPattern]:
    for path in _split(words, span):
        index, variable, function = path.start, "", ""
        if words.text(index + 1) == "=":
            variable = _name(words, index)
            index += 2
        stop = path.stop
        if words.identifier(index).lower() in _PATH_FUNCTIONS and words.text(index + 1) == "(":
            function = words.identifier(index).lower()
            if words.closing(index + 1) != stop - 1:
                raise PatternError(index, "words behind a path function")
            index, stop = index + 2, stop - 1
        yield _path(words, range(index, stop), variable, function)


def _path(words: Words, span: range, variable: str, function: str) -> PathPattern:
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


def _arrow_end(words: Words, index: int, stop: int) -> int:
    """Return where the next node begins, for the first word of an arrow."""
    position = index
    while position < stop and words.text(position) != "(":
        position = words.closing(position) + 1 if words.text(position) in _OPENING else position + 1
    if position >= stop:
        raise PatternError(index, "a path ends without a node")
    return position


def _node(words: Words, index: int, stop: int) -> NodePattern:
    end = words.closing(index)
    if words.text(index) != "(" or end >= stop:
        raise PatternError(index, "a node should begin here")
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


def _relationship(words: Words, arrow: range, left: NodePattern, right: NodePattern) -> RelationshipPattern:
    texts = [words.text(index) for index in arrow]
    bracket = texts.index("[") if "[" in texts else -1
    inner = _Inner()
    many = False
    if bracket >= 0:
        opening = arrow.start + bracket
        closing = words.closing(opening)
        head, tail = "".join(texts[:bracket]), "".join(texts[closing - arrow.start + 1 :])
        star = next((index for index in _flat(words, range(opening + 1, closing)) if words.text(index) == "*"), None)
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


def _flat(words: Words, span: range) -> Iterator[int]:
    """Yield the indices outside of brackets."""
    index = span.start
    while index < span.stop:
        if words.text(index) in _OPENING:
            index = words.closing(index) + 1
            continue
        yield index
        index += 1


def _length_end(words: Words, star: int, stop: int) -> int:
    """Return the index behind ``*``, ``*2``, ``*1..3``, ``*..3`` or ``*1..``."""
    index = star + 1
    while index < stop and (words.text(index) == "." or words.text(index).isdigit()):
        index += 1
    return index


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inner:
    """What stands between the brackets of a node or a relationship."""

    variable: str = ""
    labels: range = range(0)
    properties: tuple[Property, ...] = ()
    map_parameter: str = ""
    where: range | None = None


def _inner(words: Words, head: range, rest_start: int | None = None, rest_stop: int = 0) -> _Inner:
    """Read ``variable:Labels {…} WHERE …``; with a length in between, the map and the condition stand in the rest."""
    index = head.start
    variable = ""
    if index < head.stop and words.identifier(index) and words.keyword(index) not in ("WHERE", "IS"):
        variable = _name(words, index)
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
        properties = tuple(_map(words, index))
        index = words.closing(index) + 1
    elif index < stop and words.tokens[index].kind == "param":
        map_parameter = words.tokens[index].identifier
        index += 1
    where: range | None = None
    if index < stop and words.keyword(index) == "WHERE":
        where = _filled(range(index + 1, stop))
        index = stop
    if index != stop:
        raise PatternError(index, f"{words.text(index)!r} in a pattern")
    return _Inner(variable=variable, labels=labels, properties=properties, map_parameter=map_parameter, where=where)


def _ends_labels(words: Words, index: int) -> bool:
    return words.text(index) == "{" or words.tokens[index].kind == "param" or words.keyword(index) == "WHERE"


def _label_expression(words: Words, span: range) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return (labels that all have, labels of which each has one, whether the expression says more)."""
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


def _map(words: Words, brace: int) -> Iterator[Property]:
    span = range(brace + 1, words.closing(brace))
    if not span:
        return
    for entry in _split(words, span):
        if not words.identifier(entry.start) or words.text(entry.start + 1) != ":":
            raise PatternError(entry.start, "an entry of a map without a name")
        value = _filled(range(entry.start + 2, entry.stop))
        yield Property(name=words.identifier(entry.start), value=value, place=entry.start)


# --- other clauses ---


def _set_item(words: Words, span: range) -> SetItem:
    start, stop = span.start, span.stop
    second, third, fourth = (words.text(start + number) for number in (1, 2, 3))
    if second == "." and fourth == "=" and words.identifier(start + 2):
        value = _filled(range(start + 4, stop))
        return SetItem(
            kind="property",
            variable=_name(words, start),
            names=(words.identifier(start + 2),),
            value=value,
            place=start,
        )
    if second == "=":
        value = _filled(range(start + 2, stop))
        return SetItem(kind="replace", variable=_name(words, start), names=(), value=value, place=start)
    if second == "+" and third == "=":
        value = _filled(range(start + 3, stop))
        return SetItem(kind="update", variable=_name(words, start), names=(), value=value, place=start)
    return _labels_item(words, span)


def _remove_item(words: Words, span: range) -> SetItem:
    if len(span) == 3 and words.text(span.start + 1) == "." and words.identifier(span.start + 2):
        return SetItem(
            kind="property",
            variable=_name(words, span.start),
            names=(words.identifier(span.start + 2),),
            value=None,
            place=span.start,
        )
    return _labels_item(words, span)


def _labels_item(words: Words, span: range) -> SetItem:
    labels: list[str] = []
    for index in range(span.start + 1, span.stop, 2):
        if words.text(index) != ":" or index + 1 >= span.stop or not words.identifier(index + 1):
            raise PatternError(span.start, "an item of an unknown form")
        labels.append(words.identifier(index + 1))
    if not labels:
        raise PatternError(span.start, "an item of an unknown form")
    return SetItem(
        kind="label",
        variable=_name(words, span.start),
        names=tuple(labels),
        value=None,
        place=span.start,
    )


def _item(words: Words, span: range) -> Item:
    if len(span) > 2 and words.keyword(span.stop - 2) == "AS":
        alias = _name(words, span.stop - 1)
        return Item(expression=range(span.start, span.stop - 2), alias=alias, place=span.start)
    own = len(span) == 1 and words.keyword(span.start) not in _KEYWORDS
    return Item(expression=_filled(span), alias=words.identifier(span.start) if own else "", place=span.start)


def _projection(words: Words, clause: Clause, keyword: ProjectionKeyword, inside: range) -> ProjectionPart:
    distinct = words.keyword(inside.start) == "DISTINCT"
    if distinct:
        inside = inside[1:]
    spans = list(_split(words, inside))
    stars = [span for span in spans if len(span) == 1 and words.text(span.start) in ("*", "-")]
    return ProjectionPart(
        clause=clause,
        keyword=keyword,
        distinct=distinct,
        star=bool(stars),
        items=tuple(_item(words, span) for span in spans if span not in stars),
    )


def _sort_items(words: Words, inside: range) -> Iterator[Item]:
    if words.keyword(inside.start) != "BY":
        raise PatternError(inside.start, "ORDER without BY")
    for span in _split(words, inside[1:]):
        stop = span.stop
        if words.keyword(stop - 1) in ("ASC", "ASCENDING", "DESC", "DESCENDING"):
            stop -= 1
        yield Item(expression=_filled(range(span.start, stop)), alias="", place=span.start)


def _foreach(words: Words, clause: Clause) -> ForeachPart:
    opening = clause.words[0] + 1
    bar = next((index for index in clause.words if words.text(index) == "|" and _outside(words, opening, index)), None)
    if bar is None or words.text(opening) != "(" or words.keyword(opening + 2) != "IN":
        raise PatternError(clause.words[0], "FOREACH of an unknown form")
    expression = _filled(range(opening + 3, bar))
    return ForeachPart(clause=clause, variable=_name(words, opening + 1), expression=expression)


def _outside(words: Words, opening: int, index: int) -> bool:
    """Tell whether the index stands directly inside the bracket at ``opening``."""
    return index in _flat(words, range(opening + 1, words.closing(opening)))


def _call(query: Outline, clause: Clause, inside: range) -> CallPart:
    words = query.words
    index = inside.start
    imports: tuple[str, ...] | None = None
    if words.text(index) == "(":
        listed = range(index + 1, words.closing(index))
        imports = tuple(_name(words, span.start) for span in _split(words, listed)) if listed else ()
        index = words.closing(index) + 1
    if words.text(index) == "{":
        if words.closing(index) != inside.stop - 1:
            raise PatternError(index, "words behind a subquery")
        if not any(other.words[0] == index + 1 for other in query.clauses):
            raise PatternError(index, "a subquery that does not begin with a clause")
        return CallPart(clause=clause, procedure="", imports=imports, arguments=None)
    start = index
    while index < inside.stop and words.text(index) != "(":
        index += 1
    name = "".join(words.identifier(position) or words.text(position) for position in range(start, index)).lower()
    closing = words.closing(index) if index < inside.stop else inside.stop
    if imports is not None or not name or closing + 1 < inside.stop:
        raise PatternError(clause.words[0], "CALL of an unknown form")
    return CallPart(clause=clause, procedure=name, imports=None, arguments=range(index + 1, closing))


# --- expressions ---


@dataclass(slots=True, kw_only=True)
class _Walk:
    """A walk over the words of an expression that notes what is used."""

    query: Outline
    first_words: frozenset[int]
    reads: list[PropertyRead] = field(default_factory=list[PropertyRead])
    variables: list[VariableUse] = field(default_factory=list[VariableUse])
    labels: list[LabelTest] = field(default_factory=list[LabelTest])
    calls: list[FunctionCall] = field(default_factory=list[FunctionCall])
    parameters: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    subqueries: list[int] = field(default_factory=list[int])

    def expression(self, start: int, stop: int, local: frozenset[str]) -> None:
        """Note what the words use; ``local`` are the names of comprehensions around them."""
        words = self.query.words
        index = start
        while index < stop:
            text = words.text(index)
            if text in _OPENING:
                self._bracket(index, local, "")
                index = words.closing(index) + 1
                self._no_arrow(index, stop)
            elif words.tokens[index].kind == "param":
                self.parameters.append((words.tokens[index].identifier, index))
                index = self._chain(index + 1, stop, of_parameter=True)
            elif words.identifier(index):
                index = self._named(index, stop, local)
            elif text == "." and words.text(index + 1) == ".":  # from..to
                index += 2
            elif text == "." and words.identifier(index + 1):  # of a computed value
                index = self._chain(index, stop, of_parameter=False)
            elif text == ":" or words.tokens[index].kind == "broken":
                raise PatternError(index, f"{text[:10]!r} in an expression")
            else:
                index += 1

    def _named(self, index: int, stop: int, local: frozenset[str]) -> int:
        """Note what a name begins; return the index behind it."""
        words = self.query.words
        name, keyword = words.identifier(index), words.keyword(index)
        end = index + 1
        while words.text(end) == "." and words.identifier(end + 1) and end + 1 < stop:
            end += 2
        if keyword in _KEYWORDS and end == index + 1:
            if keyword == "IS" and words.keyword(end + (words.keyword(end) == "NOT")) != "NULL":
                raise PatternError(index, "a test with IS that is not for NULL")
            return end
        if words.text(end) == "(" and end < stop:
            self._function(index, end, local)
            after = words.closing(end) + 1
            self._no_arrow(after, stop)
            return after
        if words.text(end) == "{" and end < stop:
            return self._braces(index, end, local)
        if end > index + 1:
            variable = "" if name in local or keyword in _KEYWORDS else name
            self.reads.append(PropertyRead(variable=variable, name=words.identifier(index + 2), place=index))
            return self._chain(index + 3, stop, of_parameter=False)
        if words.text(end) == ":" and end < stop:
            return self._label_test(index, stop, local)
        if name not in local:
            self.variables.append(VariableUse(variable=name, place=index))
        return end

    def _chain(self, index: int, stop: int, *, of_parameter: bool) -> int:
        """Note ``.name`` after ``.name``; a parameter's are no reads of the graph."""
        words = self.query.words
        while index + 1 < stop and words.text(index) == "." and words.identifier(index + 1):
            if not of_parameter:
                self.reads.append(PropertyRead(variable="", name=words.identifier(index + 1), place=index + 1))
            index += 2
        return index

    def _label_test(self, index: int, stop: int, local: frozenset[str]) -> int:
        words = self.query.words
        end = index + 1
        while end < stop and words.text(end) in (":", "&", "|", "!"):
            while end < stop and words.text(end) in (":", "&", "|", "!"):
                end += 1
            if not words.identifier(end):
                raise PatternError(index, "a test of labels of an unknown form")
            end += 1
        name = words.identifier(index)
        names = tuple(words.identifier(position) for position in range(index + 1, end) if words.identifier(position))
        self.labels.append(LabelTest(variable="" if name in local else name, labels=names, place=index))
        return end

    def _function(self, index: int, opening: int, local: frozenset[str]) -> None:
        words = self.query.words
        name = "".join(words.identifier(position) or "." for position in range(index, opening)).lower()
        closing = words.closing(opening)
        self.calls.append(FunctionCall(name=name, arguments=range(opening + 1, closing), place=index))
        if name == "reduce":
            self._reduce(opening, local)
        else:
            self._bracket(opening, local, name)

    def _bracket(self, opening: int, local: frozenset[str], function: str) -> None:
        """Note what stands in a bracket, which may be a comprehension or a map."""
        words = self.query.words
        closing = words.closing(opening)
        binds = words.text(opening) == "[" or function in _QUANTIFIERS
        if binds and words.identifier(opening + 1) and words.keyword(opening + 2) == "IN":
            self._comprehension(opening + 1, closing, local)
        elif words.text(opening) == "{":
            for entry in _map(words, opening):
                self.expression(entry.value.start, entry.value.stop, local)
        else:
            self.expression(opening + 1, closing, local)

    def _comprehension(self, index: int, closing: int, local: frozenset[str]) -> None:
        """Note ``x IN list WHERE … | …``: the list does not know x."""
        words = self.query.words
        middle = next(
            (place for place in _flat(words, range(index + 2, closing)) if _ends_list(words, place)),
            closing,
        )
        self.expression(index + 2, middle, local)
        inner = local | {_name(words, index)}
        self.expression(min(middle + 1, closing), closing, inner)

    def _reduce(self, opening: int, local: frozenset[str]) -> None:
        """Note ``reduce(sum = start, x IN list | …)``."""
        words = self.query.words
        closing = words.closing(opening)
        flat = list(_flat(words, range(opening + 1, closing)))
        comma = next((place for place in flat if words.text(place) == ","), None)
        bar = next((place for place in flat if words.text(place) == "|"), None)
        if comma is None or bar is None or words.text(opening + 2) != "=" or words.keyword(comma + 2) != "IN":
            raise PatternError(opening, "reduce() of an unknown form")
        self.expression(opening + 3, comma, local)
        self.expression(comma + 3, bar, local)
        self.expression(bar + 1, closing, local | {_name(words, opening + 1), _name(words, comma + 1)})

    def _braces(self, index: int, opening: int, local: frozenset[str]) -> int:
        """Note a subquery or the projection of a map, ``n {.x, .*, y: …, z}``."""
        words = self.query.words
        closing = words.closing(opening)
        if opening + 1 in self.first_words:
            if words.keyword(index) not in _SUBQUERIES:
                raise PatternError(index, "a subquery of an unknown form")
            self.subqueries.append(index)
            return closing + 1
        if words.keyword(index) in _SUBQUERIES:
            raise PatternError(index, "a subquery that is only a pattern")
        name = _name(words, index)
        if opening != index + 1:
            raise PatternError(index, "a projection of a property")
        for entry in _split(words, range(opening + 1, closing)) if closing > opening + 1 else ():
            self._projected(entry, "" if name in local else name, local)
        if closing == opening + 1 and name not in local:
            self.variables.append(VariableUse(variable=name, place=index))
        return closing + 1

    def _projected(self, entry: range, owner: str, local: frozenset[str]) -> None:
        words = self.query.words
        start = entry.start
        if words.text(start) == "." and words.text(start + 1) == "*":
            self.variables.append(VariableUse(variable=owner, place=start))
        elif words.text(start) == "." and words.identifier(start + 1):
            self.reads.append(PropertyRead(variable=owner, name=words.identifier(start + 1), place=start + 1))
        elif words.text(start + 1) == ":":
            self.expression(start + 2, entry.stop, local)
        else:
            self.expression(start, entry.stop, local)

    def _no_arrow(self, index: int, stop: int) -> None:
        """Raise ``PatternError`` where a bracket is followed by what may be a relationship: a pattern as expression."""
        words = self.query.words
        after = words.text(index) + words.text(index + 1) if index + 1 < stop else ""
        third = words.text(index + 2) if index + 2 < stop else ""
        if after in ("-[", "--") or (after == "<-" and third in ("[", "-")):
            raise PatternError(index, "a pattern in an expression")


def _ends_list(words: Words, index: int) -> bool:
    return words.text(index) == "|" or words.keyword(index) == "WHERE"

"""The parts of a query: its clauses with their patterns, assignments and projections, as values.

Every ``place`` is the index of a word in the query's outline, and every expression is the ``range`` of its words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graphweft_rules.cypher.clauses import Clause

Direction = Literal["right", "left", "both"]
PatternKeyword = Literal["MATCH", "OPTIONAL MATCH", "MERGE", "CREATE"]
ProjectionKeyword = Literal["WITH", "RETURN", "YIELD"]
SetKind = Literal["property", "label", "replace", "update"]


class PatternError(Exception):
    """The query has an element that is not supported; ``place`` is the index of its word."""

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
    """``(variable:Label {name: value} WHERE …)``. The variable may be bound already."""

    variable: str
    """Empty when the pattern has none."""
    labels: tuple[str, ...]
    """The labels that every node must have: ``:A:B`` and ``:A&B``."""
    alternatives: tuple[str, ...]
    """``:A|B``: every node must have at least one of these; empty without such an expression."""
    excluding: bool
    """The label expression also has ``!``, ``%`` or nesting, so fewer nodes match."""
    properties: tuple[Property, ...]
    map_parameter: str
    """The parameter that is the whole map, ``(n $props)``; empty for none."""
    where: range | None
    """The condition inside the pattern."""
    place: int
    """The opening parenthesis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationshipPattern:
    """``-[variable:TYPE {name: value} WHERE …]->`` between two nodes of a path."""

    variable: str
    types: tuple[str, ...]
    """One of these; empty for any type, and for ``!T`` and ``%``."""
    properties: tuple[Property, ...]
    map_parameter: str
    where: range | None
    direction: Direction
    many: bool
    """Variable length, ``*``: the variable is a list."""
    start: NodePattern
    """The start node; for direction ``both``, the left node in the text."""
    end: NodePattern
    place: int
    """The first word between the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPattern:
    """One path: n + 1 nodes and n relationships, in the order of the text."""

    variable: str
    """The variable of ``p = …``; empty for none."""
    function: str
    """``shortestpath`` or ``allshortestpaths`` if the path is the argument of one; else empty."""
    nodes: tuple[NodePattern, ...]
    relationships: tuple[RelationshipPattern, ...]
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionItem:
    """An expression of WITH, RETURN, YIELD, DELETE or ORDER BY."""

    expression: range
    alias: str
    """The name after AS, or the expression itself if it is one name; else empty."""
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetItem:
    """One assignment of SET, or one removal of REMOVE.

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
    """SET, by itself or after ON CREATE or ON MATCH."""

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
    items: tuple[ProjectionItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionPart:
    """WITH, RETURN, or YIELD after a procedure."""

    clause: Clause
    keyword: ProjectionKeyword
    distinct: bool
    star: bool
    """``*`` is one of the items."""
    items: tuple[ProjectionItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwindPart:
    """``UNWIND expression AS variable``."""

    clause: Clause
    expression: range
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeachPart:
    """``FOREACH (variable IN expression | …)``. The clauses after the bar follow as parts one level deeper."""

    clause: Clause
    variable: str
    expression: range


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressionPart:
    """WHERE, ORDER BY, SKIP or LIMIT, which belong to the clause before them."""

    clause: Clause
    keyword: Literal["WHERE", "ORDER", "SKIP", "LIMIT"]
    items: tuple[ProjectionItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPart:
    """``CALL {…}``, whose clauses follow one level deeper, or ``CALL procedure(…)``."""

    clause: Clause
    procedure: str
    """Dotted name in lower case; empty for a subquery."""
    imports: tuple[str, ...] | None
    """The variables of ``CALL (a, b) {…}``; None for a subquery without such a list."""
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

"""Effects: what each clause of a query reads and writes, and whether one clause can see what another writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from graphweft_rules.cypher.expressions import AGGREGATES
from graphweft_rules.cypher.parts import CallPart, ExpressionPart, Part, ProjectionPart, UnionPart

_FUNCTIONS: Final = frozenset(
    {
        *("abs", "all", "any", "ceil", "coalesce", "date", "duration", "floor", "head", "last", "left"),
        *("localdatetime", "localtime", "ltrim", "none", "point", "range", "replace", "reverse", "right", "round"),
        *("rtrim", "sign", "single", "size", "split", "substring", "tail", "toboolean", "tofloat", "tointeger"),
        *("tolower", "tostring", "toupper", "trim", "vecf32"),
    }
)
"""Functions whose result depends only on their arguments."""

type Kind = Literal["node", "relationship", "value"]


class RowsRefused(Exception):
    """Rows of the query cannot share a query; the message tells the rule's author why."""


@dataclass(frozen=True, slots=True)
class NodePatternKey:
    """The labels and properties by which a clause finds or creates a node."""

    labels: frozenset[str]
    keys: frozenset[str]
    alone: bool
    """No relationship leads to the node."""
    merged: bool


@dataclass(frozen=True, slots=True)
class PropertyAccess:
    """A read or write of a property by one variable."""

    kind: Kind
    variable: str
    name: str
    relationship_type: str
    own: bool = False
    """A read for the new value of the same variable: each row sees what the row before it wrote, as it must."""
    at_creation: bool = False
    """A constant set at the creation of the node or relationship."""
    labels: frozenset[str] = frozenset()
    """The labels in the node's pattern; empty: the node may have any label."""

    def meets(self, other: PropertyAccess, shared: frozenset[str] | None) -> bool:
        """Tell whether both may be the same property of the same entity."""
        if self.kind != other.kind or self.name != other.name:
            return False
        if self.kind == "relationship":
            return self.relationship_type == other.relationship_type
        return not _differ(self.labels, other.labels, shared)


def _differ(labels: frozenset[str], others: frozenset[str], shared: frozenset[str] | None) -> bool:
    """Tell whether nodes with these labels and nodes with those are different nodes."""
    if shared is None or not labels or not others:
        return False
    return labels.isdisjoint(others) and shared.isdisjoint(labels | others)


@dataclass(slots=True)
class ClauseEffect:
    """The reads and writes of one clause."""

    on_create: bool = False
    node_reads: list[NodePatternKey] = field(default_factory=list[NodePatternKey])
    node_writes: list[NodePatternKey] = field(default_factory=list[NodePatternKey])
    type_reads: list[str] = field(default_factory=list[str])
    type_writes: list[str] = field(default_factory=list[str])
    reads: list[PropertyAccess] = field(default_factory=list[PropertyAccess])
    writes: list[PropertyAccess] = field(default_factory=list[PropertyAccess])
    labels: list[str] = field(default_factory=list[str])


def check_effects(effects: Sequence[ClauseEffect], shared: frozenset[str] | None) -> None:
    """Raise ``RowsRefused`` if one clause may see what another clause writes for another row.

    ``shared`` is that of ``Dialect.batch_query``.
    """
    for first, writer in enumerate(effects):
        for second, reader in enumerate(effects):
            if first != second:
                _check_nodes(writer, reader)
                _check_types(writer, reader)
        for written in writer.writes:
            _check_property(effects, first, written, shared)
        for label in writer.labels:
            patterns = [each for effect in effects for each in (*effect.node_reads, *effect.node_writes)]
            if any(label in pattern.labels for pattern in patterns):
                raise RowsRefused(f"the label {label!r} is set and also matched")


def _check_nodes(writer: ClauseEffect, reader: ClauseEffect) -> None:
    for made in writer.node_writes:
        for sought in reader.node_reads:
            if not sought.alone:
                continue  # reached by a relationship, and the query matches no relationship type that it creates
            same = (made.labels, made.keys) == (sought.labels, sought.keys)
            if same and (writer.on_create or reader.on_create):
                raise RowsRefused(f"two clauses merge the same kind of node ({_named(made)}), and one has ON")
            if same and made.merged and sought.merged:
                continue
            if sought.labels <= made.labels and sought.keys <= made.keys:
                raise RowsRefused(f"a node that one clause creates ({_named(made)}) may be matched by another")


def _check_types(writer: ClauseEffect, reader: ClauseEffect) -> None:
    for kind in set(writer.type_writes) & set(reader.type_reads):
        raise RowsRefused(f"a relationship {kind!r} that one clause creates may be matched by another")


def _check_property(
    effects: Sequence[ClauseEffect], number: int, written: PropertyAccess, shared: frozenset[str] | None
) -> None:
    for other_number, other in enumerate(effects):
        for also in other.writes:
            same = (number, written.variable) == (other_number, also.variable)
            begins = (written.at_creation or also.at_creation) and written.variable == also.variable
            if written.meets(also, shared) and not same and not begins:
                raise RowsRefused(f"the property {written.name!r} is written in two places")
        for read in other.reads:
            own = read.own and read.variable == written.variable and (number == other_number or written.at_creation)
            if written.meets(read, shared) and not own:
                raise RowsRefused(f"the property {written.name!r} is written in one place and read in another")


def _named(signature: NodePatternKey) -> str:
    return ":".join(("", *sorted(signature.labels))) or "without a label"


def check_function(name: str) -> None:
    """Raise ``RowsRefused`` for a function whose result depends on more than its arguments; ``name`` is lower case."""
    if name in AGGREGATES:
        raise RowsRefused(f"`{name}(…)` aggregates over all rows")
    if name not in _FUNCTIONS:
        raise RowsRefused(f"`{name}(…)` is not known to depend only on its arguments")


def misfit(part: Part) -> str:
    """Return why a clause cannot be in a batch query."""
    match part:
        case CallPart():
            return "CALL may read the whole graph"
        case UnionPart():
            return "UNION joins two queries"
        case ProjectionPart():
            return f"{part.keyword} is not the end of the query"
        case ExpressionPart():
            keyword = "ORDER BY" if part.keyword == "ORDER" else part.keyword
            return f"{keyword} works on all rows at once"
        case _:
            return f"{part.clause.keyword} cannot run for many rows at once"

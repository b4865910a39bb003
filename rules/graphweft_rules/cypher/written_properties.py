"""The properties that mutations write, by the label of the node."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Self

from graphweft_rules.cypher.clauses import Outline
from graphweft_rules.cypher.entities import ANYTHING
from graphweft_rules.cypher.node_labels import READING, labels_beside, labels_of
from graphweft_rules.cypher.part_parser import literal_map, read_parts
from graphweft_rules.cypher.parts import (
    CallPart,
    ForeachPart,
    NodePattern,
    PatternError,
    PatternPart,
    ProjectionPart,
    SetItem,
    SetPart,
    UnionPart,
    UnwindPart,
)


@dataclass(frozen=True, slots=True)
class WrittenProperties:
    """What mutations write: for each label the properties, and under ``*`` those of nodes whose labels are unknown."""

    _found: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    _groups: set[frozenset[str]] = field(default_factory=set[frozenset[str]])
    """Labels that may be on one node."""

    @classmethod
    def of(cls, queries: Iterable[Outline]) -> Self:
        """Return what mutations write, and never less: a query that cannot be read may write everything."""
        found = cls()
        for query in dict.fromkeys(queries):
            labels = labels_of(query)
            found._groups.update(labels.groups)
            if labels.anywhere:
                found._add((), ANYTHING)
                continue
            try:
                found._read(query)
            except PatternError:
                found._add((), ANYTHING)
        return found

    def of_label(self, label: str) -> frozenset[str] | None:
        """Return the properties that nodes with the label may have from mutations; None if they may have any."""
        beside = labels_beside((ANYTHING, label), self._groups)
        found = frozenset[str]().union(*(self._found.get(each, ()) for each in beside))
        return None if ANYTHING in found else found

    def _add(self, labels: Collection[str], *names: str) -> None:
        for label in labels or (ANYTHING,):
            self._found.setdefault(label, set()).update(names)

    def _read(self, query: Outline) -> None:
        """Read a query. Raises ``PatternError``."""
        labels: dict[str, set[str]] = {}
        """Variable -> the labels of its patterns in all scopes."""
        loose: set[str] = set()
        """Variables that may be a node with any labels."""
        bound: set[str] = set()
        arrows: set[str] = set()
        made: list[NodePattern] = []
        assigned: list[SetItem] = []
        for part in read_parts(query):
            if isinstance(part, PatternPart):
                arrows.update(arrow.variable for path in part.paths for arrow in path.relationships)
                for node in (node for path in part.paths for node in path.nodes):
                    named = (*node.labels, *node.alternatives)
                    labels.setdefault(node.variable, set()).update(named)
                    if node.excluding or not (named or node.variable in bound):
                        loose.add(node.variable)
                    bound |= {node.variable} - {""}
                    made += [node] if part.keyword in ("CREATE", "MERGE") else []
            elif isinstance(part, SetPart):
                assigned += (item for item in part.items if item.kind != "label")
            elif isinstance(part, ProjectionPart):
                bound = {*(bound if part.star else ()), *(item.alias for item in part.items)}
                for item in part.items:
                    if len(item.expression) != 1 or query.words.identifier(item.expression.start) != item.alias:
                        loose.add(item.alias)
            elif isinstance(part, UnwindPart | ForeachPart):
                loose.add(part.variable)
            elif isinstance(part, CallPart):
                bound.clear()
                if part.procedure and not part.procedure.startswith(READING):
                    self._add((), ANYTHING)
            elif isinstance(part, UnionPart):
                bound.clear()
        for node in made:
            of = (*node.labels, *node.alternatives) or (() if node.variable in loose else labels[node.variable])
            names = (ANYTHING,) if node.map_parameter else tuple(each.name for each in node.properties)
            self._add(of, *names)
        for each in assigned:
            if each.variable in arrows and each.variable not in loose | labels.keys():
                continue  # a property of a relationship
            self._add(() if each.variable in loose else labels.get(each.variable, ()), *_names(query, each))


def _names(query: Outline, item: SetItem) -> tuple[str, ...]:
    if item.kind == "property":
        return item.names
    known = literal_map(query, item.value) if item.value is not None else None
    return (ANYTHING,) if known is None else tuple(each.name for each in known)

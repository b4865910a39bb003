"""The labels that rules put on one node, or ask for on one node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from graphweft_rules.cypher.clauses import Outline, once
from graphweft_rules.cypher.expressions import uses
from graphweft_rules.cypher.part_parser import read_parts
from graphweft_rules.cypher.parts import (
    CallPart,
    ForeachPart,
    NodePattern,
    Part,
    PatternError,
    PatternPart,
    ProjectionPart,
    RelationshipPattern,
    RemovePart,
    SetPart,
    UnionPart,
    UnwindPart,
)
from graphweft_rules.cypher.query import Cypher

READING: Final = ("db.", "dbms.", "algo.")
"""Prefixes of procedures that put no labels on nodes."""


def shared_labels(cyphers: Iterable[Cypher]) -> frozenset[str] | None:
    """Return the labels that may be on a node beside another label, by a set of rules; None: any label may.

    Two labels outside of the result are always on different nodes.
    """
    found: set[str] = set()
    for query in dict.fromkeys(cypher.outline for cypher in cyphers):
        given = labels_of(query)
        if given.dynamic:
            return None
        found |= given.shared
    return frozenset(found)


def labels_beside(labels: Iterable[str], groups: Iterable[frozenset[str]]) -> frozenset[str]:
    """Return the labels that a node with any of some labels may have, by groups of labels that may be on one node."""
    found, groups = frozenset(labels), [*groups]
    while more := {name for group in groups if not found.isdisjoint(group) for name in group} - found:
        found |= more
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels that a query puts on one node, or asks for on one node; known for opaque queries too."""

    shared: frozenset[str] = frozenset()
    """Labels that may be beside another label."""
    groups: tuple[frozenset[str], ...] = ()
    """Labels that are on one node."""
    anywhere: bool = False
    """A label is put on nodes that may have any other label."""
    dynamic: bool = False
    """The labels are known only when the query runs."""


@once
def labels_of(query: Outline) -> Labels:
    """Return the labels of a query; for a query that cannot be parsed, a superset."""
    words = query.words
    for index, word in enumerate(words.tokens):
        computed = word.kind == "param" or (word.text == "$" and words.text(index + 1) == "(")
        if computed and index - 1 not in query.in_map and words.text(index - 1) in (":", "&", "|"):
            return Labels(anywhere=True, dynamic=True)
    try:
        reader = _LabelReader(query)
        for part in read_parts(query):
            reader.read(part)
        return reader.labels()
    except PatternError:
        names = frozenset(word.identifier for word in words.tokens if word.kind in ("name", "quoted"))
        calls = any(clause.keyword == "CALL" for clause in query.clauses)
        sets = any(clause.keyword in ("SET", "CREATE", "MERGE") for clause in query.clauses)
        return Labels(shared=names, groups=(names,), anywhere=calls or sets, dynamic=calls)


class _LabelReader:
    """Reads the labels of one query.

    A variable has the labels of all its uses in all scopes, which errs on the safe side. Whether a node that gets a
    label has a known one is decided scope by scope.
    """

    def __init__(self, query: Outline) -> None:
        self._query = query
        self._patterns: dict[str, set[str]] = {}
        """Variable -> labels in patterns."""
        self._asked: dict[str, set[str]] = {}
        """Variable -> labels that expressions test."""
        self._groups: list[frozenset[str]] = []
        """Labels of one pattern, or of one test."""
        self._sets: dict[str, set[str]] = {}
        """Variable -> labels that SET adds."""
        self._bound: set[str] = set()
        """Variables that are known to be a node with a label of their pattern."""
        self._loose: set[str] = set()
        """Variables that may be a node with any labels."""
        self._dynamic = False

    def read(self, part: Part) -> None:
        """Read the next part. Raises ``PatternError``."""
        if isinstance(part, PatternPart):
            for path in part.paths:
                self._loose.add(path.variable)
                for node in path.nodes:
                    self._node(node, part)
                elements: tuple[NodePattern | RelationshipPattern, ...] = (*path.nodes, *path.relationships)
                for element in elements:
                    self._expressions(*(entry.value for entry in element.properties), element.where)
        elif isinstance(part, SetPart | RemovePart):
            for item in part.items:
                self._expressions(item.value)
                if item.kind == "label" and isinstance(part, SetPart):
                    self._sets.setdefault(item.variable, set()).update(item.names)
        elif isinstance(part, ProjectionPart):
            self._project(part)
        elif isinstance(part, UnwindPart | ForeachPart):
            self._loose.add(part.variable)
            self._expressions(part.expression)
        elif isinstance(part, CallPart):
            self._bound.clear()
            self._expressions(part.arguments)
            self._dynamic |= bool(part.procedure) and not part.procedure.startswith(READING)
        elif isinstance(part, UnionPart):
            self._bound.clear()
        else:
            self._expressions(*(each.expression for each in part.items))

    def labels(self) -> Labels:
        """Return the labels read so far."""
        variables = self._patterns.keys() | self._asked.keys() | self._sets.keys()
        empty: set[str] = set()
        seen = [self._patterns.get(name, empty) | self._asked.get(name, empty) for name in variables]
        groups = [*self._groups, *map(frozenset, seen)]
        put = [self._sets[name] | self._patterns.get(name, empty) for name in self._sets]
        shared = {label for group in groups if len(group) > 1 for label in group}
        return Labels(
            shared=frozenset(shared.union(*self._sets.values(), *self._asked.values())),
            groups=(*groups, *map(frozenset, put)),
            anywhere=self._dynamic or any(name in self._loose or name not in self._patterns for name in self._sets),
            dynamic=self._dynamic,
        )

    def _project(self, part: ProjectionPart) -> None:
        self._expressions(*(each.expression for each in part.items))
        before = set[str]() if part.clause.depth else self._bound
        self._bound = set(before) if part.star else set()
        for item in part.items:
            name = self._query.words.identifier(item.expression.start) if len(item.expression) == 1 else ""
            if name in before:
                self._bound.add(item.alias)
                self._patterns.setdefault(item.alias, set()).update(self._patterns.get(name, ()))
            elif item.alias != name:
                self._loose.add(item.alias)

    def _node(self, node: NodePattern, part: PatternPart) -> None:
        names = frozenset((*node.labels, *node.alternatives))
        if node.excluding:
            words = self._query.words
            if part.keyword in ("CREATE", "MERGE"):
                raise PatternError(node.place, "a label expression that makes a node")
            inside = range(node.place + 1, words.closing(node.place))
            self._groups.append(frozenset(filter(None, map(words.identifier, inside))))
        if names:
            self._groups.append(names)
            self._patterns.setdefault(node.variable, set()).update(names if node.variable else ())
            if not part.clause.depth:
                self._bound.add(node.variable)
        elif node.variable not in self._bound:
            self._loose.add(node.variable)

    def _expressions(self, *spans: range | None) -> None:
        for span in spans:
            for test in uses(self._query, span).labels if span else ():
                self._groups.append(frozenset(test.labels))
                self._asked.setdefault(test.variable, set()).update(test.labels)

"""Compares two graphs of an app: nodes, relationships and properties that one has and the other has not.

The graphs have no common ids, so a node is known by its key: a label and the properties by which rules merge nodes of
it. Nodes without a key are known by their content: one that changed counts as removed and added. Relationships are
known by both ends and their type. Of several with equal keys, equal ones are paired first, the others in any order.

The first graph is in memory, and what differs in the second one. Pure: it reads nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, Literal

from graphweft_workers.engine.plan.digest import canonical
from graphweft_workers.ports.graph_store import Edge, Node

type Kind = Literal["node", "relationship"]
type How = Literal["added", "removed", "changed"]
type _Place = tuple[NodeName, str, NodeName]
type _Edges = dict[str, list[Mapping[str, Any]]]
"""The properties of relationships at one place, by their canonical text."""
type MergeKeys = Iterable[tuple[str, tuple[str, ...]]]
"""Labels, each with the properties of a key."""

NO_LABEL: Final = "(no label)"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeName:
    """By what a node is known. Names are equal if their ``id`` is."""

    id: str
    label: str = field(default="", compare=False)
    key: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """Property -> value; empty if the node is known by its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One node or relationship that differs."""

    kind: Kind
    how: How
    name: str
    """The labels, or the type."""
    ends: tuple[NodeName, ...]
    """The node, or start and end of the relationship."""
    before: Mapping[str, Any]
    """All properties of what was removed; of what changed, those that differ."""
    after: Mapping[str, Any]
    labels_added: tuple[str, ...] = ()
    labels_removed: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class GraphDiff:
    """How the second graph differs from the first one."""

    nodes: tuple[int, int] = (0, 0)
    """The numbers of nodes before and after; the same for relationships."""
    relationships: tuple[int, int] = (0, 0)
    counts: dict[Kind, dict[str, Counter[How]]] = field(
        default_factory=lambda: {"node": defaultdict(Counter), "relationship": defaultdict(Counter)}
    )
    """By kind, and by labels or type."""
    properties: dict[tuple[Kind, str, str], Counter[How]] = field(default_factory=lambda: defaultdict(Counter))
    """By kind, labels or type, and property: of what is in both graphs."""
    labels: dict[str, Counter[How]] = field(default_factory=lambda: defaultdict(Counter))
    """Labels that nodes of both graphs gained or lost."""
    examples: list[Example] = field(default_factory=list[Example])

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not any(self.counts.values())

    def total(self, kind: Kind, how: How) -> int:
        """Return the number of nodes or relationships."""
        return sum(each[how] for each in self.counts[kind].values())


@dataclass(slots=True)
class _KnownNode:
    """A node of the first graph that has no partner yet."""

    name: NodeName
    labels: tuple[str, ...]
    properties: Mapping[str, Any]
    content: bytes
    paired: bool = False


@dataclass(slots=True)
class _NewNode:
    node: Node
    content: bytes
    names: list[NodeName]


class GraphComparison:
    """Takes the nodes and relationships of both graphs: ``before``, then ``after``, nodes first."""

    def __init__(self, keys: MergeKeys, *, limit: int = 5) -> None:
        """``keys`` name nodes; ``limit`` is the number of examples of each kind, difference and name."""
        self._keys: dict[str, list[tuple[str, ...]]] = {}
        for label, properties in sorted(set(keys)):
            self._keys.setdefault(label, []).append(properties)
        self._limit = limit
        self._diff = GraphDiff()
        self._shown: Counter[tuple[Kind, How, str]] = Counter()
        self._known: dict[str, list[_KnownNode]] = {}
        """By the id of each of a node's names."""
        self._same: dict[tuple[str, bytes], list[_KnownNode]] = {}
        """The same, also by content."""
        self._all: list[_KnownNode] = []
        self._names: dict[int, NodeName] = {}
        """By the server's id, of the graph that is being read."""
        self._edges: dict[_Place, _Edges] = {}
        self._new_nodes: list[_NewNode] = []
        self._new_edges: dict[_Place, list[Mapping[str, Any]]] = {}

    def before(self, node: Node) -> None:
        """Take a node of the first graph."""
        if node.is_internal:
            return
        content = _content(node)
        names = self._names_of(node, content)
        known = _KnownNode(names[0], node.labels, node.properties, content)
        self._all.append(known)
        self._names[node.id] = known.name
        for name in names:
            self._known.setdefault(name.id, []).append(known)
            self._same.setdefault((name.id, content), []).append(known)

    def before_edge(self, edge: Edge) -> None:
        """Take a relationship of the first graph, after all its nodes."""
        if (place := self._place(edge)) is not None:
            self._edges.setdefault(place, {}).setdefault(canonical(edge.properties), []).append(edge.properties)
            before, after = self._diff.relationships
            self._diff.relationships = (before + 1, after)

    def turn(self) -> None:
        """Begin with the second graph."""
        self._names = {}

    def after(self, node: Node) -> None:
        """Take a node of the second graph."""
        if node.is_internal:
            return
        content = _content(node)
        names = self._names_of(node, content)
        before, after = self._diff.nodes
        self._diff.nodes = (before, after + 1)
        for name in names:
            known = _next(self._same.get((name.id, content), []))
            if known is not None:
                known.paired = True
                self._names[node.id] = known.name
                return
        self._new_nodes.append(_NewNode(node, content, names))

    def pair(self) -> None:
        """Pair the nodes that are left, when all nodes are read."""
        self._diff.nodes = (len(self._all), self._diff.nodes[1])
        for new in self._new_nodes:
            node = new.node
            found = (_next(self._known.get(name.id, [])) for name in new.names)
            known = next((each for each in found if each is not None), None)
            self._names[node.id] = new.names[0] if known is None else known.name
            if known is None:
                self._one_sided("node", "added", _title(node.labels), (new.names[0],), node.properties)
                continue
            known.paired = True
            self._compare_nodes(known, node)
        for known in self._all:
            if not known.paired:
                self._one_sided("node", "removed", _title(known.labels), (known.name,), known.properties)
        self._known, self._same, self._all, self._new_nodes = {}, {}, [], []

    def after_edge(self, edge: Edge) -> None:
        """Take a relationship of the second graph, after ``pair``."""
        place = self._place(edge)
        if place is None:
            return
        before, after = self._diff.relationships
        self._diff.relationships = (before, after + 1)
        there, text = self._edges.get(place, {}), canonical(edge.properties)
        if equal := there.get(text):
            equal.pop()
            return
        self._new_edges.setdefault(place, []).append(edge.properties)

    def result(self) -> GraphDiff:
        """Return the difference, when all relationships are read."""
        for place, properties in self._new_edges.items():
            start, type_, end = place
            left = [each for equal in self._edges.pop(place, {}).values() for each in equal]
            for old, new in zip(left, properties, strict=False):
                self._note(self._compare("relationship", type_, (start, end), old, new))
            for each in properties[len(left) :]:
                self._one_sided("relationship", "added", type_, (start, end), each)
            for each in left[len(properties) :]:
                self._one_sided("relationship", "removed", type_, (start, end), each)
        for (start, type_, end), equal in self._edges.items():
            for each in chain.from_iterable(equal.values()):
                self._one_sided("relationship", "removed", type_, (start, end), each)
        self._edges, self._new_edges = {}, {}
        return self._diff

    def _names_of(self, node: Node, content: bytes) -> list[NodeName]:
        """Return the names of a node, at least one."""
        found = [
            NodeName(id=canonical([label, *[[name, values[name]] for name in key]]), label=label, key=values)
            for label in sorted(node.labels)
            for key in self._keys.get(label, ())
            if len(values := {name: node.properties[name] for name in key if name in node.properties}) == len(key)
        ]
        return found or [NodeName(id=f"content {content.hex()}", label=_title(node.labels))]

    def _place(self, edge: Edge) -> _Place | None:
        start, end = self._names.get(edge.start), self._names.get(edge.end)
        return None if start is None or end is None else (start, edge.type, end)

    def _compare_nodes(self, known: _KnownNode, node: Node) -> None:
        before, after = set(known.labels), set(node.labels)
        gained, lost = tuple(sorted(after - before)), tuple(sorted(before - after))
        for label in gained:
            self._diff.labels[label]["added"] += 1
        for label in lost:
            self._diff.labels[label]["removed"] += 1
        name = _title(known.labels)
        example = self._compare("node", name, (known.name,), known.properties, node.properties)
        self._note(replace(example, labels_added=gained, labels_removed=lost))

    def _compare(
        self, kind: Kind, name: str, ends: tuple[NodeName, ...], before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> Example:
        """Count the properties that differ; return the example of it."""
        different = list(_different(before, after))
        for each in different:
            how: How = "added" if each not in before else "removed" if each not in after else "changed"
            self._diff.properties[kind, name, each][how] += 1
        old = {each: before[each] for each in different if each in before}
        new = {each: after[each] for each in different if each in after}
        return Example(kind=kind, how="changed", name=name, ends=ends, before=old, after=new)

    def _one_sided(self, kind: Kind, how: How, name: str, ends: tuple[NodeName, ...], only: Mapping[str, Any]) -> None:
        nothing: Mapping[str, Any] = {}
        before, after = (nothing, only) if how == "added" else (only, nothing)
        self._note(Example(kind=kind, how=how, name=name, ends=ends, before=before, after=after))

    def _note(self, example: Example) -> None:
        kind, how, name = example.kind, example.how, example.name
        self._diff.counts[kind][name][how] += 1
        if self._shown[kind, how, name] < self._limit:
            self._shown[kind, how, name] += 1
            self._diff.examples.append(example)


def _next(found: list[_KnownNode]) -> _KnownNode | None:
    """Return the last node without a partner; drop those behind it that have one."""
    while found and found[-1].paired:
        found.pop()
    return found[-1] if found else None


def _different(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or canonical(before[name]) != canonical(after[name]):
            yield name


def _content(node: Node) -> bytes:
    text = canonical([sorted(node.labels), node.properties])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _title(labels: Iterable[str]) -> str:
    return ":".join(sorted(labels)) or NO_LABEL

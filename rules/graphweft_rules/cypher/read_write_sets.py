"""Read/write sets: what each mutation touches, so that rows which touch disjoint data may be reordered.

A read/write set is a list of accesses. Two rows may be reordered if all accesses of one commute with all accesses of
the other. Whatever is not understood makes the query opaque, and an opaque query may touch anything.

Labels that any mutation puts on one node form one class; labels of different classes are taken to be on different
nodes, so opaque queries count here too, and so do mutations that are not given but summarised. Relationships are told
apart by their start node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from graphweft_rules.cypher.accesses import LookupKey, ReadWriteSet, Resource, ResourceAccess
from graphweft_rules.cypher.entities import ANYTHING, Action, Entity, EntityReader, Opaque, entities_of
from graphweft_rules.cypher.mutation_summary import EMPTY, MutationSummary, Pick
from graphweft_rules.cypher.node_labels import Labels, labels_of
from graphweft_rules.cypher.query import Cypher


def read_write_sets(cyphers: Iterable[Cypher], others: MutationSummary = EMPTY) -> dict[str, ReadWriteSet]:
    """Return the read/write set of every given query, by its ``statement``.

    They tell which rows of these queries conflict with each other. ``others`` summarises all further mutations that may
    have written what the graph holds, or may write to it later.
    """
    readers: dict[str, EntityReader | str] = {}
    given: list[Labels] = []
    for query in dict.fromkeys(cypher.outline for cypher in cyphers):
        readers[query.text] = entities_of(query)
        given.append(labels_of(query))
    clear = [reader for reader in readers.values() if isinstance(reader, EntityReader)]
    world = _Entities(clear, given, others)
    found: dict[str, ReadWriteSet] = {}
    for statement, read in readers.items():
        if isinstance(read, str):
            found[statement] = ReadWriteSet(opaque=read)
            continue
        try:
            found[statement] = ReadWriteSet(touches=tuple(dict.fromkeys(world.touches(read))))
        except Opaque as error:
            found[statement] = ReadWriteSet(opaque=str(error))
    return found


def summary_of(cyphers: Iterable[Cypher]) -> MutationSummary:
    """Return the summary of mutations."""
    shared: set[str] | None = set()
    groups: set[frozenset[str]] = set()
    anywhere = False
    picks: set[Pick] = set()
    written: set[str] | None = set()
    for query in dict.fromkeys(cypher.outline for cypher in cyphers):
        labels, reader = labels_of(query), entities_of(query)
        shared = None if shared is None or labels.dynamic else shared | labels.shared
        groups.update(labels.groups)
        anywhere |= labels.anywhere
        if isinstance(reader, str):
            written = None
            continue
        of_query = _written(reader)
        written = None if written is None or of_query is None else written | of_query
        groups.update(frozenset(thing.names) for thing in reader.things if thing.kind == "node")
        picks.update(map(_pick, reader.searched) if reader.picks else ())
    return MutationSummary(
        shared=None if shared is None else frozenset(shared),
        groups=frozenset(group for group in groups if len(group) > 1),
        anywhere=anywhere,
        picks=frozenset(pick for pick in picks if pick.names),
        written=None if written is None else frozenset(written),
    )


def _written(reader: EntityReader) -> set[str] | None:
    """Return the labels and types that a query may write; None: any."""
    found: set[str] = set()
    for act in reader.acts:
        if act.access == "read":
            continue
        if act.thing.kind == "node" and not act.thing.known:
            return None
        found |= act.thing.names | ({act.label} if act.label else set())
    return found


def _pick(thing: Entity) -> Pick:
    node = thing.start if thing.kind == "relationship" else thing
    labels, by = (node.names, node.keys) if node is not None and node.known else ((), ())
    names = thing.names if thing.kind == "relationship" or thing.known else ()
    return Pick(thing.kind, frozenset(names), frozenset(labels), frozenset(by) if labels else frozenset())


class _Entities:
    """All queries together: classes of labels, the key of each, and the resources whose order matters."""

    def __init__(self, readers: Sequence[EntityReader], given: Sequence[Labels], others: MutationSummary) -> None:
        self._parent: dict[str, str] = {}
        self._one = others.anywhere or any(labels.anywhere for labels in given)
        """Whether all labels are one class."""
        for group in (*(group for each in given for group in each.groups), *others.groups):
            first = min(group, default="")
            for label in group:
                self._join(first, label)
        for reader in readers:
            for thing in reader.things:
                if thing.kind == "node":
                    labels = sorted(thing.names)
                    for label in labels:
                        self._join(labels[0], label)
        counts: dict[str, Counter[str]] = {}
        self._properties: dict[Resource, set[str]] = {}
        for reader in readers:
            for thing in reader.things:
                if thing.kind == "node" and thing.names and thing.known:
                    counts.setdefault(self._class(thing), Counter()).update(list(thing.keys))
            for act in reader.acts:
                if act.name and act.name != ANYTHING:
                    for base in self._bases(act.thing):
                        self._properties.setdefault(base, set()).add(act.name)
        self._key_of = {name: min(found, key=lambda key: (-found[key], key)) for name, found in counts.items() if found}
        picks = {_pick(thing) for reader in readers if reader.picks for thing in reader.searched} | others.picks
        self._all_ordered = others.picks_any
        self._ordered: set[Resource] = set()
        """Resources of which a query takes the first or last match: they must be created in log order."""
        self._ordered_by_key: set[Resource] = set()
        """The same, for look-ups by key."""
        for pick in picks:
            by_key = bool(pick.labels) and self._key_of.get(self._root(min(pick.labels)), "") in pick.by
            (self._ordered_by_key if by_key else self._ordered).update(self._picked(pick))

    def _picked(self, pick: Pick) -> Iterable[Resource]:
        if pick.kind == "relationship":
            return [("relationship", name) for name in pick.names]
        return [("node", self._root(min(pick.names)))] if pick.names else []

    def touches(self, reader: EntityReader) -> Iterable[ResourceAccess]:
        """Yield the accesses of a query. Raises ``Opaque``."""
        sure = True
        for act in reader.acts:
            thing = act.thing
            if act.finds and self._key(thing) is None:
                sure = False
            if act.certain and not sure:
                act = replace(act, certain=False)  # noqa: PLW2901
            if act.label:
                yield ResourceAccess(resource=("label", act.label), access=act.access)
                if act.access == "write" and not self._bases(thing):
                    raise Opaque("a node without a label gets or loses one")
                if act.access == "write":  # patterns with the label match other nodes from here on
                    yield from (ResourceAccess(resource=base, access="write") for base in self._bases(thing))
                continue
            key = self._key(thing)
            bases = self._bases(thing)
            if not bases:
                if thing.kind == "node" and not act.name and act.access == "read":
                    raise Opaque("nodes of any label are matched")
                raise Opaque("a node without a label is read or written")
            for base in bases:
                if not act.name:
                    yield self._on_entity(act, base, key)
                    continue
                names = {*self._properties.get(base, ()), ANYTHING} if act.name == ANYTHING else {act.name}
                by = self._key_name(base)
                rekeys = base[0] == "node" and act.access == "write" and bool(by) and act.name in (ANYTHING, by)
                key_of_act = None if rekeys else key
                for name in sorted(names):
                    touch = ResourceAccess(
                        resource=(f"{base[0]} property", base[1], name), access=act.access, key=key_of_act
                    )
                    yield replace(touch, if_created=act.if_created)
                if rekeys:
                    yield ResourceAccess(resource=base, access="write")  # a key may mean another entity from here on

    def _on_entity(self, act: Action, base: Resource, key: LookupKey | None) -> ResourceAccess:
        making = act.access.startswith(("create", "ensure", "merge"))
        if making and (self._all_ordered or base in self._ordered):
            return ResourceAccess(resource=base, access="write")
        if making and base in self._ordered_by_key and not act.by_one:
            return ResourceAccess(resource=base, access="write", key=key)
        certain = act.certain and key is not None
        return ResourceAccess(
            resource=base, access=act.access, key=key, certain=certain, finds=act.finds if key else ""
        )

    def _bases(self, thing: Entity) -> tuple[Resource, ...]:
        if thing.kind == "relationship":
            return tuple(("relationship", name) for name in sorted(thing.names))
        return (("node", self._class(thing)),) if thing.names and thing.known else ()

    def _key(self, thing: Entity) -> LookupKey | None:
        node = thing.start if thing.kind == "relationship" else thing
        if node is None or not node.names or not node.known:
            return None
        return node.keys.get(self._key_name(("node", self._class(node))))

    def _key_name(self, base: Resource) -> str:
        return self._key_of.get(base[1], "")

    def _class(self, thing: Entity) -> str:
        return self._root(min(thing.names))

    def _root(self, label: str) -> str:
        if self._one:
            return ANYTHING
        while self._parent.get(label, label) != label:
            label = self._parent[label]
        return label

    def _join(self, label: str, other: str) -> None:
        if self._one:
            return
        first, second = sorted((self._root(label), self._root(other)))
        self._parent[second] = first
        self._parent.setdefault(first, first)

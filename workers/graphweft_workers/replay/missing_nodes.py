"""The nodes of one graph of an app that another one lacks, by what identifies them: as many new ones hide none."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Final

from graphweft_rules import RuleSet
from graphweft_rules.cypher.merge_keys import merge_keys
from graphweft_rules.cypher.query import Cypher
from graphweft_workers.engine.plan.digest import canonical
from graphweft_workers.ports.graph_store import GraphStore, Node

_BUCKETS: Final = 65_536
_AT_ONCE: Final = 500_000
"""Nodes that are held at once, each as a number: of graphs that differ in more, the nodes are listed several times."""

type NodeKeys = Mapping[str, frozenset[str]]
"""By label: the properties by which mutations MERGE its nodes."""


def node_keys(sets: Iterable[RuleSet]) -> NodeKeys:
    """Return the keys of the nodes that mutations of rule sets and of their packs make."""
    found: dict[str, frozenset[str]] = defaultdict(frozenset[str])
    for cypher in (cypher for rules in sets for cypher in _mutations(rules)):
        for label, names in merge_keys(cypher.outline):
            found[label] |= frozenset(names)
    return found


async def missing_nodes(
    old: GraphStore, new: GraphStore, app_id: str, keys: NodeKeys, *, at_once: int = _AT_ONCE
) -> dict[str, int]:
    """Return, by label, how many nodes of the app's graph in ``old`` the one in ``new`` lacks.

    A node is the same if its labels with keys and their values are: its other properties may differ. One without keys
    is the same if all of it is. Both graphs are read as they are now, at least once, with at most ``at_once`` of their
    nodes in memory. Raises ``GraphUnavailable``.
    """
    sums, sizes = [0] * _BUCKETS, [0] * _BUCKETS
    for store, sign in ((old, 1), (new, -1)):
        async for node, _ in _identities(store, app_id, keys):
            sums[node % _BUCKETS] += sign * node
            sizes[node % _BUCKETS] += 1
    lost: Counter[str] = Counter()
    for buckets in _parts([number for number, total in enumerate(sums) if total], sizes, at_once):
        there: Counter[int] = Counter()
        async for node, _ in _identities(new, app_id, keys):
            if node % _BUCKETS in buckets:
                there[node] += 1
        async for node, labels in _identities(old, app_id, keys):
            if node % _BUCKETS not in buckets:
                continue
            if there[node]:
                there[node] -= 1
            else:
                lost.update(labels or ("",))
    return dict(sorted(lost.items()))


def _parts(differing: Iterable[int], sizes: list[int], at_once: int) -> Iterator[set[int]]:
    """Yield buckets that differ in parts of a bounded number of nodes, at least a bucket each."""
    part = set[int]()
    size = 0
    for bucket in differing:
        if part and size + sizes[bucket] > at_once:
            yield part
            part, size = set[int](), 0
        part.add(bucket)
        size += sizes[bucket]
    if part:
        yield part


async def _identities(store: GraphStore, app_id: str, keys: NodeKeys) -> AsyncIterator[tuple[int, tuple[str, ...]]]:
    """Yield a number for each node, equal for equal ones, and its labels."""
    async for node in store.whole.nodes(app_id):
        if not node.is_internal:
            yield _identity(node, keys), node.labels


def _identity(node: Node, keys: NodeKeys) -> int:
    labels = [label for label in sorted(node.labels) if label in keys]
    names = frozenset[str]().union(*(keys[label] for label in labels))
    values = {name: node.properties[name] for name in names if node.properties.get(name) is not None}
    if not values:
        labels, values = sorted(node.labels), dict(node.properties)
    text = f"{labels}{canonical(values)}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _mutations(rules: RuleSet) -> Iterator[Cypher]:
    for pack in rules.packs:
        for part in pack.mutations:
            yield part.cypher
    for name in rules.workflows:
        if rules.problem(name) is None:
            for rule in rules.workflows[name].mutation_rules:
                for part in rule.parts:
                    yield part.cypher

"""What a graph has that another one of the app lacks: indexes, constraints and nodes that are not made from the log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from graphweft_rules import RuleSet
from graphweft_workers.engine.plan.core_schema import CORE_KEYS, FACT_KEYS
from graphweft_workers.ports.graph_store import GraphStore, SchemaItem

_NAMED: Final = 20
"""Limit of items in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLosses:
    """What one graph has and another one lacks."""

    schema: tuple[str, ...] = ()
    """Indexes and constraints, in words."""
    nodes: Mapping[str, int] = field(default_factory=dict[str, int])
    """By label, how many nodes are missing."""

    def __bool__(self) -> bool:
        return bool(self.schema or self.nodes)

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"schema": list(self.schema), "nodes": dict(self.nodes)}

    def __str__(self) -> str:
        """Return the list in words, without its end if it is long."""
        items = [*self.schema]
        for label, count in self.nodes.items():
            items.append(f"{count:,} with the label {label}" if label else f"{count:,} without a label")
        return "; ".join(items[:_NAMED]) + ("; …" if len(items) > _NAMED else "")


async def find_losses(
    old: GraphStore, new: GraphStore, app_id: str, sets: Iterable[RuleSet], *, fewer: bool, ruled: Collection[str] = ()
) -> GraphLosses:
    """Return what the app's graph in ``old`` has and the one in ``new`` lacks.

    Indexes that graphweft makes for the rule sets ``sets`` do not count: events that are gone may have asked for them.
    Nodes count if the new graph has none with their label; with ``fewer``, also if it has fewer.
    Labels in ``ruled`` do not count. Both graphs are read as they are now. Raises ``GraphUnavailable``.
    """
    sets = [*sets]
    schema = await old.whole.schema(app_id) - await new.whole.schema(app_id)
    made = frozenset[SchemaItem]().union(*map(_indexes_for, sets))
    pack_labels = _labels_of_packs(sets)
    before, after = await old.whole.node_counts(app_id), await new.whole.node_counts(app_id)
    nodes = {
        label: count - after.get(label, 0)
        for label, count in sorted(before.items())
        if count > after.get(label, 0) and (fewer or not after.get(label)) and label not in ruled
    }
    lost = {each for each in schema - made if each.is_constraint or each.label not in pack_labels}
    return GraphLosses(schema=tuple(sorted(map(str, lost))), nodes=nodes)


def labels_of(sets: Iterable[RuleSet]) -> frozenset[str]:
    """Return the labels that mutations of rule sets and of their packs name."""
    sets = [*sets]
    found = set(_labels_of_packs(sets))
    for rules in sets:
        for name in rules.workflows:
            found |= rules.workflows[name].written_labels if rules.problem(name) is None else frozenset[str]()
    return frozenset(found)


def _labels_of_packs(sets: Iterable[RuleSet]) -> frozenset[str]:
    mutations = (part for rules in sets for pack in rules.packs for part in pack.mutations)
    return frozenset(name for part in mutations for kind, name in part.cypher.names if kind == "label")


def _indexes_for(rules: RuleSet) -> frozenset[SchemaItem]:
    """Return the indexes that a graph may get for a rule set, without its packs."""
    wanted = rules.keys | CORE_KEYS | (FACT_KEYS if rules.asks_for_facts else frozenset[tuple[str, str]]())
    keys = {SchemaItem(kind="range index", label=label, properties=(name,)) for label, name in wanted}
    search = {
        SchemaItem(kind=f"{index.kind} index", label=index.label, properties=index.properties)
        for index in rules.search_indexes
    }
    return frozenset(keys | search)

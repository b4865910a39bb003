"""Whether the mutations of an app's past run in a second graph: some servers need other queries there.

It is asked before anything is made or erased, because a mutation that fails in the second graph alone would make
another graph than the log says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import batched
from typing import Final

from graphweft_contracts import InvalidSettings
from graphweft_rules import RuleSet
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.rule_sets.active_rules import ActiveRules

_AT_ONCE: Final = 16


async def rule_sets(log: AppLog, rules: ActiveRules) -> list[RuleSet]:
    """Return the rule sets that events of the app follow, or have followed. Raises ``BusUnavailable``."""
    await rules.refresh()
    activations = await log.bus.rules.activations()
    found: dict[int, RuleSet] = {id(current): current for current in (rules.current(log.app_id),)}
    for partition in await log.partitions():
        cursor = rules.cursor(partition, "")
        for activation in activations:  # in the order of their positions
            if partition in activation.positions:
                # An entry follows what was active before it.
                before = cursor.at(log.app_id, activation.positions[partition])
                found[id(before)] = before
    return [*found.values()]


async def check_second_queries(graph: GraphStore, sets: Iterable[RuleSet]) -> None:
    """Raise ``InvalidSettings`` if mutations of rule sets cannot run in the second graphs of a store.

    Raises ``GraphUnavailable``.
    """
    if not graph.whole.rewrites:
        return
    mutations = {
        part.cypher.statement: part
        for rules in sets
        for name, workflow in rules.workflows.items()
        if rules.problem(name) is None
        for rule in workflow.mutation_rules
        for part in rule.parts
    }
    reasons: list[str] = []
    for some in batched(mutations.values(), _AT_ONCE):
        found = await asyncio.gather(*(graph.whole.obstacle(each.cypher) for each in some))
        for part, reason in zip(some, found, strict=True):
            if reason:
                reasons.append(f"{part.place}: {part.rule}/{part.id}: {reason}")
    if reasons:
        raise InvalidSettings(
            "this server has no place for a second graph that these mutations can write: "
            + "; ".join(reasons)
            + ". Another graph server has one: give --into to `graphweft rebuild`, `why`, `diff`, or with --as-of"
        )

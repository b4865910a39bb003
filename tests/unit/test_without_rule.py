"""A misspelt event type does nothing, and is named."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from graphweft_contracts import Event
from graphweft_contracts.rules_log import Activation, StoredRules
from graphweft_rules import RuleSet
from graphweft_workers.reports.without_rule import EventKinds, without_rule

RULES = b"""
version: "1.0"
mutation_rules:
  - name: started
    events: ["agent.turn_start", "order.*"]
    agents: ["Planner"]
    mutations: [{id: m, cypher: "MERGE (n:N {id: 1})"}]
"""


ITS = "its rules are for agent.turn_start, order.*"


class Rules:
    """What the bus holds about rules."""

    async def activations(self, after: int = 0) -> Sequence[Activation]:
        return [Activation(number=1, scope="*", digest="d", time=datetime.now(UTC))][after:]

    async def stored(self, digest: str) -> StoredRules | None:
        return StoredRules(files={"Support/graph_injection.yaml": RULES})


def event(type: str, workflow: str | None = "Support", agent: str = "Planner") -> Event:
    return Event.create(type, app_id="acme", chat_id="c", workflow=workflow, data={"agent_name": agent, "long": "x"})


@pytest.mark.parametrize(
    ("type", "said"),
    [
        ("agent.turn_strat", f"'agent.turn_strat' and agent 'Planner' (did you mean 'agent.turn_start'?); {ITS}"),
        ("agent.turn_complete", f"'agent.turn_complete' and agent 'Planner'; {ITS}"),
        ("agent.turn_start", ""),
        ("order.placed", ""),
    ],
)
async def test_a_type_without_a_rule_is_named_with_the_nearest_one(type: str, said: str) -> None:
    kinds = EventKinds()
    for _ in range(3):
        kinds.add(event(type))
    found = await without_rule(
        cast("Any", SimpleNamespace(rules=Rules())), kinds, lambda stored: RuleSet.of_files(stored.files)
    )
    assert [(each.events, each.app_id, each.workflow, each.reason) for each in found] == (
        [(3, "acme", "Support", f"no rule is for the event type {said}")] if said else []
    )


async def test_events_that_become_dead_letters_are_not_named_again() -> None:
    kinds = EventKinds()
    for workflow in (None, "Suport"):
        kinds.add(event("order.placed", workflow))
    assert (
        await without_rule(
            cast("Any", SimpleNamespace(rules=Rules())), kinds, lambda stored: RuleSet.of_files(stored.files)
        )
        == []
    )

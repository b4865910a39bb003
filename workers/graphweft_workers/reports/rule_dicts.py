"""What rules do with an event, as plain values."""

from __future__ import annotations

from typing import Any

from graphweft_rules import BoundMutation
from graphweft_rules.matching.explain import UnmatchedRule
from graphweft_workers.reports.judging import MissedMutation


def mutation_dict(bound: BoundMutation) -> dict[str, Any]:
    """Return a mutation with its parameters for one event, for JSON."""
    mutation = bound.mutation
    return {
        "rule": mutation.rule,
        "mutation": mutation.id,
        "place": str(mutation.place),
        "statement": mutation.cypher.statement,
        "params": bound.params,
    }


def missed_dict(missed: MissedMutation) -> dict[str, str]:
    """Return a mutation that does not run although its rule matches, with the reason, for JSON."""
    return {"rule": missed.rule, "mutation": missed.mutation, "place": missed.place, "reason": missed.reason}


def unmatched_dict(rule: UnmatchedRule) -> dict[str, Any]:
    """Return a rule that does not match an event, with the reason, for JSON."""
    return {"rule": rule.rule, "place": str(rule.place), "reason": rule.reason}

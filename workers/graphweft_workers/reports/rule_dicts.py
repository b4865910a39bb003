"""What rules do with an event, as plain values."""

from __future__ import annotations

from typing import Any

from graphweft_rules import BoundMutation
from graphweft_rules.matching.explain import UnmatchedRule


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


def unmatched_dict(rule: UnmatchedRule) -> dict[str, Any]:
    """Return a rule that does not match an event, with the reason, for JSON."""
    return {"rule": rule.rule, "place": str(rule.place), "reason": rule.reason}

"""A rule set that the log activated, and whose content the bus has lost.

The events that need it wait, whatever else is known about them. All other events go on.
"""

from __future__ import annotations

from graphweft_contracts import BusUnavailable
from graphweft_rules import RuleSet
from graphweft_rules.cypher.mutation_summary import UNKNOWN
from graphweft_rules.matching.rule_summary import RuleSummary


class RulesLost(BusUnavailable):
    """The bus lacks a rule set that was activated: what needs it waits until somebody pushes it again."""

    def __init__(self, digest: str) -> None:
        super().__init__(
            f"the bus has lost the rule set {digest[:12]}: push the files that it was made of with `graphweft rules "
            "push`. `graphweft rules list` shows since when it was active"
        )
        self.digest = digest


class MissingRules(RuleSet):
    """Stands for a lost rule set. Nothing is known about its mutations, so rows of others keep their order."""

    def __init__(self, digest: str) -> None:
        super().__init__({})
        self.digest = digest
        self._summary = RuleSummary(mutations=UNKNOWN, keys=frozenset(), asks_for_facts=False)

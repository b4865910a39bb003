"""The rules that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphweft_contracts import InvalidSettings
from graphweft_workers.roles.connections import dialects
from graphweft_workers.roles.settings import Settings

if TYPE_CHECKING:  # a command that reads a count need not wait for the rules to load
    from graphweft_rules import RuleSet


def load_rules(settings: Settings) -> RuleSet:
    """Load every workflow below ``settings.rules``, and the ontologies. Raises ``RulesError`` with all findings.

    A folder that the settings name must exist. If the default folder is missing, there are no rules.
    """
    from graphweft_rules import RuleSet
    from graphweft_workers.roles.features import features

    packs = [pack for feature in features(settings) for pack in feature.mutations()]
    if not settings.rules.is_dir():
        if "rules" not in settings.model_fields_set:
            return RuleSet({}, packs=packs)
        raise InvalidSettings(
            f"the rules folder {str(settings.rules)!r} does not exist; give --rules, or set GRAPHWEFT_RULES, to a "
            "folder with <Workflow>/graph_injection.yaml files"
        )
    return RuleSet.load(settings.rules, packs, dialects())

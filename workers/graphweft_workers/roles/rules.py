"""The rules that the settings name, and those in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphweft_contracts import InvalidSettings
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import Activation, StoredRules, newest
from graphweft_workers.roles.connections import dialects
from graphweft_workers.roles.settings import Settings

if TYPE_CHECKING:  # a command that reads a count need not wait for the rules to load
    from graphweft_rules import RuleSet
    from graphweft_rules.matching.pack import Pack
    from graphweft_workers.active_rules import LoggedRules
    from graphweft_workers.ports.bus import Bus

logger = logging.getLogger("graphweft.rules")


def load_rules(settings: Settings, *, only: Collection[str] | None = None) -> RuleSet:
    """Load every workflow below ``settings.rules``, and the ontologies. Raises ``RulesError`` with all findings.

    With ``only``, other workflows are not read. A folder that the settings name must exist. If the default folder is
    missing, there are no rules.
    """
    from graphweft_rules import RuleSet

    packs = _packs(settings)
    if not settings.rules.is_dir():
        if "rules" not in settings.model_fields_set:
            return RuleSet({}, packs=packs)
        raise InvalidSettings(
            f"the rules folder {str(settings.rules)!r} does not exist; give --rules, or set GRAPHWEFT_RULES, to a "
            "folder with <Workflow>/graph_injection.yaml files"
        )
    return RuleSet.load(settings.rules, packs, dialects(), only=only)


def logged_rules(settings: Settings, bus: Bus, *, none: RuleSet | None = None) -> LoggedRules:
    """Return the rules that the log activates; ``none`` applies while it activates none."""
    from graphweft_workers.active_rules import LoggedRules

    return LoggedRules(bus, bus.is_after, rules_compiler(settings), none=none)


def rules_compiler(settings: Settings) -> Callable[[Mapping[str, bytes]], RuleSet]:
    """Return a function that makes a rule set of the files of one on the bus. It raises ``RulesError``."""
    from graphweft_rules import RuleSet

    packs = _packs(settings)

    def compiled(files: Mapping[str, bytes]) -> RuleSet:
        return RuleSet.of_files(files, packs, dialects())

    return compiled


async def push(bus: Bus, rules: RuleSet, scope: str = ALL_APPS) -> Activation:
    """Store a rule set and activate it for a scope. Raises ``BusUnavailable``."""
    await bus.store_rules(rules.digest, StoredRules(files=rules.files))
    return await bus.activate(scope, rules.digest)


async def push_if_new(bus: Bus, rules: RuleSet, folder: Path) -> None:
    """Push the rules of a folder for all apps, unless they were pushed before. Raises ``BusUnavailable``.

    Rules that were pushed before and then replaced stay replaced: a process that starts with an old folder must not
    bring them back.
    """
    found = await bus.activations()
    active = newest(found, ALL_APPS)
    if not rules.workflows:
        if not found:
            logger.warning(
                "there are no rules in %s: only memories and episodes take effect until you push some with `graphweft "
                "rules push`; events of workflows become dead letters until then",
                folder,
            )
    elif active is not None and active.digest == rules.digest:
        pass
    elif await bus.stored_rules(rules.digest) is None or active is None:
        pushed = await push(bus, rules)
        logger.info("pushed the rules of %s as %s", folder, pushed.digest[:12])
    else:
        logger.warning(
            "the rules of %s were replaced by %s; to make them active again, run: graphweft rules push %s",
            *(folder, active.digest[:12], folder),
        )


def _packs(settings: Settings) -> Sequence[Pack]:
    from graphweft_workers.roles.features import features

    return [pack for feature in features(settings) for pack in feature.mutations()]

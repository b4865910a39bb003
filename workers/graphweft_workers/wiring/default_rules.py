"""The default rules beside the rules of a folder: they are active until the folder has a workflow ``default``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from graphweft_contracts.events import DEFAULT_WORKFLOW
from graphweft_workers.new_project import default_rule_files

if TYPE_CHECKING:  # a command that reads a count need not wait for the rules to load
    from graphweft_rules import RuleSet


def has_default_rules(files: Mapping[str, bytes]) -> bool:
    """Tell whether a rule set has the default rules of this version."""
    return all(files.get(name) == data for name, data in default_rule_files().items())


def added_files(root: Path, before: Mapping[str, bytes], *, brings: bool = False) -> Collection[str]:
    """Return the names of the default rules' files if these belong to the rules of a folder.

    They do if they are among the active rules ``before``, or with ``brings``, until the folder has a folder
    ``default``.
    """
    if (root / DEFAULT_WORKFLOW).exists() or not (brings or has_default_rules(before)):
        return ()
    return default_rule_files().keys()


def with_default_rules(rules: RuleSet, root: Path, before: Mapping[str, bytes], *, brings: bool = False) -> RuleSet:
    """Return the rules of a folder, with the default rules if they belong to them: see ``added_files``."""
    from graphweft_rules import RuleSet
    from graphweft_workers.drivers import dialects

    if not added_files(root, before, brings=brings):
        return rules
    files = default_rule_files()
    defaults = RuleSet.of_files(files, (), dialects())
    return RuleSet({**rules.workflows, **defaults.workflows}, rules.packs, {**rules.files, **files})

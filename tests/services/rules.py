"""Rules as workers load them: with the mutations of every feature."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from graphweft_rules import RuleSet
from graphweft_rules.matching.pack import Pack
from graphweft_rules.matching.workflow import Workflow
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.memory.mutations import MemoryMutations

PACKS: Final[tuple[Pack, ...]] = (MemoryMutations(), EpisodeMutations())


def load_rules(folder: Path) -> RuleSet:
    """Return the rules in a folder, with the packs of every feature."""
    return RuleSet.load(folder, PACKS)


def rule_set(workflows: dict[str, Workflow] | None = None) -> RuleSet:
    """Return these rules, or none, with the packs of every feature."""
    return RuleSet(workflows or {}, packs=PACKS)

"""Rules as workers load them: with the mutations of every feature."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from graphweft_rules import RuleSet
from graphweft_rules.matching.pack import Pack
from graphweft_rules.matching.workflow import Workflow
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.memory.mutations import MemoryMutations

PACKS: Final[tuple[Pack, ...]] = (MemoryMutations(), EpisodeMutations())
TURNS: Final = """\
version: "1.0"
mutation_rules:
  - name: turns
    events: ["agent.turn_complete"]
    mutations:
      - id: count
        cypher: |
          MERGE (a:Agent {name: $agent})
          ON CREATE SET a.turns = 1
          ON MATCH SET a.turns = a.turns + 1
        params: {agent: $event.agent_name}
"""
"""Counts the turns of each agent."""


def load_rules(folder: Path) -> RuleSet:
    """Return the rules in a folder, with the packs of every feature."""
    return RuleSet.load(folder, PACKS)


def rule_set(workflows: dict[str, Workflow] | None = None) -> RuleSet:
    """Return these rules, or none, with the packs of every feature."""
    return RuleSet(workflows or {}, packs=PACKS)


def rules_folder(folder: Path, text: str, workflow: str = "Support") -> Path:
    """Write the rules of a workflow below a folder; return the folder of all rules."""
    file = folder / "workflows" / workflow / "graph_injection.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return folder / "workflows"


def rules_of_parts(folder: Path, parts: Mapping[str, str], workflow: str = "W") -> RuleSet:
    """Return one rule for all events, with these mutations by name; ``$s`` and ``$v`` are fields of the event."""
    (folder / workflow).mkdir()
    mutations = [
        {"id": name, "cypher": cypher, "params": {p: f"$event.{p}" for p in ("s", "v") if f"${p}" in cypher}}
        for name, cypher in parts.items()
    ]
    text = yaml.safe_dump({"mutation_rules": [{"name": "r", "events": ["*"], "mutations": mutations}]})
    (folder / workflow / "graph_injection.yaml").write_text(text)
    return load_rules(folder)

"""Rule files become the rules of a workflow: reading, ``extends``, merging, and the loader of the rule contract.

The loader and the linter go through ``RuleFiles.resolve``, so what one refuses is what the other reports as an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Final

from graphweft_rules.findings import Finding, RulesError, errors, ordered
from graphweft_rules.model import EVERY_AGENT, GraphInjectionConfig, InjectionRule, MutationRule, Place
from graphweft_rules.schema import RuleFile, read_rules

FILE_NAME: Final = "graph_injection.yaml"
"""The rule file in a workflow's folder."""


class GraphInjectionLoader:
    """Loads and validates the rules of one workflow, and answers which of them apply.

    The questions are answered from the last successful ``load``; before it, and after a folder without rules, nothing
    applies. A ``load`` that raises changes nothing.
    """

    def __init__(self) -> None:
        self._config: GraphInjectionConfig | None = None

    def load(self, workflow_path: Path) -> GraphInjectionConfig | None:
        """Return the rules of a workflow's folder, or of a rule file; None when the folder has no rule file.

        Raises ``RulesError`` with every finding of the file and of those that it extends. Warnings alone do not raise.
        """
        path = workflow_path
        if path.is_dir():
            path = path / FILE_NAME
            if not path.exists():
                self._config = None
                return None
        resolved = RuleFiles().resolve(path)
        if resolved.config is None:
            raise RulesError(resolved.findings)
        self._config = resolved.config
        return self._config

    def get_injection_rules(self, agent_name: str) -> list[InjectionRule]:
        """Return the rules for the turns of an agent, in processing order."""
        rules = self._config.injection_rules if self._config else ()
        return [rule for rule in rules if _covers(rule.agents, agent_name)]

    def get_mutation_rules(self, event: str, agent_name: str | None = None) -> list[MutationRule]:
        """Return the rules for an event type, in processing order; without ``agent_name`` those of all agents."""
        rules = self._config.mutation_rules if self._config else ()
        return [
            rule
            for rule in rules
            if any(_names(pattern, event) for pattern in rule.events)
            and (agent_name is None or not rule.agents or _covers(rule.agents, agent_name))
        ]


def discover(root: Path) -> dict[str, Path]:
    """Return workflow name -> rule file for the folders right under ``root``, by name.

    Folders whose names start with ``_`` or ``.`` hold shared bases and are no workflows; folders without a rule file
    are left out. Raises ``RulesError`` when ``root`` is no folder.
    """
    if not root.is_dir():
        message = "there is no such folder: pass the folder that holds the workflows' folders"
        raise RulesError([Finding(level="error", code="missing-file", message=message, place=Place(file=str(root)))])
    files = {folder.name: folder / FILE_NAME for folder in sorted(root.iterdir()) if folder.name[0] not in "_."}
    return {name: file for name, file in files.items() if file.is_file()}


def merge(parent: GraphInjectionConfig, child: GraphInjectionConfig) -> GraphInjectionConfig:
    """Return the parent's rules without those that the child names too, then the child's: a later rule wins.

    Injection and mutation rules have name spaces of their own. Merging is associative, and rules whose names are
    unique in both stay so.
    """
    injections = {rule.name for rule in child.injection_rules}
    mutations = {rule.name for rule in child.mutation_rules}
    return GraphInjectionConfig(
        version=child.version,
        injection_rules=(*(r for r in parent.injection_rules if r.name not in injections), *child.injection_rules),
        mutation_rules=(*(r for r in parent.mutation_rules if r.name not in mutations), *child.mutation_rules),
        files=(*(file for file in parent.files if file not in child.files), *child.files),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A rule file together with all that it extends; ``config`` is None when a finding is an error."""

    config: GraphInjectionConfig | None
    findings: tuple[Finding, ...]


class RuleFiles:
    """Reads each rule file once, however many extend it; make a new one to see changed files."""

    def __init__(self) -> None:
        self._read: dict[str, RuleFile | OSError | ValueError] = {}

    def resolve(self, path: Path) -> Resolved:
        """Return the rules of a file after ``extends``, with the findings of every file on the way.

        Parents come before their children and several parents from left to right; a base that is reached twice counts
        once, at its first place, so that nothing it says undoes an override. Never raises on what files hold.
        """
        findings: list[Finding] = []
        files = list(self._lineage(path, Place(file=str(path)), (), set(), findings.append))
        findings.extend(finding for file in files for finding in file.findings)
        config = None if errors(findings) else reduce(merge, (file.config for file in files))
        return Resolved(config=config, findings=ordered(findings))

    def _lineage(
        self,
        path: Path,
        named_at: Place,
        descent: tuple[tuple[str, Path], ...],
        visited: set[str],
        report: Callable[[Finding], None],
    ) -> Iterator[RuleFile]:
        """Yield the ancestors of a file, then the file, each once; ``descent`` is the way down to it."""
        identity, file = self._open(path)
        if identity in (above for above, _ in descent):
            chain = " -> ".join(str(each) for each in (*(name for _, name in descent), path))
            message = f"{chain} is a circle: take one of these 'extends' out"
            report(Finding(level="error", code="extends-cycle", message=message, place=named_at))
            return
        if identity in visited:
            return
        if not isinstance(file, RuleFile):
            report(_unreadable(path, file, named_at, extended=bool(descent)))
            return
        visited.add(identity)
        for name, place in file.extends:
            # normpath, so that a base has one name whichever workflow's folder leads to it
            parent = Path(os.path.normpath(path.parent / name))
            yield from self._lineage(parent, place, (*descent, (identity, path)), visited, report)
        yield file

    def _open(self, path: Path) -> tuple[str, RuleFile | OSError | ValueError]:
        """Return what tells a file from others, whatever it is called, and its content or why there is none."""
        try:
            identity = os.path.realpath(path)  # Path.resolve raises on links in a circle
        except ValueError as error:  # a null character in the path
            return str(path), error
        if identity not in self._read:
            try:
                data = path.read_bytes()
            except (OSError, ValueError) as error:
                self._read[identity] = error
            else:
                self._read[identity] = read_rules(data, path)
        return identity, self._read[identity]


def _unreadable(path: Path, error: OSError | ValueError, named_at: Place, *, extended: bool) -> Finding:
    if isinstance(error, FileNotFoundError):
        code, message = "missing-file", f"there is no file {str(path)!r}: correct the path"
    else:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        code, message = "unreadable-file", f"{str(path)!r} cannot be read ({why}): pass a rule file that can"
    if extended:
        code, message = "extends-" + code.removesuffix("-file"), message + "; it is relative to this file's folder"
    return Finding(level="error", code=code, message=message, place=named_at)


def _covers(agents: tuple[str, ...], agent: str) -> bool:
    return agent in agents or EVERY_AGENT in agents


def _names(pattern: str, event: str) -> bool:
    return pattern in {event, "*"} or (pattern.endswith(".*") and event.startswith(pattern[:-1]))

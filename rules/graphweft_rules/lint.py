"""What many rule files say at once: the command line, a worker's start and CI call these functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from graphweft_rules.batching import Dialect, Mode
from graphweft_rules.cypher import Cypher, parse
from graphweft_rules.findings import Finding, ordered
from graphweft_rules.footprint import shared_labels
from graphweft_rules.loader import FILE_NAME, RuleFiles
from graphweft_rules.model import Mutation, Place
from graphweft_rules.workflow import Workflow, compile_workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Which rows of a mutation may share a query on one kind of server, and why not all, if so."""

    place: Place
    rule: str
    mutation: str
    dialect: Dialect
    mode: Mode
    reason: str
    """Empty for ``ordered``."""

    def to_dict(self) -> dict[str, str | int]:
        """Return a flat mapping that JSON can hold."""
        return {
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "rule": self.rule,
            "mutation": self.mutation,
            "dialect": self.dialect,
            "mode": self.mode,
            "reason": self.reason,
        }


def lint(paths: Iterable[Path]) -> list[Finding]:
    """Return what is wrong with rule files, each finding once, by file, line and column; never raises on content.

    A folder stands for every ``graph_injection.yaml`` under it and every ``*.yaml`` under its folders that start with
    ``_`` (shared bases), apart from rule tests (``*_test.yaml``) and hidden folders. Its error-level findings are
    exactly what ``GraphInjectionLoader.load`` refuses.
    """
    files = RuleFiles()
    findings: list[Finding] = []
    for path in paths:
        if not path.is_dir():
            findings.extend(files.resolve(path).findings)
            continue
        rule_files = sorted(_rule_files(path))
        for file in rule_files:
            findings.extend(files.resolve(file).findings)
        if not rule_files:
            message = f"no {FILE_NAME} under this folder: nothing is checked"
            findings.append(Finding(level="warning", code="no-rules", message=message, place=Place(file=str(path))))
    return list(ordered(findings))


def explain(paths: Iterable[Path]) -> list[Explanation]:
    """Return how rows of each mutation run on each kind of server, for the rules that load; never raises on content.

    Which labels stand on one node is taken from all these rules together, as by a worker that runs them. A mutation
    that several files extend is there once. Order: by file, line and column, then by kind of server.
    """
    files = RuleFiles()
    given: list[tuple[str, Mutation, Cypher]] = []
    for path in paths:
        for file in sorted(_rule_files(path)) if path.is_dir() else [path]:
            config = files.resolve(file).config
            for rule in config.mutation_rules if config else ():
                given += ((rule.name, each, parse(each.cypher, role="mutation")) for each in rule.mutations)
    shared = shared_labels(cypher for _, _, cypher in given)
    found: dict[tuple[str, int, int, str, str], Explanation] = {}
    for rule_name, mutation, cypher in given:
        place = mutation.place
        for dialect in get_args(Dialect):
            form = cypher.form(dialect, shared)
            found[place.file, place.line, place.column, mutation.id, dialect] = Explanation(
                place=place,
                rule=rule_name,
                mutation=mutation.id,
                dialect=dialect,
                mode=form.mode,
                reason=form.reason,
            )
    return [found[key] for key in sorted(found)]


def workflows(paths: Iterable[Path]) -> list[Workflow]:
    """Return the rules of each file that loads, compiled, under the name of its folder; never raises on content."""
    files = RuleFiles()
    found: list[Workflow] = []
    for path in paths:
        for file in sorted(_rule_files(path)) if path.is_dir() else [path]:
            if (config := files.resolve(file).config) is not None:
                found.append(compile_workflow(file.parent.name, config))
    return found


def _rule_files(root: Path) -> Iterator[Path]:
    for file in root.rglob("*.yaml"):
        folders = file.relative_to(root).parts[:-1]
        if any(folder.startswith(".") for folder in folders) or file.name.endswith("_test.yaml"):
            continue
        shared = any(folder.startswith("_") for folder in (root.name, *folders))
        if file.name == FILE_NAME or shared:
            yield file

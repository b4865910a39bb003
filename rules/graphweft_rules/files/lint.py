"""Checks and explanations of many rule files, for the command line."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from graphweft_rules.cypher.batch_query import Dialect, Mode
from graphweft_rules.cypher.node_labels import shared_labels
from graphweft_rules.cypher.query import Cypher, parse
from graphweft_rules.files.below import files_below
from graphweft_rules.files.findings import Finding, ordered
from graphweft_rules.files.loader import FILE_NAME, TESTS, RuleFiles, index_findings, unread_files
from graphweft_rules.files.model import Mutation, Place
from graphweft_rules.files.search_indexes import search_findings
from graphweft_rules.files.unwritten_names import text_times, unwritten_labels
from graphweft_rules.matching.workflow import Workflow, compile_workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExplanation:
    """How rows of a mutation run on one kind of server."""

    place: Place
    rule: str
    mutation: str
    dialect: str
    mode: Mode
    reason: str
    """Why the mode is not ``ordered``; empty for ``ordered``."""

    def to_dict(self) -> dict[str, str | int]:
        """Return a flat mapping for JSON."""
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


def lint(paths: Iterable[Path], dialects: Iterable[Dialect] = (), known: Collection[str] = ()) -> list[Finding]:
    """Return the findings of rule files, each once, by file, line and column. Never raises on content.

    A folder means every ``graph_injection.yaml`` in it, and every ``*.yaml`` in its folders that start with ``_``
    (shared bases), except rule tests (``*_test.yaml``) and hidden folders. ``GraphInjectionLoader.load`` refuses
    exactly the files with error-level findings. ``dialects`` adds the problems of queries on their graph servers.
    ``known`` are labels that something else than rules writes.
    """
    files = RuleFiles(dialects)
    findings: list[Finding] = []
    for path in paths:
        if not path.is_dir():
            findings.extend(files.resolve(path).findings)
            continue
        rule_files = sorted(_rule_files(path))
        resolved = [files.resolve(file, _root(path, file)) for file in rule_files]
        for each in resolved:
            findings.extend(each.findings)
        configs = [each.config for each in resolved if each.config is not None]
        findings.extend(unwritten_labels(configs, known))
        findings.extend(text_times(configs))
        findings.extend(search_findings(configs, known))
        findings.extend(index_findings(configs, Place(file=str(path))))
        findings.extend(unread_files(path, is_root=False))
        if not rule_files:
            message = f"no {FILE_NAME} under this folder: nothing is checked"
            findings.append(Finding(level="warning", code="no-rules", message=message, place=Place(file=str(path))))
    return list(ordered(findings))


def explain(paths: Iterable[Path], dialects: Iterable[Dialect]) -> list[RowExplanation]:
    """Return how rows of each mutation run on each kind of server, for files that load. Never raises on content.

    Labels that share a node are taken from all rules together, as in a worker. A mutation that several files extend
    appears once. Order: file, line and column, then kind of server.
    """
    dialects = tuple(dialects)
    files = RuleFiles()
    given: list[tuple[str, Mutation, Cypher]] = []
    for path in paths:
        for file in sorted(_rule_files(path)) if path.is_dir() else [path]:
            config = files.resolve(file, _root(path, file)).config
            for rule in config.mutation_rules if config else ():
                given += ((rule.name, each, parse(each.cypher, role="mutation")) for each in rule.mutations)
    shared = shared_labels(cypher for _, _, cypher in given)
    found: dict[tuple[str, int, int, str, str], RowExplanation] = {}
    for rule_name, mutation, cypher in given:
        place = mutation.place
        for dialect in dialects:
            batch_query = cypher.batch_query(dialect, shared)
            found[place.file, place.line, place.column, mutation.id, dialect.name] = RowExplanation(
                place=place,
                rule=rule_name,
                mutation=mutation.id,
                dialect=dialect.name,
                mode=batch_query.mode,
                reason=batch_query.reason,
            )
    return [found[key] for key in sorted(found)]


def workflows(paths: Iterable[Path]) -> list[Workflow]:
    """Return the compiled rules of each file that loads, named after its folder. Never raises on content."""
    files = RuleFiles()
    found: list[Workflow] = []
    for path in paths:
        for file in sorted(_rule_files(path)) if path.is_dir() else [path]:
            if (config := files.resolve(file, _root(path, file)).config) is not None:
                found.append(compile_workflow(file.parent.name, config))
    return found


def _root(given: Path, file: Path) -> Path:
    """Return the folder that bases must be in: the one that was given, or that around the file's folder if wider."""
    around, given = Path(os.path.abspath(file)).parent.parent, Path(os.path.abspath(given))
    return given if around.is_relative_to(given) else around


def _rule_files(root: Path) -> Iterator[Path]:
    for file in files_below(root):
        folders = file.relative_to(root).parts[:-1]
        if file.suffix != ".yaml" or file.name.endswith(TESTS):
            continue
        shared = any(folder.startswith("_") for folder in (root.name, *folders))
        if file.name == FILE_NAME or shared:
            yield file

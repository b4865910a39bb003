"""Every finding of many rule files at once: the command line, a worker's start and CI call this one function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from graphweft_rules.findings import Finding, ordered
from graphweft_rules.loader import FILE_NAME, RuleFiles
from graphweft_rules.model import Place

__all__ = ("lint",)


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


def _rule_files(root: Path) -> Iterator[Path]:
    for file in root.rglob("*.yaml"):
        folders = file.relative_to(root).parts[:-1]
        if any(folder.startswith(".") for folder in folders) or file.name.endswith("_test.yaml"):
            continue
        shared = any(folder.startswith("_") for folder in (root.name, *folders))
        if file.name == FILE_NAME or shared:
            yield file

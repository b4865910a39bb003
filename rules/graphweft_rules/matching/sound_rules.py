"""Loads a folder in which some workflows have errors: these keep the rules that they had before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from graphweft_rules.cypher.batch_query import Dialect
from graphweft_rules.files.findings import Finding, RulesError
from graphweft_rules.files.loader import RuleFiles, discover, reader_of, workflow_files
from graphweft_rules.files.model import Place
from graphweft_rules.matching.pack import Pack
from graphweft_rules.matching.rule_set import RuleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundRules:
    """The rules of a folder, as far as they have no errors."""

    rules: RuleSet
    kept: tuple[str, ...]
    """Workflows with errors whose rules are those of before."""
    absent: tuple[str, ...]
    """Workflows with errors that have no rules."""
    findings: tuple[Finding, ...]


def load_sound(
    root: Path,
    packs: Iterable[Pack] = (),
    dialects: Iterable[Dialect] = (),
    *,
    before: Mapping[str, bytes],
    broken: Collection[str] = (),
) -> SoundRules:
    """Load the workflows of ``root`` without errors; for the others keep their files of ``before``.

    The workflows of ``broken`` count as ones with errors. Raises ``RulesError`` with all findings if the two sorts need
    different contents of one file.
    """
    files = RuleFiles(dialects)
    named = discover(root)
    findings: list[Finding] = []
    failed = set(broken)
    for name, path in named.items():
        resolved = files.resolve(path)
        if resolved.config is None:
            findings += resolved.findings
            failed.add(name)
    contents = _contents(RuleFiles(dialects), (path for name, path in named.items() if name not in failed), root)
    kept = {name: path for name, path in workflow_files(before).items() if name in failed}
    old = _contents(RuleFiles(dialects, reader_of(before)), kept.values(), Path())
    if changed := [name for name, data in old.items() if contents.get(name, data) != data]:
        raise RulesError([*(_changed_base(root / name) for name in changed), *findings])
    return SoundRules(
        rules=RuleSet.of_files({**contents, **old}, packs, dialects),
        kept=tuple(sorted(kept)),
        absent=tuple(sorted(failed - kept.keys())),
        findings=tuple(findings),
    )


def _contents(files: RuleFiles, paths: Iterable[Path], root: Path) -> dict[str, bytes]:
    for path in paths:
        files.resolve(path)
    return files.contents_from(root)


def _changed_base(file: Path) -> Finding:
    message = (
        "a workflow with errors would keep its rules of before, which extend this file, but the file has changed: "
        "correct the errors; then all changes take effect together"
    )
    return Finding(level="error", code="changed-base", message=message, place=Place(file=str(file)))

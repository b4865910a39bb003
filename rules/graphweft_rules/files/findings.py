"""Findings: the problems of rule files, as the loader, the linter and the command line report them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from graphweft_contracts.errors import InvalidRules
from graphweft_rules.files.model import Place

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem in a rule file. An ``error`` keeps the rules from loading, a ``warning`` does not.

    ``code`` is kebab-case and stable; ``message`` is for people and may change.
    """

    level: Level
    code: str
    message: str
    place: Place

    def __str__(self) -> str:
        """Return ``file:line:column: level code: message``."""
        return f"{self.place}: {self.level} {self.code}: {self.message}"

    def under(self, root: Path) -> Finding:
        """Return the finding of a file that is named from ``root``."""
        return replace(self, place=replace(self.place, file=str(root / self.place.file)))

    def to_dict(self) -> dict[str, str | int]:
        """Return a flat mapping for JSON."""
        return {
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "level": self.level,
            "code": self.code,
            "message": self.message,
        }


class RulesError(InvalidRules):
    """Rule files do not load; ``findings`` holds all findings, warnings included, by file, line and column."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = ordered(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return each finding once, by file, line and column."""
    return tuple(
        sorted(
            set(findings),
            key=lambda one: (one.place.file, one.place.line, one.place.column, one.level, one.code, one.message),
        )
    )


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that keep rules from loading, in the given order."""
    return tuple(finding for finding in findings if finding.level == "error")

"""Finds and reads the test files of a folder of rules."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from graphweft_rules.files.below import files_below
from graphweft_rules.files.file_bytes import file_bytes
from graphweft_rules.files.findings import Finding, ordered
from graphweft_rules.files.loader import FILE_NAME, TESTS, discover
from graphweft_rules.files.model import Place
from graphweft_rules.rule_tests.model import Case
from graphweft_rules.rule_tests.reader import read_cases

_WRONG_SUFFIX: Final = "_test.yml"
_MOST_NAME: Final = 56
"""Characters of an app id that come from the case's name; an app id has at most 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTests:
    """The test files at a path, read."""

    root: Path
    """The folder of workflows."""
    files: tuple[Path, ...]
    cases: tuple[Case, ...]
    findings: tuple[Finding, ...]


def load_tests(path: Path) -> RuleTests:
    """Read the tests at ``path``: a folder of workflows, the folder of a workflow or one in it, or one test file.

    Each case gets an app id of its own. Never raises on content.
    """
    path = Path(os.path.abspath(path))
    files = sorted(_files(path))
    root = _root(path, files)
    known = discover(root) if root.is_dir() else {}
    findings: list[Finding] = []
    cases: list[Case] = []
    for file in files:
        found, problems = _read(_short(file), _workflow_of(file, root))
        cases.extend(found)
        findings.extend(problems)
    for case in cases:
        if case.workflow and case.workflow not in known:
            names = ", ".join(known) or "none"
            message = (
                f"{str(_short(root))!r} has no rules for the workflow {case.workflow!r}; it has rules for: {names}"
            )
            findings.append(Finding(level="error", code="unknown-workflow", message=message, place=case.place))
    return RuleTests(
        root=_short(root),
        files=tuple(map(_short, files)),
        cases=tuple(_with_apps(cases)),
        findings=ordered(findings),
    )


def _root(path: Path, files: Iterable[Path]) -> Path:
    """Return the folder of workflows that a path belongs to, or that lies below it and holds all its test files."""
    if path.is_dir() and discover(path):
        return path
    folder = path if path.is_dir() else path.parent
    found = _root_above(folder)
    if found is None:
        below = {_root_above(file.parent) for file in files}
        found = below.pop() if len(below) == 1 else None
    return found or (folder.parent if folder.name.startswith("_") else folder)


def _root_above(folder: Path) -> Path | None:
    return next((each.parent for each in (folder, *folder.parents) if (each / FILE_NAME).is_file()), None)


def _short(path: Path) -> Path:
    """Return a path relative to the working folder if it lies in it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for file in files_below(path):
        if file.name.endswith((TESTS, _WRONG_SUFFIX)) and not file.name.startswith("."):
            yield file


def _workflow_of(file: Path, root: Path) -> str | None:
    parts = file.relative_to(root).parts if file.is_relative_to(root) else ()
    return parts[0] if len(parts) > 1 and parts[0][0] not in "_." else None


def _read(file: Path, workflow: str | None) -> tuple[Iterable[Case], Iterable[Finding]]:
    place = Place(file=str(file))
    if not file.name.endswith(TESTS):
        message = f"the name of a test file ends with {TESTS}: rename it"
        return (), [Finding(level="error", code="file-name", message=message, place=place)]
    try:
        data = file_bytes(file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        message = f"the file cannot be read ({why}): pass a test file, or a folder of rules"
        return (), [Finding(level="error", code="unreadable-file", message=message, place=place)]
    return read_cases(data, file, workflow)


def _with_apps(cases: Iterable[Case]) -> Iterator[Case]:
    """Give each case an app id like its name, and a number if an earlier case has that one."""
    used: set[str] = set()
    for case in cases:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", case.name).strip("-")[:_MOST_NAME] or "case"
        app_id, number = name, 1
        while app_id in used:
            number += 1
            app_id = f"{name}-{number}"
        used.add(app_id)
        events = tuple(event.model_copy(update={"appid": app_id}) for event in case.events)
        yield replace(case, app_id=app_id, events=events)

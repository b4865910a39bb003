"""Tests wait for states, by one helper: a fixed sleep is too short on a slow machine and too long on any other."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
SUITES = TESTS.parent / "workers/graphweft_workers/testing"
FREE = (
    "chaos",  # breaks things at random moments
    "ports/toy_driver",  # a driver, which polls its file
    "waiting.py",  # the helper
    "services/virtual_time.py",  # sleeps end at once
    "unit",  # in virtual time
    "upgrade/record.py",  # no test: it waits for a server to write its file
)


def sleeps(file: Path) -> list[int]:
    calls = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]
    return [
        call.lineno for call in calls
        if (isinstance(call.func, ast.Attribute) and call.func.attr == "sleep")
        or (isinstance(call.func, ast.Name) and call.func.id == "sleep")
    ]  # fmt: skip


def test_no_test_sleeps() -> None:
    found = [
        f"{name}:{line}"
        for folder in (TESTS, SUITES)
        for file in sorted(folder.rglob("*.py"))
        if not (name := file.relative_to(folder).as_posix()).startswith(FREE)
        for line in sleeps(file)
    ]
    assert not found, f"wait for a state with tests.services.waiting: {', '.join(found)}"

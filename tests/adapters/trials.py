"""When a runtime's tests passed last, and on which files: they run again when these change, and in ``make soak``.

Each runtime has an environment of its own, up to a gigabyte, and takes seconds to import. ``tried.json`` has a hash of
what the tests of a runtime try: its adapter, what adapters share, the tests themselves, the page, and the packages. A
run of all tests, or of ``tests/adapters``, writes it, except with ``CI=true``; commit it with the change.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Final

import pytest
from tests.services.runtime_environments import ROOT, packages

__all__ = ("RUNTIMES", "unchanged_since")

_TRIED: Final = ROOT / "tests/adapters/tried.json"
RUNTIMES: Final = tuple(
    file.parent.name
    for file in sorted(ROOT.glob("tests/adapters/*/requirements.txt"))
    if file.parent.name != "agent_zero"  # it is no package, and needs a checkout
)
"""Folders of the runtimes that are packages."""


def unchanged_since(folder: str, tried: Path = _TRIED) -> str:
    """Return the day on which the tests of a runtime passed on the files of today, or an empty text."""
    last: dict[str, str] = (json.loads(tried.read_text("utf-8")) if tried.exists() else {}).get(folder, {})
    return last["day"] if last and last["files"] == state_of(folder) else ""


def state_of(folder: str, root: Path = ROOT) -> str:
    """Return the hash of all files that the tests of a runtime try."""
    name = folder.replace("_", "-")
    page = "opentelemetry" if folder == "otel" else "openai" if folder == "model_clients" else name
    files = [
        *root.glob("client/graphweft/adapters/*.py"),
        *root.glob("runtimes/graphweft_runtimes/*.py"),
        *root.glob(f"client/graphweft/adapters/{folder}/**/*.py"),
        *root.glob(f"runtimes/graphweft_runtimes/{folder}/**/*.py"),
        *root.glob("tests/adapters/*.py"),
        *root.glob("tests/adapters/shared/*.py"),
        root / "tests/adapters/model_clients/model_server.py",
        *root.glob(f"tests/adapters/{folder}/**/*.*"),
        root / f"docs/runtimes/{page}.md",
    ]
    hashed = hashlib.sha256("\n".join(each for each in packages(name) if not each.startswith("/")).encode())
    for file in sorted({file for file in files if file.suffix != ".pyc" and file.name != Path(__file__).name}):
        hashed.update(f"\0{file.relative_to(root)}\0".encode() + file.read_bytes())
    return hashed.hexdigest()[:16]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--soak"):
        return
    days = {folder: unchanged_since(folder) for folder in RUNTIMES}
    for item in items:
        folder = _folder(item.nodeid)
        if day := days.get(folder):
            reason = f"nothing of {folder} changed since its tests passed on {day}: make soak runs them"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_configure(config: pytest.Config) -> None:
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS or config.args == ["tests/adapters"]
    if whole and not config.getoption("keyword") and not os.environ.get("CI") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Record())


class _Record:
    """Writes which runtimes passed with the files of today. A skipped test has not passed."""

    def __init__(self) -> None:
        self._outcomes: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._outcomes.setdefault(_folder(report.nodeid), set()).add(report.outcome)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            return  # a run that was cut off has not tried all of a runtime
        passed = [each for each in RUNTIMES if self._outcomes.get(each) == {"passed"}]
        if not passed:
            return
        tried = json.loads(_TRIED.read_text("utf-8")) if _TRIED.exists() else {}
        today = str(datetime.datetime.now(datetime.UTC).date())
        tried |= {folder: {"day": today, "files": state_of(folder)} for folder in passed}
        _TRIED.write_text(json.dumps(tried, indent=2, sort_keys=True) + "\n", "utf-8")


def _folder(nodeid: str) -> str:
    """Return the folder of a test of a runtime, or an empty text."""
    found = re.match(r"tests/adapters/(\w+)/", nodeid)
    return found[1] if found else ""

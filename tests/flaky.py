"""A test that failed runs a second time, alone. If it passes then, the run passes and the test is listed as flaky.

The second run is a process of its own, after all other tests and the servers of the first run have ended. It is on with
``CI=true`` and with ``--second-run``. The tests that passed only then are listed under ``FLAKY`` above the counts and
in ``docs/flaky.md``; more than ``MOST`` of them fail the run.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

MOST: Final = 3
_SECOND: Final = 20
"""So many failed tests run again, to tell flaky ones from faults. The run fails whatever they do."""
_PAGE: Final = "docs/flaky.md"
_SHOWN: Final = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("flaky tests")
    group.addoption(
        "--second-run", action="store_true", default=bool(os.environ.get("CI")),
        help="run failed tests a second time, alone; on with CI=true",
    )  # fmt: skip
    group.addoption(
        "--write-passed", metavar="FILE", help="write the node ids of tests that pass (used by the second run)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # a process of pytest-xdist: the first process has all reports
    if file := config.getoption("--write-passed"):
        config.pluginmanager.register(_Passed(Path(file)))
    elif config.getoption("--second-run"):
        config.pluginmanager.register(_SecondRun(config))


class _Passed:
    """Writes which tests passed whole: set-up, call and teardown."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._file.write_text("\n".join(self._passed - self._failed), "utf-8")


class _SecondRun:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._flaky: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reports.setdefault(_without_group(report.nodeid), []).append(report)

    @pytest.hookimpl(trylast=True)  # the processes that shared the tests, and all servers, have ended
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        whole = exitstatus == pytest.ExitCode.TESTS_FAILED and not session.shouldfail and not session.shouldstop
        if not whole or not 0 < len(self._reports) <= _SECOND:
            return
        passed = self._passed_alone()
        self._flaky = [test for test in self._reports if test in passed]
        self._list()
        if len(self._flaky) > MOST:
            return
        self._count_as_flaky()
        stats = _terminal(self._config).stats
        if not stats.get("failed") and not stats.get("error"):
            session.exitstatus = pytest.ExitCode.OK

    def _passed_alone(self) -> set[str]:
        _terminal(self._config).write_line("")
        _terminal(self._config).section(f"second run, alone: {len(self._reports)} failed", bold=True)
        sys.stdout.flush()
        seed = self._config.getoption("randomly_seed", None)
        same = [f"--randomly-seed={seed}"] if isinstance(seed, int) else []
        same += ["--soak"] if self._config.getoption("--soak", False) else []
        with tempfile.TemporaryDirectory(prefix="graphweft-flaky-") as folder:
            file = Path(folder) / "passed"
            subprocess.run(
                # Whatever marks the first run selected, these tests were among them.
                [sys.executable, "-m", "pytest", "--numprocesses=0", "-m", "", "-p", "no:cacheprovider", *same,
                 f"--write-passed={file}", *self._reports],
                cwd=self._config.rootpath, check=False,
            )  # fmt: skip
            return set(file.read_text("utf-8").splitlines()) if file.exists() else set()

    def _list(self) -> None:
        page = self._config.rootpath / _PAGE
        if self._flaky and page.exists():
            with page.open("a", encoding="utf-8") as table:
                table.writelines(f"{row}\n" for row in self._rows())

    def _rows(self) -> list[str]:
        today = datetime.datetime.now(datetime.UTC).date()
        return [f"| {today} | `{_cell(test)}` | {_cell(_error_of(self._reports[test][0]))} |" for test in self._flaky]

    def _count_as_flaky(self) -> None:
        stats = _terminal(self._config).stats
        for kind in ("failed", "error"):
            left = [each for each in stats.pop(kind, []) if _without_group(each.nodeid) not in self._flaky]
            if left:  # an empty list would be red
                stats[kind] = left
        if self._flaky:
            stats["flaky"] = [self._reports[test][0] for test in self._flaky]

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # after all other summaries
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        yield
        if not self._flaky:
            return
        terminalreporter.section("first failures of flaky tests")
        for test in self._flaky:
            for report in self._reports[test]:
                terminalreporter.write_sep("_", f"{test} ({report.when})")
                terminalreporter.write_line(report.longreprtext)
                for title, text in report.sections:
                    terminalreporter.write_sep("-", title)
                    terminalreporter.write_line(text)
        terminalreporter.section("FLAKY", yellow=True)
        for row in self._rows():
            terminalreporter.write_line(row)
        terminalreporter.write_line(
            f"{len(self._flaky)} flaky, and more than {MOST} fail the run" if len(self._flaky) > MOST
            else f"Each failed, and passed when it ran a second time, alone: find the cause; list it in {_PAGE}."
        )  # fmt: skip


def _terminal(config: pytest.Config) -> pytest.TerminalReporter:
    found = config.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(found, pytest.TerminalReporter)
    return found


def _error_of(report: pytest.TestReport) -> str:
    """Return the first line of what went wrong, which also an output that was cut off shows."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (report.longreprtext if crash is None else str(crash.message)).strip().splitlines() or [""]
    return lines[0][:_SHOWN]


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")


def _without_group(test: str) -> str:
    """Return a node id without what ``--dist loadgroup`` appends to it."""
    return test.rpartition("@")[0] if test.rfind("@") > test.rfind("]") else test

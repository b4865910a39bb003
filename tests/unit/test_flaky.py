"""A failed test runs a second time, alone: whole runs of pytest over small suites."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAILS_ONCE = """
def fail_once(name):
    try:
        open(name, "x").close()
    except FileExistsError:
        return
    raise RuntimeError(f"the first time of {name}")
"""
WITHOUT = "-p no:schemathesis -p no:hypothesispytest -p no:asyncio -p no:anyio"
"""Plugins that double the time of a start."""
PROCESSES = pytest.mark.parametrize("processes", ["0", "2"])
PAGE = "| date | test | error |\n|---|---|---|\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    code: int
    output: str
    page: str

    @property
    def counts(self) -> str:
        return self.output.splitlines()[-1]


def run(folder: Path, tests: str, *options: str, processes: str = "0", second: bool = True) -> Run:
    """Run a suite of one module that has ``fail_once``."""
    (folder / "docs").mkdir()
    (folder / "docs/flaky.md").write_text(PAGE)
    (folder / "pytest.ini").write_text(
        f"[pytest]\ntestpaths = test_it.py\naddopts = -m 'not rare' {WITHOUT}\nmarkers = rare: x\n"
    )
    (folder / "conftest.py").write_text('pytest_plugins = ["tests.flaky"]')
    (folder / "test_it.py").write_text(f"import pytest\n{FAILS_ONCE}\n{tests}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"--numprocesses={processes}", "--dist=loadgroup",
         *(["--second-run"] if second else []), *options],
        cwd=folder, capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "CI"} | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return Run(code=done.returncode, output=done.stdout, page=(folder / "docs/flaky.md").read_text())


@pytest.mark.long("2")
@PROCESSES
def test_a_test_that_passes_alone_is_listed_and_does_not_fail_the_run(tmp_path: Path, processes: str) -> None:
    found = run(
        tmp_path,
        """
@pytest.mark.xdist_group("any")
@pytest.mark.parametrize("text", ["plain", "a@b", "a|b"])
def test_it(text):
    fail_once(f"call {text}")
""",
        processes=processes,
    )
    assert found.code == 0, found.output
    assert re.search(r"= 3 flaky in ", found.counts)
    listed = found.output.partition("= FLAKY =")[2]
    for text in ("plain", "a@b", "a&#124;b"):
        error = f"RuntimeError: the first time of call {text}"
        assert re.search(rf"(?m)^\| 20\d\d-\d\d-\d\d \| `test_it\.py::test_it\[{text}\]` \| {error} \|$", listed)
    assert found.page.splitlines()[2:] == re.findall(r"(?m)^\| 20.*$", listed)
    assert "RuntimeError: the first time of call plain" in found.output


def test_a_test_that_fails_alone_too_fails_the_run(tmp_path: Path) -> None:
    found = run(tmp_path, "def test_good(): fail_once('call')\ndef test_bad(): raise RuntimeError\n")
    assert found.code == 1
    assert re.search(r"= 1 failed, 1 flaky in ", found.counts)
    assert "test_good" in found.page
    assert "test_bad" not in found.page


@pytest.mark.long
def test_more_than_three_fail_the_run(tmp_path: Path) -> None:
    found = run(tmp_path, "@pytest.mark.parametrize('n', range(4))\ndef test_it(n): fail_once(f'call {n}')\n")
    assert found.code == 1
    assert re.search(r"= 4 failed in ", found.counts)
    assert "4 flaky, and more than 3 fail the run" in found.output
    assert found.page.count("test_it.py::") == 4


@pytest.mark.long
def test_a_failed_set_up_and_a_failed_teardown_run_again(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        """
@pytest.fixture
def begins(): fail_once("begins")
@pytest.fixture
def ends():
    yield
    fail_once("ends")
def test_begin(begins): pass
def test_end(ends): pass
""",
    )
    assert found.code == 0, found.output
    assert re.search(r"= 1 passed, 2 flaky in ", found.counts)


@pytest.mark.soak
def test_the_fixtures_of_a_session_are_made_anew(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        """
@pytest.fixture(scope="session")
def server():
    import os
    yield os.getpid()
    open("closed", "x").close()
def test_it(server):
    import os
    if not os.path.exists("closed"):
        raise RuntimeError(server)
    os.remove("closed")
""",
    )
    assert found.code == 0, found.output


@pytest.mark.soak
def test_a_test_that_is_skipped_the_second_time_has_not_passed(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        """
def test_it():
    try:
        fail_once("call")
    except RuntimeError:
        raise
    pytest.skip("nothing was tried")
""",
    )
    assert found.code == 1
    assert re.search(r"= 1 failed in ", found.counts)


@pytest.mark.soak
def test_a_mark_that_is_left_out_else_runs_again(tmp_path: Path) -> None:
    found = run(tmp_path, "@pytest.mark.rare\ndef test_it(): fail_once('call')\n", "-m", "rare")
    assert found.code == 0, found.output


def test_a_worker_that_dies_is_a_failure(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        """
def test_it():
    try:
        fail_once("call")
    except RuntimeError:
        import os
        os._exit(3)
""",
        processes="2",
    )
    assert found.code == 0, found.output
    assert re.search(r" 1 flaky in ", found.counts)


@pytest.mark.soak
def test_a_run_that_ended_early_stays_failed(tmp_path: Path) -> None:
    found = run(tmp_path, "def test_it(): fail_once('call')\ndef test_other(): pass\n", "--exitfirst")
    assert found.code != 0
    assert found.page == PAGE


@pytest.mark.soak
def test_a_module_that_cannot_be_read_fails_the_run(tmp_path: Path) -> None:
    found = run(tmp_path, "fail_once('import')\ndef test_it(): pass\n")
    assert found.code == 2
    assert found.page == PAGE


def test_without_ci_and_option_nothing_runs_again(tmp_path: Path) -> None:
    found = run(tmp_path, "def test_it(): fail_once('call')\n", second=False)
    assert found.code == 1
    assert "FLAKY" not in found.output

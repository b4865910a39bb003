"""No file of the working folder becomes code: whoever starts a command may stand in a folder that others wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from importlib import metadata
from pathlib import Path
from typing import IO, cast

import pytest
from tests.services.environment import clean_environment

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCRIPT = Path(sys.executable).with_name("graphweft")
RULES = """
graph_injection:
  mutations:
    - name: note
      on: {event: op.done}
      queries:
        - id: note
          cypher: "MERGE (n:Note {id: $event.id})"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module for each name that an import may look for; each writes its name into ``ran``."""
    folder = tmp_path_factory.mktemp("theirs")
    ran = folder / "ran"
    ran.mkdir()
    names = {*sys.stdlib_module_names, *metadata.packages_distributions(), "sitecustomize", "usercustomize"}
    for name in sorted(names):
        if name.isidentifier():
            text = f"open({str(ran / name)!r}, 'w')\nraise SystemExit('the working folder ran')\n"
            (folder / f"{name}.py").write_text(text)
    return folder


def environment(**more: str) -> dict[str, str]:
    return clean_environment(GRAPHWEFT_LOG_LEVEL="warning", **more)


def ran(folder: Path) -> list[str]:
    """Return which planted modules ran since the last call."""
    names = sorted(os.listdir(folder / "ran"))
    for name in names:
        (folder / "ran" / name).unlink()
    return names


def said(output: IO[str], words: str) -> str:
    """Return the first line with these words."""
    lines: list[str] = []
    for line in output:
        lines.append(line)
        if words in line:
            return line
    raise AssertionError("".join(lines))


def test_a_planted_module_would_run(folder: Path) -> None:
    command = [sys.executable, "-u", "-m", "graphweft_workers.cli", "--version"]  # -u: a new process, not a fork
    done = subprocess.run(command, cwd=folder, check=False)
    assert done.returncode != 0
    assert ran(folder)


@pytest.mark.long("all roles")
@pytest.mark.parametrize(
    "more",
    [{}, {"GRAPHWEFT_MEMORY_KEEP_DAYS": "9", "GRAPHWEFT_ARCHIVE_URL": "archive", "GRAPHWEFT_ARCHIVE_TRIM": "true"}],
    ids=["two roles", "all roles"],
)
def test_up_runs_no_module_of_the_working_folder(folder: Path, tmp_path: Path, more: dict[str, str]) -> None:
    command = [str(SCRIPT), "up", "--data", str(tmp_path / "data")]
    up = subprocess.Popen(
        command, cwd=folder, env=environment(GRAPHWEFT_CONSOLE_PORT="0", **more), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        link = said(cast("IO[str]", up.stdout), "console: http").split()[-1].partition("#")[0]
        with urllib.request.urlopen(link, timeout=120) as page:  # starts the process of the console
            assert page.status == 200
    finally:
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=120)
    assert ran(folder) == []


@pytest.mark.long
def test_the_demo_runs_no_module_of_the_working_folder(folder: Path, tmp_path: Path) -> None:
    command = [str(SCRIPT), "demo", "--data", str(tmp_path / "data")]
    done = subprocess.run(
        command, cwd=folder, env=environment(GRAPHWEFT_CONSOLE="false"), capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert (done.returncode, ran(folder)) == (0, []), done.stderr
    assert "rebuild" in done.stdout


HOOK = json.dumps({"hook_event_name": "SessionStart", "session_id": "s", "cwd": "."})


@pytest.mark.long(keep=("doctor", "emit"))
@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "mcp", "--app", "a"],
        ["hook", "--app", "a", HOOK],
        ["doctor"],
        ["lint", "rules"],
        ["test", "rules"],
        ["try", "events.jsonl", "--rules", "rules"],
        ["init", "project"],
        ["emit", "events.jsonl"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]).partition("{")[0].strip(),
)
def test_a_command_runs_no_module_of_the_working_folder(folder: Path, arguments: list[str]) -> None:
    (rules := folder / "rules" / "W").mkdir(parents=True, exist_ok=True)
    (rules / "graph_injection.yaml").write_text(RULES)
    (folder / "events.jsonl").write_text("{}\n")
    command = [str(SCRIPT), *arguments]
    nowhere = "redis://127.0.0.1:1"
    subprocess.run(
        command, cwd=folder, env=environment(GRAPHWEFT_BUS_URL=nowhere, GRAPHWEFT_GRAPH_URL=nowhere),
        stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran(folder) == []

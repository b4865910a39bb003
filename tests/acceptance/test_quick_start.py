"""The example of the quick start, and the project of ``graphweft init``, run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.services.commands import inside

from graphweft_contracts.prompt_text import enclose

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs/quick-start.md").read_text("utf-8")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GRAPHWEFT_")}


def block(language: str) -> str:
    [text] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of both, with ``graphweft up``."""
    folder = tmp_path_factory.mktemp("readme")
    assert inside(["init", "--workflow", "helpdesk"], ENVIRONMENT, folder=folder).code == 0
    rules = folder / "workflows/Support/graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text(block("yaml"))
    assert inside(["lint", "workflows"], ENVIRONMENT, folder=folder).out.endswith("\n0 errors, 0 warnings\n")
    up = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "up"],
        cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert up.stdout is not None
        assert "graphweft is up" in up.stdout.readline()
        yield folder
    finally:
        up.terminate()
        up.communicate(timeout=120)


def run(script: Path) -> str:
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def test_the_example_runs_as_printed(project: Path) -> None:
    script = project / "runtime.py"
    script.write_text(block("python"))
    # Worker and responder are there; on a slow machine the first answer may take longer than a turn waits for it.
    for times in range(1, 11):
        said = run(script)
        expected = enclose(f"## Tools That Failed For This User\n- **refund**: {times}") + "\n"
        if said.endswith(expected):
            break
    assert said.endswith(expected), said
    assert said.startswith("stored at ")
    assert f"```\n{enclose('## Tools That Failed For This User\n- **refund**: 1')}\n```" in PAGE


def test_the_new_project_runs_as_printed(project: Path) -> None:
    expected = "- **o2**: desk (status: placed)\n- **o1**: lamp (status: delayed, days: 3)"
    assert run(project / "agent.py") == enclose(f"## Orders Of This Customer\n{expected}") + "\n"

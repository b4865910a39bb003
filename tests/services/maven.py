"""Servers that run on the JVM: their jars from Maven Central, fetched once and kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Final, NoReturn

import pytest

__all__ = ("cache", "free_port", "jars", "require_java", "unavailable")

_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_FETCH_S: Final = 600


def unavailable(reason: str) -> NoReturn:
    """Skip the test that asks for what this machine lacks; with ``CI=true`` that is a failure."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def cache() -> Path:
    """Return the folder for what tests fetch once for a machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphweft"


def require_java() -> None:
    """Skip, or fail with ``CI=true``, unless ``java`` and ``mvn`` are there."""
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    if missing:
        unavailable(f"{' and '.join(missing)} not found: install a JDK of version 17 or later and Maven")


def jars(name: str, pom: Path) -> Path:
    """Return the folder with the jars that ``pom`` depends on: for ``java -cp 'folder/*'``.

    It lies in the user's cache as ``graphweft/<name>-<hash of the pom>``. The first call fetches them, which takes
    up to a minute or two, and several test processes may make it at once: one fetches, the others wait. A folder that
    is there is complete. Skips, or fails with ``CI=true``, when they cannot be fetched.
    """
    require_java()
    folder = cache() / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
            # Maven writes a target folder beside the pom, so it gets a copy.
            shutil.copy(pom, Path(scratch) / "pom.xml")
            arguments = ["mvn", "--batch-mode", "--quiet", _COPY, f"-DoutputDirectory={scratch}/jars"]
            try:
                done = subprocess.run(
                    arguments, cwd=scratch, capture_output=True, text=True, timeout=_FETCH_S, check=False
                )
            except subprocess.TimeoutExpired:
                unavailable(f"Maven did not fetch the jars of {name} in {_FETCH_S} s")
            if done.returncode != 0:
                unavailable(f"Maven cannot fetch the jars of {name}: {(done.stdout + done.stderr).strip()[-1500:]}")
            (Path(scratch) / "jars").rename(folder)
    return folder


_given: set[int] = set()
_PORTS: Final = range(20_000, 32_768)
"""Below what Linux and macOS give to connections that go out, so none of them has a server's port while it restarts."""


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on right now, another one each time."""
    while True:
        # Not from ``random``, which each test finds as the run's seed has it: two runs of one seed would draw the same.
        port = secrets.choice(_PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port

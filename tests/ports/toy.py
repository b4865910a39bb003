"""Installs the toy driver as pip would, for tests that use it by nothing but a URL."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TOY = Path(__file__).parent / "toy_driver"
_ENTRY_POINTS = """\
[graphweft.buses]
sqlite = toy_driver.driver:DRIVER

[graphweft.transports]
sqlite = toy_driver.transport:SqliteTransport
"""


def install(site: Path) -> None:
    """Make ``site`` a folder for ``PYTHONPATH`` that holds the driver and the metadata of its distribution."""
    metadata = site / "toy_driver-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-driver\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS)
    (site / TOY.name).symlink_to(TOY, target_is_directory=True)


@pytest.fixture
def sqlite_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bus, whose driver is installed for the test. The file has a folder of its own."""
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)  # for processes of the test
    (tmp_path / "bus").mkdir()
    return f"sqlite://{tmp_path}/bus/bus.sqlite"


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite://"))


def execute[T](url: str, work: Callable[[sqlite3.Connection], T]) -> T:
    """Do ``work`` on the file behind the driver's back."""
    with contextlib.closing(sqlite3.connect(path_of(url), timeout=5)) as connection, connection:
        return work(connection)


def put_request(url: str, body: bytes) -> None:
    from toy_driver.file import SCHEMA  # type: ignore[import-not-found]

    at = time.time()

    def put(db: sqlite3.Connection) -> None:
        db.executescript(SCHEMA)  # before any client
        db.execute("INSERT INTO requests (body, at, lost) VALUES (?, ?, 0)", (body, at))

    execute(url, put)


def stop(url: str) -> None:
    """Take the file away; whoever uses it finds nothing."""
    folder = path_of(url).parent
    folder.rename(folder.with_name("gone"))


def start(url: str) -> None:
    folder = path_of(url).parent
    folder.with_name("gone").rename(folder)

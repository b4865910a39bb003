"""Reads a file that others may have named: a device or a pipe would never end."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 4_000_000
"""Limit of a file of rules, of tests, or of their events."""


def file_bytes(path: Path) -> bytes:
    """Return what a regular file holds, ``MAX_BYTES`` and one more at most; raise ``OSError`` or ``ValueError``."""
    mode = path.stat().st_mode  # before it is opened: that may wait, or do something
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # that of a folder has an error of its own
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)

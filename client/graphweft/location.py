"""Where the embedded server of a data folder listens.

The address follows from the folder alone, so every command finds a running ``graphweft up`` without a registry, and a
restarted one comes back under the same address.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import quote

__all__ = ("DEFAULT_DATA", "embedded_socket", "embedded_url")

DEFAULT_DATA: Final = Path(".graphweft")
"""Data folder of ``graphweft up`` when neither ``--data`` nor ``GRAPHWEFT_DATA`` names one."""

_MAX_SOCKET_PATH: Final = 100
"""Bytes. The kernel takes 107 on Linux and 103 on macOS (``sockaddr_un.sun_path``)."""


def embedded_socket(data: Path) -> Path:
    """Return the unix socket of the server whose files are in ``data``; short even where the folder's name is long."""
    inside = data.expanduser().resolve() / "redis.sock"
    if len(str(inside).encode()) <= _MAX_SOCKET_PATH:
        return inside
    digest = hashlib.sha256(str(inside).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"graphweft-{digest}.sock"


def embedded_url(data: Path) -> str:
    """Return the Redis URL of the server whose files are in ``data``."""
    return f"unix://{quote(str(embedded_socket(data)))}"

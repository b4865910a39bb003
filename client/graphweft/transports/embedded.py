"""The address of the embedded server of a data folder.

The address derives from the folder alone, so every command finds a running ``graphweft up``, and a restarted server
keeps its address.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import quote

DEFAULT_DATA: Final = Path(".graphweft")
"""The default data folder of ``graphweft up``."""

_MAX_SOCKET_PATH: Final = 100
"""Bytes. The kernel takes 107 on Linux and 103 on macOS (``sockaddr_un.sun_path``)."""


def embedded_socket(data: Path) -> Path:
    """Return the unix socket of the server with its files in ``data``. Long folder names get a short path."""
    inside = data.expanduser().resolve() / "redis.sock"
    if len(str(inside).encode()) <= _MAX_SOCKET_PATH:
        return inside
    digest = hashlib.sha256(str(inside).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"graphweft-{digest}.sock"


def embedded_url(data: Path) -> str:
    """Return the bus URL of the server with its files in ``data``."""
    return f"unix://{quote(str(embedded_socket(data)))}"

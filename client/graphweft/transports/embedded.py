"""The address of the embedded server of a data folder.

The address derives from the folder alone, so every command finds a running ``graphweft up``, and a restarted server
keeps its address.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import quote

from graphweft_contracts import InvalidSettings
from graphweft_contracts.utf8 import utf8_fault

DEFAULT_DATA: Final = Path(".graphweft")
"""The default data folder of ``graphweft up``."""

_MAX_SOCKET_PATH: Final = 100
"""Bytes. The kernel takes 107 on Linux and 103 on macOS (``sockaddr_un.sun_path``)."""


def embedded_socket(data: Path) -> Path:
    """Return the unix socket of the server with its files in ``data``.

    Where the folder's name is too long, the socket is in ``runtime_folder``. Raises ``InvalidSettings`` if that is not
    ours, or if the name is not UTF-8.
    """
    inside = data.expanduser().resolve() / "redis.sock"
    if fault := utf8_fault(str(inside), "give another folder"):
        raise InvalidSettings(f"the name of the data folder {str(inside.parent)!r} is {fault}")
    name = str(inside).encode()
    if len(name) <= _MAX_SOCKET_PATH:
        return inside
    digest = hashlib.sha256(name).hexdigest()[:16]
    return runtime_folder() / f"{digest}.sock"


def runtime_folder(*, make: bool = False) -> Path:
    """Return the folder for sockets whose data folder has too long a path; with ``make`` it is made.

    Raises ``InvalidSettings`` if it is a link or another user's, or others may write into it: a socket that
    another user puts there would get all events.
    """
    folder = Path(tempfile.gettempdir()) / f"graphweft-{os.geteuid()}"
    if make:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    with contextlib.suppress(FileNotFoundError):
        check_own(folder)
    return folder


def check_own(folder: Path) -> None:
    """Raise ``InvalidSettings`` unless a folder is ours alone. Raises ``FileNotFoundError`` without it."""
    found = folder.lstat()
    fault = ""
    if not stat.S_ISDIR(found.st_mode):
        fault = "it is a link" if stat.S_ISLNK(found.st_mode) else "it is not a folder"
    elif found.st_uid != os.geteuid():
        fault = f"it belongs to the user with the number {found.st_uid}"
    elif found.st_mode & 0o077:
        fault = "other users may use it"
    if fault:
        raise InvalidSettings(
            f"the folder {str(folder)!r} holds the socket of the embedded server, and {fault}: remove it, or set its "
            "mode to 700, or give a data folder with a shorter name"
        )


def own_embedded_url(data: Path) -> str:
    """Return the bus URL for a program that starts in a folder of which others may have written the files.

    Raises ``InvalidSettings`` for a relative folder, because it could be theirs, and for a folder of another user. An
    absolute path may lead to one by a link, and its owner could run the server that receives all events.
    """
    data = data.expanduser()
    if not data.is_absolute():
        raise InvalidSettings(
            f"invalid --data {str(data)!r}: expected an absolute path, the same for each folder you work in"
        )
    for folder in (data, embedded_socket(data).parent):
        with contextlib.suppress(FileNotFoundError):
            if (owner := folder.stat().st_uid) not in (0, os.geteuid()):
                raise InvalidSettings(
                    f"the data folder {str(data)!r} belongs to the user with the number {owner}, who is neither you "
                    "nor root: nothing was sent to its server"
                )
    return embedded_url(data)


def embedded_url(data: Path) -> str:
    """Return the bus URL of the server with its files in ``data``."""
    return f"unix://{quote(str(embedded_socket(data)))}"

"""The files of the page. They are read once, from the package, so a path of a request never reaches a file system."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_INDEX: Final = "index.html"
_FOLDER: Final = "web"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One file of the page."""

    content: bytes
    media_type: str
    etag: str


class Assets:
    """All files of the page, by their path."""

    def __init__(self) -> None:
        self._all: dict[str, Asset] = {}
        self._read(resources.files(__package__ or "") / _FOLDER, "")

    def get(self, path: str) -> Asset | None:
        """Return the file of a path without the slash at its start; the empty path is the page itself."""
        return self._all.get(path or _INDEX)

    def paths(self) -> list[str]:
        """Return the paths of all files."""
        return sorted(self._all)

    def _read(self, folder: Traversable, prefix: str) -> None:
        for each in folder.iterdir():
            name = f"{prefix}{each.name}"
            if each.is_dir():
                self._read(each, f"{name}/")
            elif (kind := _TYPES.get(each.name.rpartition(".")[2])) is not None:
                content = each.read_bytes()
                etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                self._all[name] = Asset(content=content, media_type=kind, etag=etag)

"""Named blobs in a folder or an object store, by fsspec.

A blob is written whole or not at all: a folder gets it by renaming a file that is on disk, object stores do so by
themselves.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from graphweft_contracts import BusUnavailable, InvalidSettings
from graphweft_workers.ports.blobs import BlobStore

_PARTIAL: Final = ".partial"
"""Ending of a file that is being written; a process that was killed leaves it."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_RIGHT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_WINDOWS: Final = re.compile(r"[A-Za-z]:[\\/](?!/)")
_INSTALL: Final = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


class ArchiveUnavailable(BusUnavailable):
    """The archive does not answer. What was written before is there."""


class ArchiveReadOnly(ArchiveUnavailable):
    """The archive refuses a write, because it is one to read only or this process has no right to."""


class FileSystemBlobs:
    """``BlobStore`` below one URL."""

    def __init__(self, filesystem: Any, root: str, *, local: bool) -> None:
        """``root`` is a path of ``filesystem``; with ``local`` it is a folder of this machine."""
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._local = local

    def below(self, folder: str) -> FileSystemBlobs:
        """See ``BlobStore.below``."""
        return FileSystemBlobs(self._filesystem, f"{self._root}/{folder}", local=self._local)

    async def put(self, name: str, data: bytes) -> None:
        """See ``BlobStore.put``."""
        await self._run(self._put, name, data)

    async def get(self, name: str) -> bytes | None:
        """See ``BlobStore.get``."""
        found: bytes | None = await self._run(self._get, name)
        return found

    async def names(self, prefix: str) -> list[str]:
        """See ``BlobStore.names``."""
        found: list[str] = await self._run(self._list, prefix)
        return found

    async def delete(self, names: Sequence[str]) -> None:
        """See ``BlobStore.delete``."""
        await self._run(self._delete, names)

    async def _run(self, work: Callable[..., Any], *given: Any) -> Any:
        try:
            return await asyncio.to_thread(work, *given)
        except Exception as error:
            if isinstance(error, ArchiveUnavailable):
                raise
            # Each file system has errors of its own.
            refused = isinstance(error, OSError) and error.errno in _NO_RIGHT and work != self._get
            raise (ArchiveReadOnly if refused else ArchiveUnavailable)(
                f"the archive {self._place} does not work: {type(error).__name__}: {error}. {_next(error)}"
            ) from error

    @property
    def _place(self) -> str:
        return self._root if self._local else f"{_protocols(self._filesystem)[0]}://{self._root}"

    def _put(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        if not self._local:
            self._filesystem.pipe_file(path, data)
            return
        folder = Path(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{uuid4().hex}{_PARTIAL}"
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        known = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(known)
        finally:
            os.close(known)

    def _get(self, name: str) -> bytes | None:
        try:
            data: bytes = self._filesystem.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return data

    def _list(self, prefix: str) -> list[str]:
        self._filesystem.invalidate_cache()
        try:
            found = self._filesystem.find(f"{self._root}/{prefix.rstrip('/')}")
        except FileNotFoundError:
            return []
        start = len(self._filesystem._strip_protocol(self._root)) + 1
        return sorted(path[start:] for path in map(str, found) if not path.endswith(_PARTIAL))

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._filesystem.rm_file(f"{self._root}/{name}")


def open_blobs(url: str, *, existing: bool = False) -> BlobStore:
    """Return the store at a folder's path or a URL such as ``s3://bucket/prefix``. Nothing is read or written yet.

    Raises ``InvalidSettings`` for a URL of an unknown kind, or without the package that it needs, with ``existing`` for
    a folder that does not exist, and ``ArchiveUnavailable`` for a kind that connects at once, such as ``ftp``, if its
    server does not answer.
    """
    from fsspec import core  # takes 0.1 s, and most commands need no archive

    library: Any = core
    if os.name == "posix" and _WINDOWS.match(url):  # it would be the name of a folder in the working folder
        raise InvalidSettings(f"GRAPHWEFT_ARCHIVE_URL: {url!r} is a path of Windows: write one of this system")
    scheme = url.partition("://")[0] if "://" in url else "file"
    try:
        filesystem, root = library.url_to_fs(url)
    except ImportError as error:
        package = _INSTALL.get(scheme, f"the package of fsspec for {scheme}")
        raise InvalidSettings(f"GRAPHWEFT_ARCHIVE_URL: {scheme}:// needs a package: pip install {package}") from error
    except ValueError as error:
        raise InvalidSettings(
            f"GRAPHWEFT_ARCHIVE_URL: unknown kind of store {scheme!r}: expected a folder, or a URL such as "
            "s3://bucket/prefix"
        ) from error
    except Exception as error:  # each file system has errors of its own
        raise ArchiveUnavailable(
            f"the {scheme} archive does not work: {type(error).__name__}: {error}. {_next(error)}"
        ) from error
    local = "file" in _protocols(filesystem)
    if existing and local and not Path(root).is_dir():
        raise InvalidSettings(
            f"there is no archive: the folder {str(root)!r} does not exist. Check GRAPHWEFT_ARCHIVE_URL; a new archive "
            "is made by `graphweft run archive` or `graphweft archive now`"
        )
    return FileSystemBlobs(filesystem, root, local=local)


def _next(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number in _NO_ROOM:
        return "Free some space there"
    if number in _NO_RIGHT:
        return "Let the user of this process read and write there"
    return "Check GRAPHWEFT_ARCHIVE_URL, and that this machine reaches the store and may write there"


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol: str | tuple[str, ...] = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else protocol

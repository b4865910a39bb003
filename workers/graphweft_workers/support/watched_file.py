"""A file of the operator that takes effect again when it changes, without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from graphweft_contracts import InvalidSettings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING

logger = get_logger("graphweft.settings")

type _Stamp = tuple[int, int, int]


class WatchedFile[Content]:
    """The content of a file, read again when the file changes. A faulty file leaves the earlier content in use."""

    def __init__(self, path: Path, read: Callable[[Path], Content], *, gone: Content | None = None) -> None:
        """Read the file. Raises what ``read`` raises, which is ``InvalidSettings`` for a faulty file.

        ``gone`` is in use while the file is empty or is not there any more; None: such a file is a faulty one.
        """
        self._gone = gone
        self._path = path
        self._read = read
        self._stamp = _stamp(path)
        self.current = read(path)
        """The content in use."""
        self.is_gone = False
        """Whether the file is empty or not there any more, and the content for that is in use."""
        self.problem: str | None = None
        """Why the file as it is now is not in use; None if it is."""

    def refresh(self) -> bool:
        """Read the file if it changed, and return whether it did. Never raises on account of the file."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self.is_gone = self._gone is not None and (stamp is None or not stamp[1])
        if self._gone is not None and self.is_gone:
            self.current = self._gone
            self.problem = f"{self._path} is empty or is not there any more"
            logger.error("file_gone", file=str(self._path), next="nothing of it is in use until it is there again")
            return True
        try:
            self.current = self._read(self._path)
        except InvalidSettings as error:
            self.problem = str(error)
            logger.error(
                "file_refused", file=str(self._path), error=str(error), next="its earlier content stays in use"
            )
        else:
            self.problem = None
            logger.info("file_in_use", file=str(self._path))
        return True

    async def follow(self) -> None:
        """Refresh once a second until cancelled."""
        while True:
            await asyncio.sleep(TIMING.file_s)
            # A large file takes time to parse.
            await asyncio.to_thread(self.refresh)


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)

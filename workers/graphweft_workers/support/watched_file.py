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
        self._stamp = self._seen = _stamp(path)
        self.current = read(path)
        """The content in use."""
        self.is_gone = False
        """Whether the file is empty or not there any more, and the content for that is in use."""
        self.problem: str | None = None
        """Why the file as it is now is not in use; None if it is."""

    def refresh(self) -> bool:
        """Read the file if it has changed, but not since the last call; return whether it did.

        So a file that is being written, and is empty or cut off for a moment, is read when it is whole. Never raises on
        account of the file.
        """
        stamp, before = _stamp(self._path), self._seen
        self._seen = stamp
        if stamp == self._stamp or stamp != before:
            return False
        if self._gone is not None and (stamp is None or not stamp[1]):
            self._stamp, self.is_gone, self.current = stamp, True, self._gone
            self.problem = f"{self._path} is empty or is not there any more"
            logger.error("file_gone", file=str(self._path), next="nothing of it is in use until it is there again")
            return True
        content, problem = self.current, None
        try:
            content = self._read(self._path)
        except InvalidSettings as error:
            problem = str(error)
        if _stamp(self._path) != stamp:  # it has changed while it was read
            return False
        self._stamp, self.is_gone, self.current, self.problem = stamp, False, content, problem
        if problem is None:
            logger.info("file_in_use", file=str(self._path))
        else:
            logger.error("file_refused", file=str(self._path), error=problem, next="its earlier content stays in use")
        return True

    async def follow(self) -> None:
        """Refresh twice a second until cancelled."""
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

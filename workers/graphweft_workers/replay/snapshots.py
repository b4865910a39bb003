"""Snapshots of replayed graphs in the archive: a later replay begins at the newest one that has the same past."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from graphweft_workers.archive.erasures import Erasures, erasures_in
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.replay.snapshot_file import InvalidSnapshot, Snapshot, SnapshotWriter, read_snapshot

FOLDER: Final = "snapshots"
_CODE: Final = 12
_NAME: Final = re.compile(r"([0-9]+)@([0-9]+(?:-[0-9]+)?)\.([0-9]+)\.([0-9a-f]{12})\.([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotName:
    """What the name of a snapshot says."""

    name: str
    partition: int
    offset: str
    events: int
    code: str
    """The beginning of ``Snapshots.code``."""
    key: str


class Snapshots:
    """The snapshots of all apps that one version and one kind of graph server makes."""

    def __init__(self, blobs: BlobStore, code: str, *, every: int, warn: Callable[[str], None]) -> None:
        """``code`` stands for the version, the built-in mutations and the kind of server, in hexadecimal digits.

        A snapshot is due after ``every`` events. ``warn`` gets a sentence about each file that cannot be used.
        """
        self._blobs = blobs
        self.code = code
        self.every = every
        self.warn = warn
        self._erasures: dict[str, Erasures] = {}
        """By app: what was erased when a replay began."""

    async def stored(self, app_id: str) -> list[SnapshotName]:
        """Return the snapshots of an app that this code made. Raises ``ArchiveUnavailable``.

        Call it before a replay that takes snapshots.
        """
        self._erasures[app_id] = await erasures_in(self._blobs, app_id)
        found: list[SnapshotName] = []
        for name in await self._blobs.names(_folder(app_id)):
            parts = _NAME.fullmatch(name.rpartition("/")[2])
            if parts is not None and parts[4] == self.code[:_CODE]:
                found.append(
                    SnapshotName(
                        name=name,
                        partition=int(parts[1]),
                        offset=parts[2],
                        events=int(parts[3]),
                        code=parts[4],
                        key=parts[5],
                    )
                )
        return found

    async def get(self, app_id: str, stored: SnapshotName) -> tuple[Snapshot, Iterator[bytes]] | None:
        """Return a snapshot and the lines of its graph; None, after a warning, if the file is not what it should be."""
        data = await self._blobs.get(stored.name)
        if data is None:
            return None
        try:
            snapshot, lines = read_snapshot(data)
            if (snapshot.app_id, snapshot.key) != (app_id, stored.key):
                raise InvalidSnapshot("it is one of another app or place")
        except InvalidSnapshot as error:
            self.warn(f"the snapshot {stored.name} is ignored: {error}")
            return None
        return snapshot, lines

    async def put(self, writer: SnapshotWriter, snapshot: Snapshot, partition: int, offset: str) -> str:
        """Store a snapshot and return its name. Raises ``ArchiveUnavailable``.

        If something was erased of the app since the replay began, the snapshot may hold it and is deleted again.
        """
        name = f"{partition}@{offset}.{snapshot.events}.{self.code[:_CODE]}.{snapshot.key}"
        name = _folder(snapshot.app_id) + name
        await self._blobs.put(name, writer.finish(snapshot))
        before, now = self._erasures.get(snapshot.app_id), await erasures_in(self._blobs, snapshot.app_id)
        if now.open or before != now:
            await self._blobs.delete([name])
            self.warn(f"no snapshot of {snapshot.app_id!r} is kept: something was erased of it meanwhile")
        return name

    async def delete(self, stored: list[SnapshotName]) -> None:
        """Delete snapshots. Raises ``ArchiveUnavailable``."""
        await self._blobs.delete([each.name for each in stored])


def _folder(app_id: str) -> str:
    return f"{FOLDER}/{app_id}/"

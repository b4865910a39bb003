"""A bus that is only an archive: for a replay without the bus. It refuses to write."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

from graphweft_contracts import BusUnavailable, DeadLetter, Layout
from graphweft_contracts.rules_log import Activation, StoredRules
from graphweft_workers.archive.blob_records import BlobRecords
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import LettersOfApp, counted_by_app, first_letters
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.ports.offsets import OffsetForm
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.ports.records import Records


def archive_bus(blobs: BlobStore) -> Bus:
    """Return a bus of which only the archive is left."""
    reader, state = ArchiveReader(blobs), ArchivedState(blobs)
    return Bus(
        log=ArchiveLog(reader),
        partitions=_Partitions(reader, state),
        leases=_Leases(),
        dead_letters=_Letters(state),
        rules=_Rules(state),
        purges=_Purges(),
        usage=BlobRecords(blobs),
        offsets=OffsetForm.EITHER,
        close=_nothing,
        gives_partitions=True,
        archive=blobs,
    )


async def _refuse(*_: object, **__: object) -> NoReturn:
    raise BusUnavailable("this command reads the archive without a bus, so it cannot write to one")


async def _nothing() -> None:
    """There is no connection to close."""


class ArchiveLog:
    """``EventLog`` of an archive."""

    def __init__(self, reader: ArchiveReader) -> None:
        self._reader = reader

    async def read(self, partition: int, after: CommittedPosition, *, limit: int, wait_s: float | None = None) -> Batch:
        """See ``EventLog.read``."""
        entries, position = await self._reader.run_after(partition, after.offset, limit=limit)
        if position is not None or not entries:
            return Batch(entries=entries)
        number = await self._reader.number_of(partition, entries[0].offset)
        return Batch(entries=entries, lost=max(1, (number or 0) - after.count - 1))

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        """See ``EventLog.entries``."""
        return await self._reader.entries(partition, offsets)

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.after``. It skips what is missing."""
        found: list[Entry] = []
        while len(found) < limit:
            at = found[-1].offset if found else offset
            page = await self._reader.after(partition, at, limit=limit - len(found))
            if not page:
                break
            found += page
        return found

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.before``."""
        return await self._reader.before(partition, offset, limit=limit) if offset else []


class _Partitions:
    def __init__(self, reader: ArchiveReader, state: ArchivedState) -> None:
        self._reader = reader
        self._state = state

    async def count(self, *, fresh: bool = False) -> int:
        return max((await self.layout()).count, *(number + 1 for number in await self._reader.partitions()), 0)

    async def layout(self) -> Layout:
        return await self._state.layout()

    async def committed(self, partition: int) -> CommittedPosition:
        """Return the end of the archive."""
        return await self._reader.end(partition)

    async def status(self, *, group: str = "") -> Sequence[PartitionStatus]:
        """Return the end of each partition; everything counts as read, and as trimmed from the bus."""
        ends = [await self._reader.end(number) for number in range(await self.count())]
        return [
            PartitionStatus(
                id=number, position=end.offset, end=end.offset, lag=0, owner=None, written=end.count, trimmed=end.count
            )
            for number, end in enumerate(ends)
        ]

    async def positions(self, partition: int) -> Mapping[str, CommittedPosition]:
        return {}

    store_order = give_partition = commit = trim = _refuse


class _Leases:
    claim = release = _refuse

    def is_revoked(self, partition: int) -> bool:
        return False


class _Letters:
    """The newest copy of the dead letters."""

    def __init__(self, state: ArchivedState) -> None:
        self._state = state

    async def read(
        self, *, limit: int, app_id: str | None = None, size: int | None = None, whole: bool = True,
        ids: Collection[str] | None = None,
    ) -> Sequence[DeadLetter]:  # fmt: skip
        return first_letters(await self._state.dead_letters(), limit, app_id, size, whole=whole, ids=ids)

    async def by_app(self) -> Mapping[str, LettersOfApp]:
        return counted_by_app(await self._state.dead_letters())

    put = extend = requeue = _refuse


class _Rules:
    def __init__(self, state: ArchivedState) -> None:
        self._state = state

    async def stored(self, digest: str) -> StoredRules | None:
        try:
            return await self._state.stored_rules(digest)
        except ValueError:
            return None

    async def activations(self, *, after: int = 0) -> Sequence[Activation]:
        return await self._state.activations(after=after)

    store = activate = _refuse


class _Purges:
    """There are none."""

    async def put(self, key: str, record: bytes | None) -> None:
        """Do nothing: without a bus there is nobody to tell, and the next bus says nothing of graphs from before it."""

    async def after(self, mark: int | None) -> Records:
        return Records(found={}, mark=0)

"""Copies the log into the archive: each entry once, in order, with retries and control entries.

The archive itself says where to go on, so a killed archiver loses and doubles nothing. Leases save work; two archivers
on one partition write the same entries twice, and readers take each once. The position on the bus is for tools.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import Final

from graphweft_contracts import BusUnavailable, Transient, channels, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.archive import segments as format_
from graphweft_workers.archive.blobs import ArchiveUnavailable
from graphweft_workers.archive.continuation import breaks
from graphweft_workers.archive.erasure import erase_again
from graphweft_workers.archive.merge import merge_small
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.archive.trim import trim
from graphweft_workers.engine.log.leases import LEASE_S, Lease, LeaseHolder
from graphweft_workers.engine.usage.job_account import JobAccount, WaitKey
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.support.backoff import backoff_s
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.tasks import running_beside
from graphweft_workers.support.timing import TIMING, Timing

logger = get_logger("graphweft.archive")

MOST_ENTRIES: Final = 10_000
"""Entries of one segment; a merged one may hold more."""
_MOST_BYTES: Final = 8 * 1024**2
_READ: Final = 1_000
_LETTERS_REST: Final = 20.0
"""Copying dead letters takes at most a twentieth of the time."""


class Archiver:
    """Leases as many partitions as no other archiver holds, and copies them until ``stop``."""

    def __init__(
        self,
        bus: Bus,
        blobs: BlobStore,
        *,
        name: str,
        every_s: float,
        trims: bool = False,
        lease_s: float = LEASE_S,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = TIMING,
    ) -> None:
        """``bus`` is open for the archive's group, and is the bus alone. The archiver closes nothing.

        A new entry is archived within about ``every_s``. With ``trims``, what is archived and applied leaves the bus,
        see ``trim_place``.
        """
        self._clock = clock
        self._timing = timing.archive
        self._shown_s = timing.jobs.shown_s
        self._bus = bus
        self._reader = ArchiveReader(blobs)
        self._state = ArchivedState(blobs, clock=clock)
        self._every_s = every_s
        self._trims = trims
        self._leases = LeaseHolder(bus, name=name, lease_s=lease_s, logger=logger, clock=clock, timing=timing.leases)
        self._account = JobAccount(
            bus.usage, channels.ARCHIVE_GROUP, name=name, logger=logger, clock=clock, timing=timing.jobs
        )
        self._trimmed: set[int] = set()
        """Partitions of which nothing is left to trim."""
        self.archived = 0
        """Entries that were archived."""

    @property
    def interrupted(self) -> Collection[int]:
        """See ``LeaseHolder.interrupted``."""
        return self._leases.interrupted

    def stop(self) -> None:
        """Make ``run`` return after the entries in hand are archived."""
        self._leases.stop()

    def reached(self) -> Mapping[str, bool]:
        """Tell whether the archive takes what it is given; see ``Reaching``."""
        return {"archive": self._account.waiting_s < self._shown_s}

    async def run(self) -> None:
        """Work until ``stop``; while the bus or the archive is unavailable, wait."""
        async with running_beside(self._copy_letters(), name="graphweft-archive-letters"):
            ended = await self._leases.run(self._work)
        if ended:
            with contextlib.suppress(Transient):
                await self._state.save_letters(self._bus)
            logger.info("archiver_stopped", worker=self._leases.name, entries=self.archived)

    async def _copy_letters(self) -> None:
        while True:
            began = self._clock.monotonic()
            try:
                await self._state.save_letters(self._bus)
            except Transient as error:
                logger.warning("dead_letters_not_archived", error=str(error))
            took = self._clock.monotonic() - began
            await self._clock.sleep(max(self._timing.letters_s, took * _LETTERS_REST))

    async def _work(self, lease: Lease) -> None:
        """Copy a partition. While the archive does not work it waits, and its account says so."""
        key: WaitKey = (lease.number, "events")
        attempt = 0
        await self._account.begin()
        try:
            while True:
                lease.progressed = False
                try:
                    await self._copy(lease, key)
                    return
                except ArchiveUnavailable as error:
                    attempt = 1 if lease.progressed else attempt + 1
                    wait_s = backoff_s(error.retry_after_s, attempt)
                    await self._account.waits(key, error, wait_s)
                    if await lease.finish(self._clock.sleep(wait_s)) is None:
                        return
        finally:
            await self._account.leaves(key)

    async def _copy(self, lease: Lease, key: WaitKey) -> None:
        number = lease.number
        await self._bus.partitions.committed(number)
        copy = PartitionCopy(self._bus, self._reader, self._state, number, clock=self._clock)
        await copy.begin()
        while await lease.goes_on():
            quiet = not copy.pending and (not self._trims or number in self._trimmed)
            await copy.add(await lease.read(copy.position, limit=_READ, quiet=quiet))
            if copy.is_full or (copy.pending and self._clock.monotonic() - copy.since >= self._every_s):
                await lease.finish(self._write(copy))
                lease.progressed = True
            if not copy.pending:
                await self._account.goes_on(key)
            if self._trims and not copy.pending and number not in self._trimmed:
                await self._trim(number)
        await self._write(copy)

    async def _write(self, copy: PartitionCopy) -> None:
        written = await copy.write()
        if written:
            self._trimmed.discard(copy.number)
            self.archived += written
            await copy.commit()
            await merge_small(self._reader, copy.number)

    async def _trim(self, number: int) -> None:
        place = await trim(self._bus, self._reader, number)
        if place.offset == (await self._reader.end(number)).offset:
            self._trimmed.add(number)


class PartitionCopy:
    """Copies one partition: entries are collected, then written as a segment."""

    def __init__(
        self, bus: Bus, reader: ArchiveReader, state: ArchivedState, number: int, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """``bus`` is the bus alone."""
        self._bus = bus
        self._clock = clock
        self._reader = reader
        self._state = state
        self.number = number
        self.position = CommittedPosition()
        """Up to where entries are collected or written."""
        self.pending: list[Entry] = []
        self.since = 0.0
        """When the first pending entry was collected, on the monotonic clock."""
        self.lost = 0
        """Entries that were trimmed before they were archived."""
        self._size = 0
        self._first = 1

    async def begin(self) -> None:
        """Go on where the archive ends. Raises ``ArchiveUnavailable`` if that is the archive of another log."""
        await self._state.save_rules(self._bus)
        await self._reader.refresh(self.number)
        self.position = await self._reader.end(self.number)
        await self._check_same_log()
        self.pending, self._size, self._first = [], 0, self.position.count + 1

    @property
    def is_full(self) -> bool:
        """Whether the pending entries fill a segment."""
        return len(self.pending) >= MOST_ENTRIES or self._size >= _MOST_BYTES

    async def add(self, batch: Batch) -> None:
        """Collect what was read after ``position``."""
        before = self.position.count
        if batch.lost:
            await self.write()
            self._first = before + batch.lost + 1
            self.lost += batch.lost
            logger.error(
                "entries_not_archived", partition=self.number, entries=batch.lost, after=self.position.offset,
                message="the bus trimmed them before they were archived: a rebuild from the start is not possible",
            )  # fmt: skip
        if batch.entries:
            self.since = self.since if self.pending else self._clock.monotonic()
            self.pending += batch.entries
            self._size += sum(len(value) for entry in batch.entries for value in entry.fields.values())
            count = before + batch.lost + len(batch.entries)
            self.position = CommittedPosition(offset=self.pending[-1].offset, count=count)
        elif batch.lost:
            self.position = CommittedPosition(offset=self.position.offset, count=before + batch.lost)
        elif batch.stepped and not self.pending:  # behind what is pending, the next commit passes it too
            await self._bus.partitions.commit(self.number, self.position)

    async def write(self) -> int:
        """Write the pending entries; return how many."""
        entries = self.pending
        if not entries:
            return 0
        if any(wire.ACTIVATION in entry.fields for entry in entries):
            await self._state.save_rules(self._bus)
        entries = await self._new_ones(entries)
        if not entries:
            self._size = 0
            return 0
        segment, data = await asyncio.to_thread(format_.encode, self.number, self._first, entries)
        await self._reader.blobs.put(segment.name, data)
        self._reader.add(segment, entries)
        await erase_again(self._reader, segment, entries)
        self.pending, self._size, self._first = [], 0, segment.last + 1
        return len(entries)

    async def _new_ones(self, entries: list[Entry]) -> list[Entry]:
        """Return the pending entries that nobody else has archived meanwhile, and may have erased.

        Raises ``ArchiveUnavailable`` if these are not the same entries.
        """
        await self._reader.refresh(self.number)
        known = (await self._reader.end(self.number)).count - self._first + 1
        if known <= 0:
            return entries
        await self._check_same_log()  # another log, such as a copy of this bus, may have written these numbers
        self._first += min(known, len(entries))
        self.pending = entries[known:]
        return self.pending

    async def commit(self) -> None:
        """Tell the bus how far the archive is, for tools; another archiver may hold the partition."""
        with contextlib.suppress(BusUnavailable):
            await self._bus.partitions.commit(self.number, self.position)

    async def _check_same_log(self) -> None:
        """Raise if the bus does not continue the archive: a mixture could not be replayed."""
        number = self.number
        if broken := (await breaks(self._bus, self._reader, [number])).get(number):
            raise ArchiveUnavailable(
                f"{broken}. If it is another log, give this bus an archive of its own (GRAPHWEFT_ARCHIVE_URL)",
                retry_after_s=5.0,
            )


async def archive_now(bus: Bus, blobs: BlobStore) -> tuple[int, int]:
    """Archive all entries that are on the bus now, and the dead letters.

    Return the number of new entries, and of those that were trimmed before they could be archived.

    ``bus`` is the bus alone. Other archivers may run. Raises ``BusUnavailable`` and ``ArchiveUnavailable``.
    """
    reader, state, added, lost = ArchiveReader(blobs), ArchivedState(blobs), 0, 0
    ends = {each.id: each.end for each in await bus.partitions.status()}
    for number, end in ends.items():
        copy = PartitionCopy(bus, reader, state, number)
        await copy.begin()
        while is_after(end, copy.position.offset):
            batch = await bus.log.read(number, copy.position, limit=_READ)
            if not batch.entries and not batch.lost:
                break
            await copy.add(batch)
            if copy.is_full:
                added += await copy.write()
        added, lost = added + await copy.write(), lost + copy.lost
    await state.save_letters(bus)
    return added, lost

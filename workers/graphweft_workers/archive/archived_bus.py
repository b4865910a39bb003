"""A bus whose trimmed entries come from the archive, and a bus that is only an archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from graphweft_contracts import BusUnavailable, DeadLetter, Layout, Order
from graphweft_contracts.plurals import counted
from graphweft_contracts.rules_log import Activation, StoredRules
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.segments import offset_order
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import first_letters
from graphweft_workers.ports.event_log import Batch, Committed, Entry, PartitionStatus
from graphweft_workers.ports.leases import LeaseKeeper
from graphweft_workers.ports.pages import last_page
from graphweft_workers.ports.purges import Purge, Purges
from graphweft_workers.ports.usage import LettersOfApp


class ArchivedBus:
    """``Bus`` that reads from the archive what the bus no longer holds. Everything else is the bus's.

    Entries that were erased come from the archive even while the bus still holds them, except for ``read`` and for
    ``before`` of entries that the bus holds.
    """

    def __init__(self, bus: Bus, blobs: BlobStore) -> None:
        """It closes ``bus``."""
        self._bus = bus
        self.archive: BlobStore | None = blobs
        self.reader = ArchiveReader(blobs)
        self._trimmed: dict[int, int] = {}
        """By partition: entries that the bus lacked when the archive was last looked at."""

    # The log

    async def partitions(self, *, fresh: bool = False) -> int:
        """See ``EventLog.partitions``."""
        return await self._bus.partitions(fresh=fresh)

    async def layout(self) -> Layout:
        """See ``EventLog.layout``."""
        return await self._bus.layout()

    async def store_order(self, app_id: str, order: Order) -> None:
        """See ``EventLog.store_order``."""
        await self._bus.store_order(app_id, order)

    async def committed(self, partition: int) -> Committed:
        """See ``EventLog.committed``."""
        return await self._bus.committed(partition)

    async def read(self, partition: int, after: Committed, *, limit: int, wait_s: float) -> Batch:
        """See ``EventLog.read``: nothing is lost that the archive holds."""
        batch = await self._bus.read(partition, after, limit=limit, wait_s=wait_s)
        return await self._instead_of_lost(partition, after, batch, limit)

    async def reread(self, partition: int, after: Committed, *, limit: int) -> Batch:
        """See ``EventLog.reread``: nothing is lost that the archive holds."""
        batch = await self._bus.reread(partition, after, limit=limit)
        return await self._instead_of_lost(partition, after, batch, limit)

    async def _instead_of_lost(self, partition: int, after: Committed, batch: Batch, limit: int) -> Batch:
        if not batch.lost:
            return batch
        number = await self.reader.number_of(partition, after.offset)
        if number is None:
            await self.reader.refresh(partition)
            number = await self.reader.number_of(partition, after.offset)
        if number is None:
            return batch
        pieces = await self.reader.pieces(partition)
        if not any(piece.first <= number + 1 <= piece.last for piece in pieces):
            await self.reader.refresh(partition)
            pieces = await self.reader.pieces(partition)
        holding = next((piece for piece in pieces if piece.first <= number + 1 <= piece.last), None)
        if holding is None:
            return batch
        entries = await self.reader.after(partition, after.offset, limit=min(limit, holding.last - number))
        return Batch(entries=entries)

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        """See ``EventLog.entries``."""
        found = {entry.offset: entry for entry in await self._bus.entries(partition, offsets)}
        missing = [offset for offset in offsets if offset not in found]
        if missing:
            await self.reader.refresh(partition)
            found |= {entry.offset: entry for entry in await self.reader.entries(partition, missing)}
        return [found[offset] for offset in offsets if offset in found]

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.after``: from the archive as far as it reaches, then from the bus.

        Raises ``BusUnavailable`` if entries between the two are missing.
        """
        looked = False
        while True:
            found, position = await self.reader.run_after(partition, offset, limit=limit)
            if position is not None and len(found) == limit:
                return found
            if position is not None:
                batch = await self._bus.reread(partition, position, limit=limit - len(found))
                if not batch.lost:
                    return [*found, *batch.entries]
                if looked:
                    raise _lost(partition, position.offset, batch.lost)
                await self.reader.refresh(partition)
                looked = True
                continue
            there = await self._bus.after(partition, offset, limit=limit)
            if await self._is_up_to_date(partition):
                older = found and (not there or offset_order(found[0].offset) < offset_order(there[0].offset))
                return found if older else there

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.before``: the bus's entries, and those before them from the archive."""
        if not offset:
            return []
        while True:
            found = list(await self._bus.before(partition, offset, limit=limit))
            if len(found) >= limit:
                return found
            until = found[0].offset if found else offset
            if len(found) > 1 and len(await self._bus.before(partition, until, limit=2)) > 1:
                return found  # the page is short because its entries are large
            older = await self.reader.before(partition, until, limit=limit - len(found) + 1)
            if found and older and older[-1].offset == until:
                older = older[:-1]
            if await self._is_up_to_date(partition):
                return last_page([*older, *found][-limit:])

    async def _is_up_to_date(self, partition: int) -> bool:
        """Look for new segments if the bus has been trimmed since the last look, and return False then."""
        trimmed = await self._bus.missing(partition)
        if trimmed == self._trimmed.get(partition, 0):
            return True
        await self.reader.refresh(partition)
        self._trimmed[partition] = trimmed
        return False

    async def missing(self, partition: int) -> int:
        """See ``EventLog.missing``: what neither the archive nor the bus holds."""
        trimmed = await self._bus.missing(partition)
        if not trimmed:
            return 0
        await self.reader.refresh(partition)
        gaps = await self.reader.gaps(partition)
        end = await self.reader.end(partition)
        # The bus counts from the start, and so fills a gap of the archive after what was trimmed.
        lost = sum(max(0, min(gap.last, trimmed) - gap.first + 1) for gap in gaps)
        return lost + (await self._bus.reread(partition, end, limit=1)).lost

    async def trim(self, partition: int, offset: str) -> None:
        """See ``EventLog.trim``. The archive keeps the entries."""
        await self._bus.trim(partition, offset)

    async def positions(self, partition: int) -> Mapping[str, str]:
        """See ``EventLog.positions``."""
        return await self._bus.positions(partition)

    def entries_up_to(self, position: Committed) -> int:
        """See ``EventLog.entries_up_to``."""
        return self._bus.entries_up_to(position)

    def is_after(self, offset: str, other: str) -> bool:
        """See ``EventLog.is_after``."""
        return self._bus.is_after(offset, other)

    async def commit(self, partition: int, committed: Committed) -> None:
        """See ``EventLog.commit``."""
        await self._bus.commit(partition, committed)

    async def status(self) -> Sequence[PartitionStatus]:
        """See ``EventLog.status``."""
        return await self._bus.status()

    # Leases

    async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
        """See ``PartitionLeases.claim``."""
        return await self._bus.claim(partition, owner, ttl_s)

    def is_revoked(self, partition: int) -> bool:
        """See ``PartitionLeases.is_revoked``."""
        return self._bus.is_revoked(partition)

    def lease_keeper(self) -> LeaseKeeper | None:
        """See ``PartitionLeases.lease_keeper``."""
        return self._bus.lease_keeper()

    async def release(self, partition: int, owner: str) -> None:
        """See ``PartitionLeases.release``."""
        await self._bus.release(partition, owner)

    # Dead letters

    async def put_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """See ``DeadLetters.put_dead_letters``."""
        await self._bus.put_dead_letters(letters)

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        """See ``DeadLetters.extend``."""
        return await self._bus.extend(letter, longer)

    async def dead_letter_count(self) -> int:
        """See ``DeadLetters.dead_letter_count``."""
        return await self._bus.dead_letter_count()

    async def letters_by_app(self) -> Mapping[str, LettersOfApp]:
        """See ``UsageLog.letters_by_app``."""
        return await self._bus.letters_by_app()

    async def dead_letters(
        self, *, limit: int, app_id: str | None = None, size: int | None = None, whole: bool = True
    ) -> Sequence[DeadLetter]:
        """See ``DeadLetters.dead_letters``."""
        return await self._bus.dead_letters(limit=limit, app_id=app_id, size=size, whole=whole)

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        """See ``DeadLetters.dead_letter``."""
        return await self._bus.dead_letter(letter_id)

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        """See ``DeadLetters.requeue``."""
        return await self._bus.requeue(letter, entries, rest)

    # Rules

    async def store_rules(self, digest: str, rules: StoredRules) -> None:
        """See ``RulesLog.store_rules``."""
        await self._bus.store_rules(digest, rules)

    async def stored_rules(self, digest: str) -> StoredRules | None:
        """See ``RulesLog.stored_rules``."""
        return await self._bus.stored_rules(digest)

    async def activate(self, scope: str, digest: str) -> Activation:
        """See ``RulesLog.activate``."""
        return await self._bus.activate(scope, digest)

    async def activations(self, *, after: int = 0) -> Sequence[Activation]:
        """See ``RulesLog.activations``."""
        return await self._bus.activations(after=after)

    async def purge(self, purge: Purge) -> None:
        """See ``PurgeLog.purge``."""
        await self._bus.purge(purge)

    async def purges(self, mark: int | None) -> Purges:
        """See ``PurgeLog.purges``."""
        return await self._bus.purges(mark)

    async def put_usage(self, reporter: str, record: bytes | None) -> None:
        """See ``UsageLog.put_usage``."""
        await self._bus.put_usage(reporter, record)

    async def usage(self) -> Mapping[str, bytes]:
        """See ``UsageLog.usage``."""
        return await self._bus.usage()

    async def aclose(self) -> None:
        """See ``Bus.aclose``."""
        await self._bus.aclose()


def _lost(partition: int, offset: str, number: int) -> BusUnavailable:
    were, are, they = ("was", "is", "it is") if number == 1 else ("were", "are", "they are")
    return BusUnavailable(
        f"{counted(number, 'entry')} of partition {partition} after {offset or 'the start'} {were} trimmed from the "
        f"bus and {are} not in the archive: {they} lost. `graphweft archive verify` lists what is missing"
    )


class ArchiveAlone:
    """``Bus`` that only an archive is left of: for a replay without the bus. It refuses to write."""

    def __init__(self, blobs: BlobStore) -> None:
        self.archive: BlobStore | None = blobs
        self.reader = ArchiveReader(blobs)
        self._state = ArchivedState(blobs)

    async def partitions(self, *, fresh: bool = False) -> int:
        """See ``EventLog.partitions``."""
        return max((await self.layout()).partitions, *(number + 1 for number in await self.reader.partitions()), 0)

    async def layout(self) -> Layout:
        """See ``EventLog.layout``."""
        return await self._state.layout()

    async def committed(self, partition: int) -> Committed:
        """Return the end of the archive."""
        return await self.reader.end(partition)

    async def read(self, partition: int, after: Committed, *, limit: int, wait_s: float) -> Batch:
        """See ``EventLog.read``."""
        return await self.reread(partition, after, limit=limit)

    async def reread(self, partition: int, after: Committed, *, limit: int) -> Batch:
        """See ``EventLog.reread``."""
        entries, position = await self.reader.run_after(partition, after.offset, limit=limit)
        if position is not None or not entries:
            return Batch(entries=entries)
        number = await self.reader.number_of(partition, entries[0].offset)
        return Batch(entries=entries, lost=max(1, (number or 0) - after.count - 1))

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        """See ``EventLog.entries``."""
        return await self.reader.entries(partition, offsets)

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.after``. It skips what is missing."""
        found: list[Entry] = []
        while len(found) < limit:
            at = found[-1].offset if found else offset
            page = await self.reader.after(partition, at, limit=limit - len(found))
            if not page:
                break
            found += page
        return found

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """See ``EventLog.before``."""
        return await self.reader.before(partition, offset, limit=limit) if offset else []

    async def missing(self, partition: int) -> int:
        """See ``EventLog.missing``."""
        return sum(gap.last - gap.first + 1 for gap in await self.reader.gaps(partition))

    async def positions(self, partition: int) -> Mapping[str, str]:
        """See ``EventLog.positions``."""
        return {}

    def entries_up_to(self, position: Committed) -> int:
        """See ``EventLog.entries_up_to``."""
        return position.count

    def is_after(self, offset: str, other: str) -> bool:
        """See ``EventLog.is_after``."""
        return offset_order(offset) > offset_order(other)

    async def status(self) -> Sequence[PartitionStatus]:
        """Return the end of each partition; everything counts as read."""
        found: list[PartitionStatus] = []
        for number in range(await self.partitions()):
            end = (await self.reader.end(number)).offset
            found.append(PartitionStatus(id=number, position=end, end=end, lag=0, owner=None))
        return found

    async def dead_letter_count(self) -> int:
        """See ``DeadLetters.dead_letter_count``."""
        return len(await self._state.dead_letters())

    async def dead_letters(
        self, *, limit: int, app_id: str | None = None, size: int | None = None, whole: bool = True
    ) -> Sequence[DeadLetter]:
        """See ``DeadLetters.dead_letters``: those of the newest copy."""
        return first_letters(await self._state.dead_letters(), limit, app_id, size, whole=whole)

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        """See ``DeadLetters.dead_letter``."""
        return next((each for each in await self._state.dead_letters() if each.id == letter_id), None)

    async def stored_rules(self, digest: str) -> StoredRules | None:
        """See ``RulesLog.stored_rules``."""
        return await self._state.stored_rules(digest)

    async def activations(self, *, after: int = 0) -> Sequence[Activation]:
        """See ``RulesLog.activations``."""
        return await self._state.activations(after=after)

    async def aclose(self) -> None:
        """See ``Bus.aclose``."""

    def is_revoked(self, partition: int) -> bool:
        """See ``PartitionLeases.is_revoked``."""
        return False

    def lease_keeper(self) -> None:
        """See ``PartitionLeases.lease_keeper``."""

    async def store_order(self, app_id: str, order: Order) -> NoReturn:
        """Refuse."""
        _refuse()

    async def trim(self, partition: int, offset: str) -> NoReturn:
        """Refuse."""
        _refuse()

    async def commit(self, partition: int, committed: Committed) -> NoReturn:
        """Refuse."""
        _refuse()

    async def claim(self, partition: int, owner: str, ttl_s: float) -> NoReturn:
        """Refuse."""
        _refuse()

    async def release(self, partition: int, owner: str) -> NoReturn:
        """Refuse."""
        _refuse()

    async def put_dead_letters(self, letters: Sequence[DeadLetter]) -> NoReturn:
        """Refuse."""
        _refuse()

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> NoReturn:
        """Refuse."""
        _refuse()

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> NoReturn:
        """Refuse."""
        _refuse()

    async def store_rules(self, digest: str, rules: StoredRules) -> NoReturn:
        """Refuse."""
        _refuse()

    async def activate(self, scope: str, digest: str) -> NoReturn:
        """Refuse."""
        _refuse()

    async def purge(self, purge: Purge) -> NoReturn:
        """Refuse."""
        _refuse()

    async def purges(self, mark: int | None) -> NoReturn:
        """Refuse."""
        _refuse()

    async def put_usage(self, reporter: str, record: bytes | None) -> NoReturn:
        """Refuse."""
        _refuse()

    async def usage(self) -> Mapping[str, bytes]:
        """Return none: the archive has no records of usage."""
        return {}

    async def letters_by_app(self) -> Mapping[str, LettersOfApp]:
        """Return none: the archive does not count dead letters."""
        return {}


def _refuse() -> NoReturn:
    raise BusUnavailable("this command reads the archive without a bus, so it cannot write to one")

"""A bus in memory: the log that a test wrote, for the real worker to read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from graphweft_contracts import DeadLetter, InvalidSettings, Layout, Order
from graphweft_contracts.rules_log import Activation, StoredRules
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import DeadLetters, LettersOfApp, counted_by_app, first_letters
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.ports.offsets import OffsetForm
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.ports.records import RecordLog, Records

__all__ = ("MemoryLetters", "MemoryRecords", "MemoryRules", "memory_bus")

_LOOK_S: Final = 1.0
"""How often a read that waits looks for entries that a test adds."""


def memory_bus(
    partitions: Sequence[Sequence[Entry]],
    at_end: Callable[[], None] = lambda: None,
    *,
    letters: DeadLetters | None = None,
    usage: RecordLog | None = None,
) -> Bus:
    """Return a bus over lists of entries; it calls ``at_end`` when all of them are committed."""
    log = MemoryLog(partitions, at_end)
    return Bus(
        log=log,
        partitions=log,
        leases=MemoryLeases(),
        dead_letters=letters or MemoryLetters(),
        rules=MemoryRules(),
        purges=MemoryRecords(),
        usage=usage or MemoryRecords(),
        offsets=OffsetForm.NUMBER,
        close=_nothing,
        series=MemoryRecords(),
    )


async def _nothing() -> None:
    pass


class MemoryLog:
    """``EventLog`` and ``Partitions``."""

    def __init__(self, partitions: Sequence[Sequence[Entry]], at_end: Callable[[], None]) -> None:
        self._entries = partitions
        self._at_end = at_end
        self._committed = [CommittedPosition() for _ in partitions]
        self._trimmed = [0 for _ in partitions]

    async def read(self, partition: int, after: CommittedPosition, *, limit: int, wait_s: float | None = None) -> Batch:
        start, left_s = max(_number(after.offset), self._trimmed[partition]), wait_s or 0.0
        while len(self._entries[partition]) <= start and left_s > 0:
            await asyncio.sleep(min(left_s, _LOOK_S))
            left_s -= _LOOK_S
        entries = self._entries[partition][start : start + limit]
        return Batch(entries=entries, lost=start - _number(after.offset))

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        wanted = set(offsets)
        return [entry for entry in self._entries[partition][self._trimmed[partition] :] if entry.offset in wanted]

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        start = _number(offset)
        return self._entries[partition][start : start + limit]

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        end = _number(offset)
        return self._entries[partition][max(0, end - limit) : end]

    async def count(self, *, fresh: bool = False) -> int:
        return len(self._entries)

    async def layout(self) -> Layout:
        return Layout(partitions=len(self._entries))

    async def give_partition(self, app_id: str, *, least: int = 0) -> Layout:
        raise InvalidSettings("this bus gives no app a partition of its own")

    async def store_order(self, app_id: str, order: Order) -> None:
        raise NotImplementedError

    async def committed(self, partition: int) -> CommittedPosition:
        return self._committed[partition]

    async def commit(self, partition: int, committed: CommittedPosition) -> None:
        if _number(committed.offset) >= _number(self._committed[partition].offset):
            self._committed[partition] = committed
        if all(_number(done.offset) == len(log) for done, log in zip(self._committed, self._entries, strict=True)):
            self._at_end()

    async def status(self, *, group: str = "") -> Sequence[PartitionStatus]:
        return [
            PartitionStatus(
                id=number,
                position=self._committed[number].offset,
                end=str(len(log)) if log else "",
                lag=len(log) - _number(self._committed[number].offset),
                owner=None,
                written=len(log),
                trimmed=self._trimmed[number],
            )
            for number, log in enumerate(self._entries)
        ]

    async def positions(self, partition: int) -> Mapping[str, CommittedPosition]:
        return {}

    async def trim(self, partition: int, offset: str) -> None:
        self._trimmed[partition] = max(_number(offset), self._trimmed[partition])


class MemoryLeases:
    """``PartitionLeases`` of one worker."""

    async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
        return True

    def is_revoked(self, partition: int) -> bool:
        return False

    async def release(self, partition: int, owner: str) -> None:
        pass


class MemoryLetters:
    """``DeadLetters``."""

    def __init__(self) -> None:
        self.found: dict[str, DeadLetter] = {}

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        self.found.update((letter.id, letter) for letter in letters)

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        there = self.found.get(longer.id) == letter
        if there:
            self.found[longer.id] = longer
        return there

    async def read(
        self, *, limit: int, app_id: str | None = None, size: int | None = None, whole: bool = True,
        ids: Collection[str] | None = None,
    ) -> Sequence[DeadLetter]:  # fmt: skip
        return first_letters(self.found.values(), limit, app_id, size, whole=whole, ids=ids)

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        raise NotImplementedError

    async def by_app(self) -> Mapping[str, LettersOfApp]:
        return counted_by_app(self.found.values())


class MemoryRules:
    """``RulesLog``."""

    def __init__(self) -> None:
        self.sets: dict[str, StoredRules] = {}
        self.activated: list[Activation] = []

    async def store(self, digest: str, rules: StoredRules) -> None:
        stored = self.sets.get(digest)
        self.sets[digest] = rules if stored is None else stored.updated_by(rules) or stored

    async def stored(self, digest: str) -> StoredRules | None:
        return self.sets.get(digest)

    async def activate(self, scope: str, digest: str) -> Activation:
        raise NotImplementedError

    async def activations(self, *, after: int = 0) -> Sequence[Activation]:
        return self.activated[after:]


class MemoryRecords:
    """``RecordLog``."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def put(self, key: str, record: bytes | None) -> None:
        self.kept.pop(key, None)
        if record is not None:
            self.kept[key] = record

    async def after(self, mark: int | None) -> Records:
        return Records(found=dict(self.kept), mark=0)


def _number(offset: str) -> int:
    """Offsets count from 1, so an offset is also the number of entries up to it."""
    return int(offset or 0)

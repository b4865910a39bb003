"""What the archive records of erasures, and what an erasure leaves in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import override

import pytest
from tests.chaos.memory_bus import memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import Event, wire
from graphweft_workers.archive.archiver import archive_now
from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.archive.erasure import count_entries, erase_entries, erased_offsets, learn
from graphweft_workers.archive.erasures import Erasures, begin_erasure, end_erasure, erasures_in
from graphweft_workers.archive.merge import TOGETHER, merge_small
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.segments import decode, encode, parse_name
from graphweft_workers.archive.subject import Subject
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.replay.snapshot_file import Snapshot, SnapshotWriter
from graphweft_workers.replay.snapshots import Snapshots


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return open_blobs(str(tmp_path))


async def test_an_erasure_counts_when_it_begins_and_when_it_ends(blobs: BlobStore) -> None:
    assert await erasures_in(blobs, "shop") == Erasures()
    number, resumed = await begin_erasure(blobs, "shop", "ada")
    assert (number, resumed) == (1, False)
    found = await erasures_in(blobs, "shop")
    assert (found.count, list(found.open or ())) == (1, [1])
    assert await begin_erasure(blobs, "shop", "ada") == (1, True)  # it was cut off
    assert await begin_erasure(blobs, "shop", "bob") == (2, False)
    assert await begin_erasure(blobs, "shop", None) == (3, False)
    for each in (1, 2, 3):
        await end_erasure(blobs, "shop", each)
    assert await erasures_in(blobs, "shop") == Erasures(count=6)
    assert await erasures_in(blobs, "shop_x") == Erasures()
    assert await begin_erasure(blobs, "shop", "ada") == (4, False)
    for name in await blobs.names("erasures/"):
        assert b"ada" not in (await blobs.get(name) or b"ada")


async def test_a_snapshot_of_a_replay_from_before_an_erasure_is_not_kept(blobs: BlobStore) -> None:
    snapshot = Snapshot(app_id="shop", key="a" * 64, events=1, progress={}, keys=frozenset(), indexes=())

    async def put(snapshots: Snapshots) -> int:
        await snapshots.put(SnapshotWriter(), snapshot, 0, "1-0")
        return len(await snapshots.stored("shop"))

    said: list[str] = []
    before = Snapshots(blobs, "f" * 64, every=1, warn=said.append)
    await before.stored("shop")
    number, _ = await begin_erasure(blobs, "shop", "ada")
    during = Snapshots(blobs, "f" * 64, every=1, warn=said.append)
    await during.stored("shop")
    assert await put(during) == 0
    await end_erasure(blobs, "shop", number)
    assert await put(before) == 0
    assert len(said) == 2
    after = Snapshots(blobs, "f" * 64, every=1, warn=said.append)
    await after.stored("shop")
    assert await put(after) == 1


class BlobsAround:
    """Other blobs, of which a test changes a method."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def below(self, folder: str) -> BlobStore:
        return self._blobs.below(folder)

    async def put(self, name: str, data: bytes) -> None:
        await self._blobs.put(name, data)

    async def names(self, prefix: str) -> list[str]:
        return await self._blobs.names(prefix)

    async def delete(self, names: Sequence[str]) -> None:
        await self._blobs.delete(names)

    async def get(self, name: str) -> bytes | None:
        return await self._blobs.get(name)


class Merging(BlobsAround):
    """Blobs whose first two segments are merged when one of them is read, as often as it is told."""

    def __init__(self, blobs: BlobStore, times: int) -> None:
        super().__init__(blobs)
        self._times = times

    @override
    async def get(self, name: str) -> bytes | None:
        found = [each for each in map(parse_name, await self.names("segments/p00000/")) if each is not None]
        if self._times and len(found) > 1:
            self._times -= 1
            pair = sorted(found, key=lambda each: each.first)[:2]
            entries = [entry for each in pair for entry in decode(each, await self._blobs.get(each.name) or b"")]
            made, data = encode(0, pair[0].first, entries, generation=max(each.generation for each in pair))
            await self.put(made.name, data)
            await self.delete([each.name for each in pair])
        return await self._blobs.get(name)


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_an_erasure_goes_on_while_the_archive_is_merged(blobs: BlobStore, times: int) -> None:
    def entry(number: int) -> Entry:
        event = Event.create("a.b", app_id="shop", chat_id="c", id=f"e{number}", source="/t", user_id="ada")
        return Entry(offset=f"{number}-0", fields=wire.encode(event), received=datetime(2026, 1, 1, tzinfo=UTC))

    for first in range(1, 13, 2):
        segment, data = encode(0, first, [entry(first), entry(first + 1)])
        await blobs.put(segment.name, data)
    subject = Subject(app_id="shop", user_id="ada")
    reader = ArchiveReader(Merging(blobs, times))
    await learn(reader, 0, subject)
    reader = ArchiveReader(Merging(blobs, times))
    done = await erase_entries(reader, 0, subject)
    assert (done.entries, done.left) == (12, 0)
    assert await count_entries(ArchiveReader(Merging(blobs, times)), 0, subject) == 0
    assert len(await erased_offsets(ArchiveReader(Merging(blobs, times)), 0)) == 12


class Overtaken(BlobsAround):
    """Blobs in which somebody else is done with something before the next segment is there."""

    def __init__(self, blobs: BlobStore, first: Callable[[], Awaitable[object]]) -> None:
        super().__init__(blobs)
        self._first = first
        self.waits = False

    @override
    async def put(self, name: str, data: bytes) -> None:
        if self.waits and parse_name(name) is not None:
            self.waits = False
            await self._first()
        await super().put(name, data)


async def kept(blobs: BlobStore) -> list[Entry]:
    """Return the entries of all segments, also of those that nobody reads."""
    found = [each for each in map(parse_name, await blobs.names("segments/")) if each is not None]
    return [entry for each in found for entry in decode(each, await blobs.get(each.name) or b"")]


@pytest.mark.parametrize("by", ["the archiver", "a merge"])
async def test_what_is_written_behind_an_erasure_holds_nothing_of_it(blobs: BlobStore, by: str) -> None:
    users = ["ada", "bob"] * TOGETHER
    entries = [
        Entry(
            offset=str(number), received=VIRTUAL.now(),
            fields=wire.encode(
                Event.create("a.b", app_id="shop", chat_id="c", id=f"{number}", source="/t", user_id=user)
            ),
        )
        for number, user in enumerate(users, 1)
    ]  # fmt: skip
    bus = memory_bus([entries])

    async def erase() -> None:
        if by == "the archiver":
            await archive_now(bus, blobs)
        subject = Subject(app_id="shop", user_id="ada")
        await learn(ArchiveReader(blobs), 0, subject)
        assert (await erase_entries(ArchiveReader(blobs), 0, subject)).left == 0

    overtaken = Overtaken(blobs, erase)
    if by == "the archiver":
        overtaken.waits = True
        await archive_now(bus, overtaken)
    else:
        for first in range(1, len(entries), 2):
            segment, data = encode(0, first, entries[first - 1 : first + 1])
            await blobs.put(segment.name, data)
        reader = ArchiveReader(overtaken)
        await reader.refresh(0)
        overtaken.waits = True
        assert await merge_small(reader, 0)
    assert len(await erased_offsets(ArchiveReader(blobs), 0)) == TOGETHER
    assert {entry.event().userid for entry in await kept(blobs) if not entry.erased} == {"bob"}

"""What the archive records of erasures, and that one of an app runs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.chaos.memory_bus import memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import BusUnavailable, Event, wire
from graphweft_workers.archive.archiver import archive_now
from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.archive.erasure import count_entries, erase_entries, erased_offsets, learn
from graphweft_workers.archive.erasures import Erasures, alone, begin_erasure, end_erasure, erasures_in
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


async def test_a_second_erasure_of_an_app_is_refused(blobs: BlobStore) -> None:
    async with alone(blobs, "shop", clock=VIRTUAL):
        with pytest.raises(BusUnavailable, match="another erasure of the app 'shop' runs"):
            async with alone(blobs, "shop", clock=VIRTUAL):
                pytest.fail("two at once")
        async with alone(blobs, "shop_x", clock=VIRTUAL):
            pass
    async with alone(blobs, "shop", clock=VIRTUAL):
        pass


async def test_of_erasures_that_begin_at_once_one_runs_at_a_time(blobs: BlobStore) -> None:
    running = most = done = 0

    async def one() -> None:
        nonlocal running, most, done
        async with alone(blobs, "shop", clock=VIRTUAL):
            running += 1
            most = max(most, running)
            await VIRTUAL.sleep(3.0)
            running -= 1
            done += 1

    outcomes = await asyncio.gather(*(one() for _ in range(5)), return_exceptions=True)
    assert most == 1
    assert done >= 1
    assert all(outcome is None or isinstance(outcome, BusUnavailable) for outcome in outcomes)


async def test_one_that_was_killed_is_followed_by_the_next(blobs: BlobStore) -> None:
    await blobs.put("erasing/shop/0", b'{"beat": 7, "asks": false}')
    async with alone(blobs, "shop", clock=VIRTUAL):
        assert len(await blobs.names("erasing/shop/")) == 1


async def test_one_that_was_taken_for_killed_ends(blobs: BlobStore) -> None:
    async def taken_over() -> None:
        async with alone(blobs, "shop", clock=VIRTUAL):
            await blobs.delete(await blobs.names("erasing/shop/"))
            await asyncio.Event().wait()

    with pytest.raises(BusUnavailable, match="taken over"):
        await taken_over()


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


@pytest.mark.parametrize(
    "sign",
    [
        b'{"beat": 0, "asks": true}', b'{"beat": 7, "asks": true}', b'{"beat": 1, "asks": false}', b"{}", b"[]", b"",
        b"not JSON", b"[" * 5_000,
    ],
    ids=lambda sign: sign[:26].decode(),
)  # fmt: skip
@pytest.mark.parametrize("name", ["0" * 32, "f" * 32])
async def test_whatever_a_dead_process_has_left_grows_old(blobs: BlobStore, sign: bytes, name: str) -> None:
    await blobs.put(f"erasing/shop/{name}", sign)
    async with alone(blobs, "shop", clock=VIRTUAL):
        assert len(await blobs.names("erasing/shop/")) == 1


async def test_one_that_waits_for_a_dead_one_is_not_taken_for_dead(blobs: BlobStore) -> None:
    await blobs.put(f"erasing/shop/{'0' * 32}", b'{"beat": 0, "asks": true}')
    running = most = done = 0

    async def one(after_s: float) -> None:
        nonlocal running, most, done
        await VIRTUAL.sleep(after_s)
        async with alone(blobs, "shop", clock=VIRTUAL):
            running += 1
            most = max(most, running)
            await VIRTUAL.sleep(30.0)
            running -= 1
            done += 1

    outcomes = await asyncio.gather(*(one(number * 0.7) for number in range(12)), return_exceptions=True)
    assert (most, done >= 1) == (1, True)
    assert all(outcome is None or isinstance(outcome, BusUnavailable) for outcome in outcomes)


class Merging:
    """Blobs whose first two segments are merged when one of them is read, as often as it is told."""

    def __init__(self, blobs: BlobStore, times: int) -> None:
        self._blobs = blobs
        self._times = times

    def below(self, folder: str) -> BlobStore:
        return self._blobs.below(folder)

    async def put(self, name: str, data: bytes) -> None:
        await self._blobs.put(name, data)

    async def names(self, prefix: str) -> list[str]:
        return await self._blobs.names(prefix)

    async def delete(self, names: Sequence[str]) -> None:
        await self._blobs.delete(names)

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


class Overtaken:
    """Blobs in which somebody else is done with something before the next segment is there."""

    def __init__(self, blobs: BlobStore, first: Callable[[], Awaitable[object]]) -> None:
        self._blobs = blobs
        self._first = first
        self.waits = False

    def below(self, folder: str) -> BlobStore:
        return self._blobs.below(folder)

    async def put(self, name: str, data: bytes) -> None:
        if self.waits and parse_name(name) is not None:
            self.waits = False
            await self._first()
        await self._blobs.put(name, data)

    async def names(self, prefix: str) -> list[str]:
        return await self._blobs.names(prefix)

    async def delete(self, names: Sequence[str]) -> None:
        await self._blobs.delete(names)

    async def get(self, name: str) -> bytes | None:
        return await self._blobs.get(name)


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

"""A bus that lost its end, as after a fail-over: the archive goes further than the bus, and tools say so."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio as redis
from tests.services.environment import clean_environment

from graphweft import Client, Event
from graphweft_contracts import DeadLetter, InvalidSettings, channels
from graphweft_contracts.rules_log import StoredRules, digest_of
from graphweft_workers.archive.archived_bus import archived
from graphweft_workers.archive.archiver import archive_now
from graphweft_workers.archive.blobs import ArchiveUnavailable, open_blobs
from graphweft_workers.archive.continuation import breaks
from graphweft_workers.archive.joins import join_rules
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.state import ArchivedState, letters_file
from graphweft_workers.archive.trim import trim
from graphweft_workers.archive.verify import verify
from graphweft_workers.drivers import bus_driver
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.partitions import Partitions, PartitionStatus
from graphweft_workers.replay.app_log import AppLog

pytestmark = pytest.mark.integration
FOR_EVER_S = 3600.0


@pytest.fixture
async def bus(url: str) -> AsyncIterator[Bus]:
    async with aclosing(redis_bus(url, group=channels.ARCHIVE_GROUP)) as opened:
        yield opened


@pytest.fixture
async def raw(url: str) -> AsyncIterator[Any]:
    async with redis.Redis.from_url(url) as connection:
        yield connection


async def emit(url: str, first: int, count: int) -> list[str]:
    events = [
        Event.create("note.made", app_id="shop", chat_id="c", data={"n": number})
        for number in range(first, first + count)
    ]
    async with Client(url) as client:
        return [str(each) for each in await client.emit_all(events, wait_s=FOR_EVER_S)]


async def found(bus: Bus, folder: Path) -> tuple[list[str], list[str]]:
    """Return what ``breaks`` and ``verify`` say."""
    blobs = open_blobs(str(folder))
    broken = await breaks(bus, ArchiveReader(blobs), range(await bus.partitions.count()))
    return list(broken.values()), [fault async for each in verify(blobs, bus) for fault in each.faults]


async def lose(url: str, raw: Any, bus: Bus, folder: Path, *, lost: int, after: int) -> str:
    """Archive 20 entries and ``lost`` more, take these from the bus, and emit ``after`` others. Return the stream."""
    stream = channels.events_stream(int((await emit(url, 0, 20))[0].partition(":")[0]))
    kept = await raw.dump(stream)
    await emit(url, 20, lost)
    await archive_now(bus, open_blobs(str(folder)))
    assert await found(bus, folder) == ([], [])
    await raw.restore(stream, 0, kept, replace=True)
    if after:
        await emit(url, 100, after)
    return stream


@pytest.mark.parametrize("after", [0, 1, 9, 10, 11, 50])
async def test_a_bus_that_lost_its_end_is_found(url: str, raw: Any, bus: Bus, tmp_path: Path, after: int) -> None:
    stream = await lose(url, raw, bus, tmp_path, lost=10, after=after)
    broken, faults = await found(bus, tmp_path)
    assert len(broken) == 1
    assert broken == faults
    assert f"partition {stream.rpartition(':')[2]}: the bus does not continue the archive" in broken[0]


async def test_it_is_found_although_the_bus_was_trimmed_before(url: str, raw: Any, bus: Bus, tmp_path: Path) -> None:
    stream = await lose(url, raw, bus, tmp_path, lost=10, after=30)
    await raw.xtrim(stream, maxlen=30, approximate=False)
    broken, faults = await found(bus, tmp_path)
    assert len(broken) == len(faults) == 1


async def test_another_entry_at_the_same_place_is_found(url: str, raw: Any, bus: Bus, tmp_path: Path) -> None:
    stream = await lose(url, raw, bus, tmp_path, lost=1, after=0)
    end = await ArchiveReader(open_blobs(str(tmp_path))).end(int(stream.rpartition(":")[2]))
    await raw.xadd(stream, {"data": "other"}, id=end.offset)
    assert "another entry" in (await found(bus, tmp_path))[0][0]


@pytest.mark.parametrize("kept", [0, 1, 10, 30, 40])
async def test_a_bus_that_goes_on_is_not_blamed(url: str, raw: Any, bus: Bus, tmp_path: Path, kept: int) -> None:
    stream = channels.events_stream(int((await emit(url, 0, 30))[0].partition(":")[0]))
    await archive_now(bus, open_blobs(str(tmp_path)))
    await raw.xtrim(stream, maxlen=kept, approximate=False)
    assert await found(bus, tmp_path) == ([], [])
    await emit(url, 30, 10)
    assert await found(bus, tmp_path) == ([], [])


class BusyPartitions:
    """Partitions of which somebody archives and trims the entries whenever their status was asked."""

    def __init__(self, partitions: Partitions, work: Callable[[], Awaitable[None]], *, first: bool) -> None:
        self._partitions = partitions
        self._work = work
        self._first = first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partitions, name)

    async def status(self) -> Sequence[PartitionStatus]:
        if self._first:
            await self._work()
        found = await self._partitions.status()
        if not self._first:
            await self._work()
        return found


@pytest.mark.parametrize("first", [True, False])
async def test_a_bus_that_is_archived_and_trimmed_meanwhile_is_not_blamed(
    url: str, raw: Any, bus: Bus, tmp_path: Path, first: bool
) -> None:
    stream = channels.events_stream(int((await emit(url, 0, 30))[0].partition(":")[0]))
    blobs = open_blobs(str(tmp_path))
    await archive_now(bus, blobs)

    async def work() -> None:
        await emit(url, 30, 10)
        await archive_now(bus, blobs)
        await raw.xtrim(stream, maxlen=3, approximate=False)

    busy = dataclasses.replace(bus, partitions=cast(Partitions, BusyPartitions(bus.partitions, work, first=first)))
    assert await breaks(busy, ArchiveReader(blobs), range(await bus.partitions.count())) == {}
    assert [fault async for each in verify(blobs, busy) for fault in each.faults] == []


async def test_commands_fail(url: str, raw: Any, bus: Bus, tmp_path: Path) -> None:
    await lose(url, raw, bus, tmp_path, lost=10, after=50)
    environment = clean_environment() | {
        "GRAPHWEFT_BUS_URL": url,
        "GRAPHWEFT_GRAPH_URL": url,
        "GRAPHWEFT_ARCHIVE_URL": str(tmp_path),
    }
    for words in (("archive", "verify"), ("doctor",), ("status",)):
        command = [sys.executable, "-P", "-m", "graphweft_workers.cli", *words]
        done = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == int(words != ("status",))
        shown = " ".join((done.stdout + done.stderr).split())
        assert "does not continue the archive" in shown
        assert "up to date" not in shown
        assert "can be trimmed" not in shown


@pytest.mark.parametrize("after", [0, 9, 10, 11, 50])
async def test_nothing_is_archived_behind_another_end(url: str, raw: Any, bus: Bus, tmp_path: Path, after: int) -> None:
    await lose(url, raw, bus, tmp_path, lost=10, after=after)
    blobs = open_blobs(str(tmp_path))
    before = await blobs.names("segments/")
    with pytest.raises(ArchiveUnavailable, match="`graphweft bus mend"):
        await archive_now(bus, blobs)
    assert await blobs.names("segments/") == before


async def test_no_graph_is_made_of_two_logs(url: str, raw: Any, bus: Bus, tmp_path: Path) -> None:
    blobs = open_blobs(str(tmp_path))
    await lose(url, raw, bus, tmp_path, lost=10, after=50)
    async with aclosing(redis_bus(url)) as workers, aclosing(FalkorDBStore(url)) as graph:
        log = AppLog(bus=archived(workers, blobs), app_id="shop", live=graph)
        with pytest.raises(InvalidSettings, match=r"'shop' cannot be rebuilt: .* does not continue the archive"):
            await log.check_complete()


async def test_nothing_is_trimmed_by_an_archive_of_another_log(url: str, raw: Any, bus: Bus, tmp_path: Path) -> None:
    stream = await lose(url, raw, bus, tmp_path, lost=10, after=50)
    number = next(each.id for each in await bus.partitions.status() if each.written)
    count = await raw.xlen(stream)
    await raw.xgroup_create(stream, channels.MUTATION_GROUP, id="0")
    async with aclosing(redis_bus(url)) as workers:
        end = (await workers.log.after(number, "", limit=1_000))[-1].offset
        await workers.partitions.commit(number, CommittedPosition(offset=end, count=count))
    with pytest.raises(ArchiveUnavailable, match="Nothing was removed"):
        await trim(bus, ArchiveReader(open_blobs(str(tmp_path))), number)
    assert await raw.xlen(stream) == count


def rule_set(name: str) -> tuple[str, StoredRules]:
    files = {f"{name}/graph_injection.yaml": b"version: '1.0'"}
    return digest_of(files), StoredRules(files=files)


async def activate(bus: Bus, *names: str) -> list[str]:
    digests = [rule_set(name)[0] for name in names]
    for name, digest in zip(names, digests, strict=True):
        await bus.rules.store(digest, rule_set(name)[1])
        await bus.rules.activate("*", digest)
    return digests


@pytest.mark.parametrize("since", [(), ("four",), ("four", "five"), ("four", "five", "six"), ("three",)])
async def test_lost_activations_come_before_those_since(
    url: str, raw: Any, bus: Bus, tmp_path: Path, since: tuple[str, ...]
) -> None:
    blobs = open_blobs(str(tmp_path))
    kept = await activate(bus, "one")
    lost = await activate(bus, "two", "three")
    await archive_now(bus, blobs)
    archived = await bus.rules.activations()
    await raw.ltrim(channels.ACTIVATIONS, 0, 0)
    await raw.hdel(channels.RULE_SETS, *lost)
    later = await activate(bus, *since)
    made = (await bus.rules.activations())[1:]
    with pytest.raises(ArchiveUnavailable, match="bus mend all"):
        await ArchivedState(blobs).save_rules(bus)
    assert await join_rules(bus, blobs, driver=bus_driver(url), url=url) == 2
    found = await bus.rules.activations()
    assert [each.digest for each in found] == [*kept, *lost, *later]
    assert [each.number for each in found] == list(range(1, len(found) + 1))
    assert list(found[:3]) == list(archived)
    assert [each.positions for each in found[3:]] == [each.positions for each in made]
    assert all([await bus.rules.stored(digest) for digest in lost])
    assert await join_rules(bus, blobs, driver=bus_driver(url), url=url) == 0
    await ArchivedState(blobs).save_rules(bus)
    assert await ArchivedState(blobs).activations() == list(found)


async def test_letters_of_lost_entries_are_not_written_over(url: str, raw: Any, bus: Bus, tmp_path: Path) -> None:
    blobs = open_blobs(str(tmp_path))
    stream = await lose(url, raw, bus, tmp_path, lost=10, after=50)
    end = await ArchiveReader(blobs).end(int(stream.rpartition(":")[2]))
    letter = DeadLetter(
        id="lost", reason="query_error", message="refused", position=f"{stream.rpartition(':')[2]}:{end.offset}",
        time=datetime.now(UTC), fields={},
    )  # fmt: skip
    name, data = letters_file([letter])
    await blobs.put(name, data)
    await bus.dead_letters.put([letter.model_copy(update={"id": "since"})])
    for _ in range(3):
        await ArchivedState(blobs).save_letters(bus)
    assert [each.id for each in await ArchivedState(blobs).dead_letters()] == ["lost"]

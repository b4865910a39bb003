"""An archive that is not there, or holds nothing, does not pass as a good one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.chaos.memory_bus import memory_bus
from tests.services.commands import inside
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import InvalidSettings
from graphweft_workers.archive.archiver import archive_now
from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.archive.verify import verify, verify_presence
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.offsets import OffsetForm


def entry(number: int) -> Entry:
    return Entry(offset=str(number), fields={b"f": b"v"}, received=VIRTUAL.now())


async def bus_of(written: int, trimmed: int = 0) -> Bus:
    """Return a bus of one partition, which has lost its first entries."""
    bus = replace(memory_bus([[entry(number) for number in range(1, written + 1)]]), offsets=OffsetForm.PAIR)
    await bus.partitions.trim(0, str(trimmed))
    return bus


async def faults_of(folder: Path, bus: Bus | None) -> list[str]:
    blobs = open_blobs(str(folder))
    found = await verify_presence(blobs, bus)
    return found + [fault async for each in verify(blobs, bus) for fault in each.faults]


async def test_an_empty_archive_is_a_fault_where_there_should_be_entries(tmp_path: Path) -> None:
    assert await faults_of(tmp_path, await bus_of(0)) == []
    for bus in (None, await bus_of(3)):
        [fault] = await faults_of(tmp_path, bus)
        assert "check that GRAPHWEFT_ARCHIVE_URL" in fault
    bus = await bus_of(3)
    assert await archive_now(bus, open_blobs(str(tmp_path))) == (3, 0)
    assert await faults_of(tmp_path, bus) == await faults_of(tmp_path, None) == []


async def test_a_partition_of_which_nothing_was_archived_is_a_fault_if_the_bus_lacks_entries(tmp_path: Path) -> None:
    [nothing, lacking] = await faults_of(tmp_path, await bus_of(5, trimmed=2))
    assert "holds no entries" in nothing
    assert lacking == "partition 0: 2 entries after the beginning are neither archived nor on the bus"


@pytest.mark.parametrize("words", ["archive verify", "archive verify --no-bus", "trim", "erase --app acme --report"])
def test_a_folder_that_does_not_exist_is_named(words: str, tmp_path: Path) -> None:
    folder = tmp_path / "archiv"
    given = {
        "GRAPHWEFT_ARCHIVE_URL": str(folder),
        "GRAPHWEFT_BUS_URL": "redis://127.0.0.1:1",
        "PATH": os.environ["PATH"],
    }
    done = inside(words.split(), given, folder=tmp_path)
    assert (done.code, f"the folder '{folder}' does not exist" in " ".join(done.err.split())) == (2, True), done
    assert not folder.exists()


@pytest.mark.skipif(os.name != "posix", reason="such a path is a good one there")
@pytest.mark.parametrize("path", ["C:\\archive", "d:/archive"])
def test_a_path_of_windows_is_refused_elsewhere(path: str) -> None:
    with pytest.raises(InvalidSettings, match="is a path of Windows"):
        open_blobs(path)

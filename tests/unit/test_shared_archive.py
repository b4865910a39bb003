"""An archive that two buses write to, such as a bus and a copy of it: the second one stops, whoever was first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.chaos.memory_bus import memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft_workers.archive.archiver import PartitionCopy, archive_now
from graphweft_workers.archive.blobs import ArchiveUnavailable, open_blobs
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch, Entry
from graphweft_workers.ports.offsets import OffsetForm


def entries(*texts: str) -> list[Entry]:
    return [
        Entry(offset=str(number), fields={b"f": text.encode()}, received=VIRTUAL.now())
        for number, text in enumerate(texts, 1)
    ]


def bus_of(log: list[Entry]) -> Bus:
    return replace(memory_bus([log]), offsets=OffsetForm.PAIR)  # its offsets count from 1


@pytest.mark.parametrize("more", [0, 1, 5], ids=["as many", "one more", "more"])
async def test_entries_of_another_log_are_not_taken_for_those_in_hand(tmp_path: Path, more: int) -> None:
    blobs = open_blobs(str(tmp_path))
    ours = entries("a", "b", "ours", *["later"] * more)
    bus = bus_of(ours)
    copy = PartitionCopy(bus, ArchiveReader(blobs), ArchivedState(blobs, clock=VIRTUAL), 0, clock=VIRTUAL)
    await copy.begin()
    await copy.add(Batch(entries=ours, lost=0))
    assert await archive_now(bus_of(entries("a", "b", "theirs")), blobs) == (3, 0)
    with pytest.raises(ArchiveUnavailable, match="the bus does not continue the archive, which ends at 3"):
        await copy.write()


async def test_an_archiver_goes_on_behind_another_one_of_the_same_log(tmp_path: Path) -> None:
    blobs = open_blobs(str(tmp_path))
    ours = entries("a", "b", "c")
    bus = bus_of(ours)
    copy = PartitionCopy(bus, ArchiveReader(blobs), ArchivedState(blobs, clock=VIRTUAL), 0, clock=VIRTUAL)
    await copy.begin()
    await copy.add(Batch(entries=ours, lost=0))
    assert await archive_now(bus_of(ours[:2]), blobs) == (2, 0)
    assert await copy.write() == 1
    assert await archive_now(bus, blobs) == (0, 0)

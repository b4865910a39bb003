"""An archive that cannot be written: the archiver waits, says which folder and what to do, and goes on by itself."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import override

import fsspec
import pytest
from structlog.testing import capture_logs
from tests.chaos.memory_bus import MemoryRecords, memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import channels
from graphweft_workers.archive.archiver import Archiver
from graphweft_workers.archive.blobs import ArchiveUnavailable, FileSystemBlobs, open_blobs
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.job_states import waits_of


class Disk(FileSystemBlobs):
    """A folder whose disk may be full, or may fail in another way."""

    def __init__(self, folder: Path) -> None:
        super().__init__(fsspec.filesystem("file"), str(folder), local=True)
        self.fault: OSError | None = None

    @override
    def _put(self, name: str, data: bytes) -> None:
        if self.fault is not None:
            raise self.fault
        super()._put(name, data)


async def test_an_archiver_whose_disk_is_full_says_so_and_goes_on_by_itself(tmp_path: Path) -> None:
    disk, usage = Disk(tmp_path), MemoryRecords()
    disk.fault = OSError(errno.ENOSPC, "No space left on device")
    entries = [Entry(offset=str(number), fields={b"f": b"v"}, received=VIRTUAL.now()) for number in range(1, 21)]
    archiver = Archiver(memory_bus([entries], usage=usage), disk, name="a", every_s=1.0, clock=VIRTUAL)
    with capture_logs() as logs:
        task = asyncio.create_task(archiver.run())
        await VIRTUAL.sleep(60)
        assert archiver.reached() == {"archive": False}
        [waits] = waits_of(Settings(), channels.ARCHIVE_GROUP, usage.kept, clock=VIRTUAL)
        assert waits.worker == "a"
        assert waits.reason == (
            f"the archive {tmp_path} does not work: OSError: [Errno 28] No space left on device. Free some space there"
        )
        assert [line["error"] for line in logs if line["event"] == "job_waits" and line["log_level"] == "warning"] == [
            waits.reason
        ]
        disk.fault = None
        await VIRTUAL.sleep(60)
        assert archiver.reached() == {"archive": True}
        assert waits_of(Settings(), channels.ARCHIVE_GROUP, usage.kept, clock=VIRTUAL) == []
        archiver.stop()
        await task
    assert archiver.archived == 20


@pytest.mark.parametrize(
    ("fault", "next"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "Let the user of this process read and write there"),
        (OSError(errno.EIO, "Input/output error"), "Check GRAPHWEFT_ARCHIVE_URL"),
    ],
)
async def test_an_archive_that_does_not_work_says_what_to_do(tmp_path: Path, fault: OSError, next: str) -> None:
    disk = Disk(tmp_path)
    disk.fault = fault
    with pytest.raises(ArchiveUnavailable, match=next):
        await disk.put("segments/x", b"x")


def test_a_store_that_connects_at_once_and_does_not_answer_is_unavailable() -> None:
    with pytest.raises(ArchiveUnavailable, match=r"the ftp archive does not work: .* Check GRAPHWEFT_ARCHIVE_URL"):
        open_blobs("ftp://127.0.0.1:1/archive")

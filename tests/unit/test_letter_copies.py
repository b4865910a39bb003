"""The newest copy of the dead letters in an archive is the one that was written last, whatever a clock said before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.chaos.memory_bus import MemoryLetters, memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts.clock import PastClock
from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.testing.suites.bus_kit import letter

NOW = datetime(2026, 6, 1, tzinfo=UTC)


async def test_a_copy_is_newer_than_one_of_a_clock_that_was_ahead(tmp_path: Path) -> None:
    blobs, letters = open_blobs(str(tmp_path)), MemoryLetters()
    bus = memory_bus([[]], letters=letters)
    for number, now in enumerate([NOW + timedelta(days=40), NOW, NOW, NOW]):
        await letters.put([letter(f"letter{number}", time=NOW)])
        await ArchivedState(blobs, clock=PastClock(now, VIRTUAL)).save_letters(bus)
        found = await ArchivedState(blobs).dead_letters()
        assert len(found) == number + 1
    assert len(await blobs.names("letters/")) == 2

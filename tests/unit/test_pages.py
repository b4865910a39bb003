"""Pages of a partition: in order, none empty, none beyond the end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from graphweft_workers.ports.event_log import Entry, EventLog
from graphweft_workers.ports.pages import pages

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Log:
    """Entries 0 to 9; some may be trimmed while it is read."""

    def __init__(self, *missing: int) -> None:
        self.entries = [Entry(offset=str(each), fields={}, received=NOW) for each in range(10) if each not in missing]
        self.calls = 0

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        self.calls += 1
        return [each for each in self.entries if int(each.offset) > int(offset or -1)][:limit]


async def read(log: Log, after: str = "", **options: Any) -> list[list[int]]:
    return [[int(each.offset) for each in page] async for page in pages(cast("EventLog", log), 0, after, **options)]


async def test_all_entries_come_once_and_in_order() -> None:
    assert await read(Log(), limit=4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("after", "to", "found"),
    [
        ("", "5", [[0, 1, 2, 3], [4, 5]]), ("3", "5", [[4, 5]]), ("", "3", [[0, 1, 2, 3]]),
        ("5", "5", []), ("7", "5", []), ("", "", []),
    ],
)  # fmt: skip
async def test_they_end_with_an_offset(after: str, to: str, found: list[list[int]]) -> None:
    assert await read(Log(), after, to=to, limit=4) == found


async def test_an_end_that_was_trimmed_ends_them_before() -> None:
    assert await read(Log(4, 5), to="5", limit=4) == [[0, 1, 2, 3]]


async def test_nothing_is_read_beyond_the_end() -> None:
    log = Log()
    assert await read(log, to="3", limit=4) == [[0, 1, 2, 3]]
    assert log.calls == 1

"""A copy is told alike by a reader that never stops, and by one that is killed anywhere and begins anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chaos.memory_bus import MemoryLog, MemoryRecords
from tests.services.windows import SMALL, use_small_windows

from graphweft import Event
from graphweft_contracts import InvalidEvent, wire
from graphweft_workers.engine.log.duplicates import RecentEvents, identity_of
from graphweft_workers.engine.log.history import known_before
from graphweft_workers.engine.log.series import number_of
from graphweft_workers.engine.log.series_store import read_marks, write_marks
from graphweft_workers.ports.event_log import Entry

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    """Use windows of a few entries, so that a log of a few hundred is much longer than one."""
    with pytest.MonkeyPatch.context() as patch:
        use_small_windows(patch)
        yield


def event(app: str, name: str, *, sequence: str | None = None) -> Event:
    made = Event.create("x.y", app_id=app, chat_id="c", id=name, source="/s", data={}, time=NOW)
    return made.model_copy(update={"sequence": sequence})


def log_of(random: Random, entries: int) -> list[Entry]:
    """Return a log of three apps: files sent again and again, in part, a little out of order, between other events."""
    found: list[Entry] = []
    files: dict[str, int] = {}
    while len(found) < entries:
        app = random.choice("abc")
        name = f"{app}{random.randrange(3)}"
        match random.randrange(4):
            case 0:  # events without a number
                some = [event(app, f"plain-{random.randrange(200)}") for _ in range(random.randrange(1, 30))]
            case 1:  # a file again from its begin, also a shorter part of it
                end = random.randrange(files.get(name, 0) + 1)
                some = [event(app, f"{name}-{at}", sequence=f"{name}/{at}") for at in range(end)]
            case _:  # a file that goes on, with gaps
                at, some = files.get(name, 0), []
                for _ in range(random.randrange(1, 25)):
                    at += random.choice((1, 1, 1, 5))
                    some.append(event(app, f"{name}-{at}", sequence=f"{name}/{at}"))
                files[name] = at
                for _ in range(random.randrange(3)):
                    one, other = random.randrange(len(some)), random.randrange(len(some))
                    if abs(one - other) < SMALL // 2:
                        some[one], some[other] = some[other], some[one]
        for each in some:
            fields = wire.encode(each)
            if random.random() < 0.05:
                fields = {b"data": b"no event"}
            elif random.random() < 0.03:
                fields = {**fields, wire.RETRY: wire.Retry(f"0:{random.randrange(50)}:r/m", "r", "m").encode()}
            found.append(Entry(offset=str(len(found)), fields=fields, received=NOW))
    return found[:entries]


def told(recent: RecentEvents, entry: Entry) -> bool:
    try:
        found = entry.event()
    except InvalidEvent:
        return recent.is_copy(None)
    return recent.is_copy(identity_of(entry, found), number_of(entry, found), entry.offset)


class Log(MemoryLog):
    """A log whose offsets are the numbers of the entries, from 0."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        super().__init__([entries], lambda: None)
        self.all = entries

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        end = int(offset) + 1 if offset else 0
        return self.all[max(0, end - limit) : end]

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        start = int(offset) + 1 if offset else 0
        return self.all[start : start + limit]


@dataclass
class Reader:
    """A worker: it reads ahead of its position, stores marks before the position, and is killed between any two."""

    log: Log
    random: Random
    marks: MemoryRecords = field(default_factory=MemoryRecords)
    committed: int = -1
    reach: int = 0
    decisions: dict[int, bool] = field(default_factory=dict[int, bool])
    wrong: list[Any] = field(default_factory=list[Any])

    async def live(self, expected: Sequence[bool]) -> None:
        stored = await read_marks(self.marks)
        assert stored is not None
        start = str(self.committed) if self.committed >= 0 else ""
        recent = await known_before(self.log, 0, start, reach=self.reach, records=stored.get(0, ()))  # type: ignore[arg-type]
        at = floor = self.committed
        while at < len(self.log.all) - 1:
            for _ in range(self.random.randrange(1, 20)):
                if at < len(self.log.all) - 1:
                    at += 1
                    if told(recent, self.log.all[at]) != expected[at]:
                        self.wrong.append((self.committed, at, expected[at]))
            floor = self.random.randrange(floor, at + 1)
            if floor < 0:
                continue
            await write_marks(self.marks, 0, recent, str(floor), least=self.random.choice((1, 5)))
            if self.random.random() < 0.1:
                return  # killed after the marks were stored, before the position was
            self.committed, self.reach = floor, recent.reach_at(str(floor))
            if self.random.random() < 0.2:
                return
        self.committed = at


@given(st.integers(0, 2**32))
def test_a_reader_that_is_killed_tells_the_same_copies(seed: int) -> None:
    random = Random(seed)
    entries = log_of(random, 300)
    serial = RecentEvents()
    expected = [told(serial, entry) for entry in entries]
    reader = Reader(Log(entries), random)

    async def run() -> None:
        while reader.committed < len(entries) - 1:
            await reader.live(expected)
            if random.random() < 0.1:  # an older graph was put in the place of the graph
                reader.committed, reader.reach = random.randrange(-1, max(0, reader.committed) + 1), 10_000

    asyncio.run(run())
    assert not reader.wrong


@given(st.integers(0, 2**32))
def test_a_replay_that_begins_anywhere_tells_the_same_copies(seed: int) -> None:
    random = Random(seed)
    entries = log_of(random, 300)
    serial = RecentEvents()
    expected = [told(serial, entry) for entry in entries]
    start, only = random.randrange(len(entries)), random.choice((None, "a", "b"))

    async def run() -> RecentEvents:
        return await known_before(Log(entries), 0, str(start), only=only, records=None)  # type: ignore[arg-type]

    recent = asyncio.run(run())
    for at in range(start + 1, len(entries)):
        copy = told(recent, entries[at])
        if only is None or entries[at].fields.get(wire.DATA, b"").find(b'"appid":"%b"' % only.encode()) >= 0:
            assert copy == expected[at]


@given(st.integers(0, 2**32))
def test_a_file_that_is_sent_again_has_no_effect_whatever_lies_between(seed: int) -> None:
    random = Random(seed)
    recent = RecentEvents()
    file = [event("a", f"f{at}", sequence=f"f/{at}") for at in range(random.randrange(1, 5 * SMALL))]
    between = [event("a", f"other{at}") for at in range(random.randrange(5 * SMALL))]
    sent = [*file, *between, *file, *file]
    entries = [Entry(offset=str(at), fields=wire.encode(each), received=NOW) for at, each in enumerate(sent)]
    copies = [told(recent, entry) for entry in entries]
    assert copies == [False] * len(file + between) + [True] * 2 * len(file)

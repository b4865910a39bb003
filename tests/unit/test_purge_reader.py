"""Who follows the purges of a bus learns all of them, also of a bus that took the place of another one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from graphweft_contracts import BusUnavailable
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_basis import GraphBasis
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.purges import Purge, PurgeReader, Purges, put_purge
from graphweft_workers.ports.records import Records
from graphweft_workers.replay.graph_obstacle import GraphObstacles

NEEDED = GraphBasis(erasures=2)


class Numbered:
    """``RecordLog`` with numbers, as buses keep it, whose reads go on when the test says so."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[int, bytes]] = {}
        self.last = 0
        self.reads = 0
        self.fails = False
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.begun = asyncio.Event()

    def empty(self) -> None:
        self.kept, self.last = {}, 0

    async def put(self, key: str, record: bytes | None) -> None:
        self.last += 1
        if record is not None:
            self.kept[key] = self.last, record

    async def after(self, mark: int | None) -> Records:
        self.reads += 1
        self.begun.set()
        found = {key: record for key, (number, record) in self.kept.items() if number > (mark or 0)}
        last, fails = self.last, self.fails
        await self.goes_on.wait()
        if fails:
            raise BusUnavailable("no")
        if mark is not None and last < mark:
            return Records(found={}, mark=last, complete=False)
        return Records(found=found, mark=last)


async def test_what_another_bus_says_is_known_at_once() -> None:
    log, handled = Numbered(), list[Purges]()
    reader = PurgeReader(log, handle=handled.append)
    assert not reader.has_read
    for each in (
        Purge(app_id="shop", needed=NEEDED),
        Purge(app_id="shop", erasure="1"),
        Purge(app_id="x", erasure="2"),
    ):
        await put_purge(log, each)
    await reader.read()
    await put_purge(log, Purge(app_id="shop", erasure="3"))
    await reader.read()
    assert (reader.has_read, reader.needed) == (True, {"shop": NEEDED})
    log.empty()
    await put_purge(log, Purge(app_id="y", needed=NEEDED))
    await reader.read()
    assert reader.needed == {"y": NEEDED}
    assert [[each.app_id for each in purges.found] for purges in handled] == [["shop", "shop", "x"], ["shop"], ["y"]]
    assert [purges.complete for purges in handled] == [False, True, False]


async def test_calls_share_a_read_that_began_after_them() -> None:
    log = Numbered()
    reader = PurgeReader(log)
    log.goes_on.clear()
    first = asyncio.create_task(reader.read())
    await log.begun.wait()
    await put_purge(log, Purge(app_id="shop", needed=NEEDED))  # the read that is under way may not find it
    others = [asyncio.create_task(reader.read()) for _ in range(5)]
    await asyncio.sleep(0)
    log.goes_on.set()
    await asyncio.gather(first, *others)
    assert (log.reads, reader.needed) == (2, {"shop": NEEDED})


@pytest.mark.parametrize("who", ["a worker", "a reader"])
async def test_a_read_that_fails_is_no_answer_for_those_that_waited_for_it(who: str) -> None:
    log = Numbered()
    log.fails = True
    log.goes_on.clear()
    bus, graph = cast(Bus, SimpleNamespace(purges=log)), cast(GraphStore, None)
    obstacles, reader = GraphObstacles(bus, graph), PurgeReader(log)
    asking = [asyncio.create_task(reader.read() if who == "a reader" else obstacles.older("shop", 0)) for _ in range(4)]
    await log.begun.wait()
    log.goes_on.set()
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(each) for each in outcomes] == [BusUnavailable] * 4
    assert log.reads <= 2


async def test_a_read_that_is_cancelled_leaves_the_next_one_to_read() -> None:
    log = Numbered()
    reader = PurgeReader(log)
    log.goes_on.clear()
    first, second = (asyncio.create_task(reader.read()) for _ in range(2))
    await log.begun.wait()
    first.cancel()
    log.goes_on.set()
    await put_purge(log, Purge(app_id="shop", needed=NEEDED))
    await second
    assert reader.needed == {"shop": NEEDED}

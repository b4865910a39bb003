"""A Redis that is out of memory: nothing accepted is lost, and archive and trimming make room again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from structlog.testing import capture_logs
from tests.edges.test_cli import Call, call
from tests.kafka.test_archive import Archived, faults
from tests.redis.test_rebuild import RULES
from tests.services.buses import applied
from tests.services.waiting import until

from graphweft import Client
from graphweft.transport import Outgoing
from graphweft_contracts import BusUnavailable, Event, channels
from graphweft_workers.archive.archiver import Archiver
from graphweft_workers.archive.log_gaps import missing_entries
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.ports.position_note import PositionNote

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

APPS = ("shop", "shop_x")
ROOM = 2_000_000
"""Bytes for the log."""
LOAD_EVENTS = int(os.environ.get("GRAPHWEFT_LOAD_EVENTS", "4500"))
LOAD_BYTES = 1_250
"""About the bytes of one event of ``load`` on the bus."""
APPENDED = 50
"""Events of one append of the load."""
FREEING = 100_000
"""Bytes of what is written without room."""
EXPECTED = {"query_error", "skipped", "invalid_event"}
"""Reasons of the dead letters that the events of these tests lead to."""


class Full(Archived):
    """Commands on a bus whose memory is limited."""

    def __init__(self, own: str, call: Call, folder: Path, graph: str) -> None:
        super().__init__(graph, call, folder, bus_url=own)
        self.server: Any = redis.Redis.from_url(own)
        self.emitted = dict.fromkeys(APPS, 0)

    async def aclose(self) -> None:
        await self.server.aclose()
        await super().aclose()

    async def limit(self, room: int | None) -> None:
        used = (await self.server.info("memory"))["used_memory"]
        await self.server.config_set("maxmemory", 0 if room is None else used + room)

    async def memory(self) -> dict[str, int]:
        """Return the bytes of what the server keeps, of the buffers of connections and of its file, and of the log.

        A reply of a megabyte, to a worker that is busy, is in a buffer until it is taken.
        """
        async with self.server.pipeline(transaction=True) as pipeline:  # all at one moment
            pipeline.client_list().info("memory")
            for number in range(2):
                pipeline.memory_usage(channels.events_stream(number), samples=0)
            clients, info, *streams = await pipeline.execute()
        buffers = info["mem_not_counted_for_evict"] + sum(int(each["tot-mem"]) for each in clients)
        return {
            "kept": info["used_memory"] - buffers, "buffers": buffers, "streams": sum(size or 0 for size in streams),
        }  # fmt: skip

    async def fill(self) -> str:
        """Emit until the bus refuses, and return what it says."""
        try:
            while True:
                for name in APPS:
                    await self._append([padded(name, self.emitted[name])])
                    self.emitted[name] += 1
        except BusUnavailable as error:
            return str(error)

    async def append(self, events: Iterable[Event]) -> None:
        await self._append(events)

    async def checks(self) -> dict[str, Any]:
        return {each["check"]: each for each in json.loads((await self.run("doctor", "--json")).out)}

    async def reasons(self) -> set[str]:
        return {letter.reason for letter in await self.bus.dead_letters.read(limit=100_000)}

    @contextlib.asynccontextmanager
    async def archiver(self) -> AsyncIterator[None]:
        async with self.alone(channels.ARCHIVE_GROUP) as bus:
            archiver = Archiver(bus, self.blobs(), name="a", every_s=0.05, trims=True, lease_s=1.0)
            running = asyncio.create_task(archiver.run())
            try:
                yield
            finally:
                archiver.stop()
                await running

    async def check(self, apps: Iterable[str] = APPS) -> None:
        """Compare log, archive and graphs."""
        assert (await self.run("archive", "now")).code == 0
        async with self.alone() as bus:
            assert await faults(self, bus) == []
        for name in apps:
            code, found = await self.rebuild("--app", name, "--verify")
            assert (code, found["same"]) == (0, True), found
            assert found["live"]["nodes"] > 10
        assert await self.reasons() <= EXPECTED


def told(logs: Iterable[Mapping[str, Any]]) -> bool:
    return any("the graph server refuses writes: it is out of memory" in str(each.get("error")) for each in logs)


def padded(app: str, number: int) -> Event:
    """Return a large event. All events of an order are in one chat, so the order of chats has no effect."""
    return Event.create(
        "order.placed", app_id=app, chat_id=f"c{number % 3}", workflow="Shop", id=f"e{number}", source="/test",
        data={"order": f"o{number % 12}", "parts": number % 50, "text": "x" * 4_000}
        | ({} if number % 7 == 0 else {"customer": f"{app}{number % 4}"}),
    )  # fmt: skip


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[str]:
    server = EmbeddedServer(tmp_path / "own")
    await server.start()
    yield f"unix://{server.socket}"
    await server.stop()


@pytest.fixture
async def apart(own: str, url: str, call: Call, tmp_path: Path) -> AsyncIterator[Full]:
    """The bus alone is limited: the graph is on another server."""
    async with contextlib.aclosing(Full(own, call, tmp_path, url)) as app:
        await app.bus.partitions.count()
        await app.push("first")
        yield app


@pytest.fixture
async def together(own: str, call: Call, tmp_path: Path) -> AsyncIterator[Full]:
    """Bus and graph share the server that is limited."""
    async with contextlib.aclosing(Full(own, call, tmp_path, own)) as app:
        await app.bus.partitions.count()
        await app.push("first")
        yield app


async def test_a_full_bus_says_what_to_do_and_does_not_stop_workers(apart: Full) -> None:
    await apart.transport.append([Outgoing(key="shop/c1", fields={b"specversion": b"?"})])
    await apart.limit(ROOM)
    said = await apart.fill()
    for part in ("out of memory", "graphweft archive now", "graphweft trim", "GRAPHWEFT_ARCHIVE_TRIM", "maxmemory"):
        assert part in said
    checks = await apart.checks()
    assert checks["bus memory"]["state"] == "fail"
    assert "graphweft trim" in checks["bus memory"]["advice"]
    (apart.folder / "rules/Shop/graph_injection.yaml").write_text(RULES.replace("BY", "second"))
    done = await apart.run("rules", "push", str(apart.folder / "rules"))
    assert (done.code, "out of memory" in done.err) == (1, True), done.err
    assert json.loads((await apart.run("trim", "--json")).out)["removed"] == 0
    async with apart.worker(), apart.worker():  # they claim partitions, write dead letters and commit
        await apart.applied()
        assert await apart.reasons() == EXPECTED
        assert "out of memory" in await apart.fill()
    done = await apart.run("archive", "now", "--json")
    assert json.loads(done.out)["archived"] >= sum(apart.emitted.values()), done.err
    done = await apart.run("trim", "--json")
    assert json.loads(done.out)["removed"] >= 200, done.err
    before = dict(apart.emitted)
    assert "out of memory" in await apart.fill()
    assert all(apart.emitted[name] > before[name] + 20 for name in APPS)
    async with apart.worker():
        await apart.applied()
    await apart.limit(None)
    await apart.check()


async def test_the_archive_role_makes_room_by_itself(apart: Full) -> None:
    await apart.limit(ROOM)
    assert "out of memory" in await apart.fill()  # before the groups of workers and archivers exist
    count = 400
    async with apart.archiver(), apart.worker(), Client(apart.bus_url) as client:
        start = max(apart.emitted.values())
        events = (padded(name, number) for number in range(start, start + count) for name in APPS)
        assert all(await asyncio.gather(*(client.emit(event, wait_s=120) for event in events)))
        await apart.applied()
        assert client.stats.retries > 0
    async with apart.alone() as bus:
        archived = sum((await missing_entries(bus, range(2))).values())
    assert archived > 1.5 * ROOM / 4_000
    await apart.limit(None)
    await apart.check()


async def test_a_full_server_of_bus_and_graph_buries_nothing(together: Full) -> None:
    async with together.worker(), together.archiver():
        for name in APPS:
            await together.emit(name, range(1_000, 1_040))
        await together.applied()
        await together.limit(ROOM)
        assert "out of memory" in await together.fill()
        done = await together.run("status", "--json")
        assert done.code == 0, done.err
    assert (await together.run("trim")).code == 0
    assert "out of memory" in await together.fill()
    await together.limit(-ROOM // 2)  # the memory of a closed connection is no room
    with capture_logs() as logs:
        async with together.worker():  # the graph has no room, so it waits
            await until(lambda: told(logs))
        status = await together.bus.partitions.status()
        assert any(each.lag or PositionNote.decode(each.note).parked for each in status)
    assert await together.reasons() <= EXPECTED
    await together.limit(None)
    async with together.worker(), together.archiver():
        await together.applied()
    await together.check()


@pytest.mark.long
@pytest.mark.timeout(240 + LOAD_EVENTS // 100)
async def test_a_trimmed_bus_stays_below_its_limit(apart: Full, record_property: Any) -> None:
    total = LOAD_EVENTS
    apps = ("shop", "shop_x", "shop_y")
    room = max(2_500_000, total * LOAD_BYTES // 12)
    await apart.limit(room)
    most = dict.fromkeys(("kept", "buffers", "streams"), 0)
    refused = 0
    ended = asyncio.Event()

    async def sample() -> None:
        while not ended.is_set():
            for name, size in (await apart.memory()).items():
                most[name] = max(most[name], size)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await ended.wait()

    async def talk(name: str) -> None:
        nonlocal refused
        for start in range(0, total // len(apps), APPENDED):
            events = [load(name, number) for number in range(start, min(start + APPENDED, total // len(apps)))]

            async def is_taken(events: Sequence[Any] = events) -> bool:
                nonlocal refused
                try:
                    await apart.append(events)
                except BusUnavailable:
                    refused += 1
                    return False
                return True

            await until(is_taken)

    began = time.monotonic()
    async with apart.archiver(), apart.worker(batch_events=500):
        sampling = asyncio.create_task(sample())
        await asyncio.gather(*map(talk, apps))
        await applied(apart.bus)
        took = time.monotonic() - began
        ended.set()
        await sampling
    maxmemory = int((await apart.server.config_get("maxmemory"))["maxmemory"])
    # Redis refuses what is appended while all of its memory, with the buffers of connections, is above the limit. So
    # what it keeps grows beyond it by the append that was let in last, and by what frees memory: positions, leases and
    # dead letters.
    over = APPENDED * 2 * LOAD_BYTES + FREEING
    assert most["kept"] < maxmemory + over
    assert most["streams"] < room + over
    await apart.limit(None)
    await apart.check(apps)
    written = sum(each.written for each in await apart.bus.partitions.status())
    assert written == total // 3 * 3 + 2  # and an activation for each partition
    found = {
        "events": total, "seconds": round(took, 1), "log_mb": total * LOAD_BYTES / 1e6, "maxmemory_mb": maxmemory / 1e6,
        "refused": refused, **{f"most_{name}_mb": size / 1e6 for name, size in most.items()},
    }  # fmt: skip
    record_property("load", found)
    print(json.dumps(found))


def load(app: str, number: int) -> Event:
    return Event.create(
        "order.placed", app_id=app, chat_id=f"c{number % 30}", workflow="Shop", id=f"e{number}", source="/test",
        data={"order": f"o{number % 210}", "parts": number % 1_999, "text": "x" * 1_000}
        | {"customer": f"{app}{number % 9}"},
    )  # fmt: skip

"""A bus that lost its end goes on behind the archive, and every event takes effect once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from tests.chaos.stack import Worker
from tests.services.commands import inside
from tests.services.older_graphs import Deployment, FalkorDBPlace
from tests.services.waiting import until

from graphweft_contracts import InvalidSettings, channels
from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.archive.joins import join, to_rebuild
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.kafka import driver as kafka
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
APPS = ("shop", "bank")
YEAR_2100_MS = 4_102_444_800_000


class Case(Deployment):
    """A deployment whose bus has a server of its own, with files that can be put back."""

    def __init__(self, folder: Path) -> None:
        self.server = EmbeddedServer(folder / "bus")
        self.kept = folder / "kept"
        self.bus_url = f"unix://{self.server.socket}"
        super().__init__(folder, self.bus_url, FalkorDBPlace(folder / "graph"), APPS, archive=True)
        self.archive = folder / "archive"

    async def keep(self) -> None:
        """Copy the files of the bus as a follower, or a disk that lags, has them."""
        shutil.rmtree(self.kept, ignore_errors=True)
        await asyncio.to_thread(shutil.copytree, self.server.data / "appendonlydir", self.kept)

    async def lose_end(self) -> None:
        """Kill the server of the bus, and start it with the files of ``keep``."""
        assert self.server.process is not None
        self.server.process.kill()
        await self.server.process.wait()
        files = self.server.data / "appendonlydir"
        shutil.rmtree(files)
        shutil.copytree(self.kept, files)
        await self.server.start()

    async def told(self, *words: str) -> str:
        """Run a command that must not fail; return what it says."""
        return str(await asyncio.to_thread(self.command, *words))

    async def examined(self) -> tuple[str, str]:
        """Return what the doctor says of the archive."""
        return (await asyncio.to_thread(self.doctor))["archive"]

    async def stop_worker(self) -> None:
        await self.worker.stop()

    async def mend(self) -> str:
        """Join all partitions as soon as no lease is left."""

        def run() -> Any:
            return inside(["bus", "mend", "all"], self.environment)

        done = await until(
            lambda: asyncio.to_thread(run), lambda found: "stop all workers" not in found.err, why="no lease is left"
        )
        assert done.code == 0, done.err
        return " ".join(done.out.split())

    async def rebuild(self) -> None:
        """Build the graphs again that are named."""
        status = json.loads(await self.told("status", "--json"))
        for app_id in status["archive"]["to_rebuild"]:
            await self.told("rebuild", "--app", app_id, "--swap")
        assert json.loads(await self.told("status", "--json"))["archive"]["to_rebuild"] == []

    async def check(self, scratch: FalkorDBStore) -> None:
        """Look whether log, archive, graphs and dead letters are whole."""
        await self.until_whole()
        await self.told("archive", "now")
        assert "no fault" in await self.told("archive", "verify")
        assert (await self.examined())[0] == "ok"
        await self.check_rebuilt(scratch)
        failed = {(each.app_id, each.offset) for each in await self.letters() if each.mutation == "share"}
        sent = max(self._sent.values())
        assert len(failed) == len(APPS) * len([n for n in range(sent) if n % 9 == 0])


@pytest.fixture
async def case(tmp_path: Path) -> AsyncIterator[Case]:
    deployment = Case(tmp_path)
    await deployment.server.start()
    try:
        async with deployment.running():
            yield deployment
    finally:
        await deployment.server.stop()


@pytest.fixture
async def scratch(url: str) -> AsyncIterator[FalkorDBStore]:
    async with contextlib.aclosing(FalkorDBStore(url)) as store:
        yield store


async def live(case: Case, *, worker: bool = True) -> None:
    """Live, and have a copy of the bus that lacks 60 of the events, which are archived."""
    await case.emit(20)
    await case.until_whole()
    await case.keep()
    if not worker:
        await case.stop_worker()
    await case.emit(30)
    if worker:
        await case.until_whole()
    await case.told("archive", "now")
    await case.lose_end()


@pytest.mark.long("more events", "fewer events")
@pytest.mark.parametrize("more", [0, 6, 60], ids=["no event since", "fewer events", "more events"])
async def test_a_bus_that_lost_its_end_goes_on_behind_the_archive(
    case: Case, scratch: FalkorDBStore, more: int
) -> None:
    await live(case)
    if more:
        await case.emit(more)
        await case.until_whole()
    await case.stop_worker()
    said = await case.mend()
    assert said.count("goes on behind the archive: 30 entries") == 2
    assert said.count(f"{more or 0} entries of the bus follow, with their offsets") == 2
    assert "nothing to mend" in await case.told("bus", "mend", "all") or more
    case.worker.start()
    await case.rebuild()
    await case.emit(10)
    await case.check(scratch)


async def test_a_kind_of_bus_that_cannot_go_on_says_so_before_anything_is_changed(case: Case) -> None:
    await live(case)
    await case.emit(60)
    await case.until_whole()
    await case.stop_worker()
    blobs = open_blobs(str(case.archive))
    before = sorted(await blobs.names(""))
    settings = Settings.load(bus_url=case.bus_url, unknown=[])
    async with (
        contextlib.aclosing(make_bus(settings, group=channels.ARCHIVE_GROUP, archived=False)) as bus,
        contextlib.aclosing(FalkorDBStore(case.bus_url)) as graph,
    ):
        for partition in range(2):
            with pytest.raises(InvalidSettings, match=r"brokers give offsets themselves.* Nothing was changed"):
                await join(bus, blobs, graph, partition, driver=kafka.DRIVER, url="kafka://nowhere")
    assert sorted(await blobs.names("")) == before
    assert await to_rebuild(blobs) == []


@pytest.mark.long
async def test_lost_events_that_no_graph_has_take_effect(case: Case, scratch: FalkorDBStore) -> None:
    await live(case, worker=False)
    case.worker.start()
    await case.emit(10)
    expected = case.expected()

    def have_gone_on(found: dict[tuple[str, str], str]) -> bool:
        return found.keys() == expected.keys() and all(
            trace.endswith(expected[each].split(",")[-2] + ",") for each, trace in found.items()
        )

    await until(case.traces, have_gone_on, why="the new events have taken effect")
    assert await case.traces() != expected, "without the lost ones"
    await case.stop_worker()
    said = await case.mend()
    assert "graphweft rebuild --app shop --swap" in said
    assert (await case.examined())[0] == "warn"
    case.worker.start()
    await case.rebuild()
    await case.check(scratch)


@pytest.mark.long
async def test_lost_events_take_effect_without_a_rebuild_if_nothing_came_later(
    case: Case, scratch: FalkorDBStore
) -> None:
    await live(case, worker=False)
    await case.emit(10)
    assert "rebuild" not in await case.mend()
    case.worker.start()
    await case.check(scratch)


@pytest.mark.long
async def test_a_bus_whose_clock_is_behind_gives_new_offsets(case: Case, scratch: FalkorDBStore) -> None:
    await live(case)
    await case.stop_worker()
    async with redis.Redis.from_url(case.bus_url) as raw:
        streams = [channels.events_stream(number) for number in range(2)]
        before = [await raw.dump(stream) for stream in streams]
        await case.emit(10)
        for stream, dump in zip(streams, before, strict=True):  # as a server would number them whose clock is behind
            new = (await raw.xrange(stream))[-10:]
            await raw.restore(stream, 0, dump, replace=True)
            milliseconds, _, sequence = (await raw.xinfo_stream(stream))["last-generated-id"].decode().partition("-")
            for at, (_, fields) in enumerate(new, int(sequence) + 1):
                await raw.xadd(stream, fields, id=f"{milliseconds}-{at}")
    said = await case.mend()
    assert said.count("10 entries of the bus follow, with new offsets") == 2
    case.worker.start()
    await case.rebuild()
    await case.emit(10)
    await case.check(scratch)


@pytest.mark.long("kills1")
@pytest.mark.soak("kills3", "kills4")
@pytest.mark.parametrize("kill", range(4), ids=["kills1", "kills2", "kills3", "kills4"])
async def test_a_join_that_is_killed_goes_on(case: Case, scratch: FalkorDBStore, kill: int) -> None:
    await live(case)
    await case.emit(40)
    await case.until_whole()
    await case.stop_worker()
    async with redis.Redis.from_url(case.bus_url) as raw:
        await until(lambda: raw.exists(*map(channels.lease, range(2))), lambda found: not found, why="no lease is left")
    records = case.archive / "joins"
    for each in range(kill + 1):
        command = [sys.executable, "-P", "-m", "graphweft_workers.cli", "bus", "mend", "all"]
        process = await asyncio.create_subprocess_exec(
            *command, env=case.environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        await until(partial(has_come, process, records, each), why="the command has come so far")
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()
    await case.mend()
    case.worker.start()
    await case.rebuild()
    case.worker.kill()
    case.worker.start()
    await case.emit(20)
    await case.check(scratch)


def has_come(process: asyncio.subprocess.Process, records: Path, turn: int) -> bool:
    """Tell whether the command has joined so many partitions, of two, or has ended."""
    joined = len(os.listdir(records)) if records.exists() else 0
    return joined >= min(turn, 2) or process.returncode is not None


@pytest.mark.long
async def test_a_bus_that_was_emptied_goes_on(case: Case, scratch: FalkorDBStore) -> None:
    await case.emit(20)
    await case.until_whole()
    await case.told("archive", "now")
    await case.stop_worker()
    async with redis.Redis.from_url(case.bus_url) as raw:
        await raw.flushall()
    await case.emit(10)
    said = await case.mend()
    assert "1 activation of rules again" in said
    assert said.count("10 entries of the bus follow") == 2
    case.worker.start()
    await case.rebuild()
    await case.emit(10)
    await case.check(scratch)


@pytest.mark.long
async def test_a_partition_that_somebody_reads_is_left_as_it_is(case: Case) -> None:
    await live(case)
    await until(
        lambda: asyncio.to_thread(inside, ["bus", "mend", "all"], case.environment),
        lambda done: done.code != 0 and "'w' reads partition" in done.err,
        why="the worker reads again, and the command refuses",
    )


@pytest.mark.long("the worker")
@pytest.mark.parametrize("first", ["events", "the worker"])
async def test_a_worker_gives_an_emptied_bus_its_rules_back(case: Case, first: str) -> None:
    await case.emit(20)
    await case.until_whole()
    await case.told("archive", "now")  # else the apps wait, because the log lacks what their graphs hold
    async with redis.Redis.from_url(case.bus_url) as raw:
        await raw.flushall()
    if first == "events":
        await case.emit(10)
    await until(case.events, lambda found: "rules_activated_again" in found, why="the worker has noticed it")
    await case.emit(10)
    await case.until_whole()
    assert "no_rules" not in {each.reason for each in await case.letters()}
    async with contextlib.aclosing(case.bus()) as bus:
        assert [each.number for each in await bus.rules.activations()] == [1]


@pytest.mark.long
async def test_apps_whose_partitions_lie_ahead_of_the_clock_move_to_another_bus(case: Case) -> None:
    await case.emit(20)
    async with redis.Redis.from_url(case.bus_url) as raw:
        for number in range(2):
            await raw.xadd(channels.events_stream(number), {"a": "b"}, id=f"{YEAR_2100_MS}-0")
        await case.emit(10)
        await case.until_whole()
        assert "ahead of the server's clock" in await case.told("status", "--json")
        await case.told("archive", "now")
        for app_id in APPS:
            await case.told("export", "--app", app_id, str(case.archive.parent / f"{app_id}.tar"))
        await case.stop_worker()
        await raw.flushall()
    await case.place.empty()
    case.environment["GRAPHWEFT_ARCHIVE_URL"] = str(case.archive.parent / "another")
    case.worker = Worker("w", case.environment, case.log)
    case.worker.start()
    for app_id in APPS:
        await case.told("restore", str(case.archive.parent / f"{app_id}.tar"))
    await case.emit(10)
    expected = case.expected()
    await until(case.traces, lambda found: found == expected, why="the new events follow the restored ones")
    assert "ahead of the server's clock" not in await case.told("status", "--json")

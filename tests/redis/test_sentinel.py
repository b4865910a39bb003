"""A bus, and a graph server, behind Sentinel: the master is killed under load, and the replica takes over."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.services.older_graphs import Deployment, FalkorDBPlace, ids
from tests.services.redis_servers import SentinelGroup
from tests.services.waiting import until, until_answered, until_sync

from graphweft.transport import Outgoing
from graphweft.transports.registry import make_transport
from graphweft_contracts import BusUnavailable, Layout
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.ports.event_log import CommittedPosition

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
APPS = ("shop", "bank")


class GraphGroup:
    """``GraphPlace`` on a graph server behind Sentinel."""

    def __init__(self, folder: Path) -> None:
        self.group = SentinelGroup(folder, graphs=True)
        self.url = self.group.url
        self.data = folder

    async def start(self) -> None:
        await asyncio.to_thread(self.group.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self.group.kill)

    async def empty(self) -> None:
        raise NotImplementedError

    def store(self) -> FalkorDBStore:
        return FalkorDBStore(self.url)


@pytest.fixture
async def scratch(url: str) -> AsyncIterator[FalkorDBStore]:
    async with contextlib.aclosing(FalkorDBStore(url)) as store:
        yield store


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[SentinelGroup]:
    running = SentinelGroup(tmp_path / "bus")
    try:
        await asyncio.to_thread(running.start)
        yield running
    finally:
        running.kill()


async def emit(deployment: Deployment, count: int) -> None:
    """Send events until the bus has them, as clients do: the same ones again after each error."""
    before = dict(deployment._sent)
    while True:
        try:
            return await deployment.emit(count)
        except BusUnavailable:
            deployment._sent = dict(before)


async def fail_over(group: SentinelGroup) -> None:
    """Kill the master, and return when the replica is the master and the old one follows it."""
    master, replica = group.servers
    await asyncio.to_thread(master.kill)
    await asyncio.to_thread(replica.resume)
    await asyncio.to_thread(group.until_master, replica)
    await asyncio.to_thread(master.start)  # the Sentinels make it a replica


async def rebuild(deployment: Deployment, app_id: str) -> None:
    await asyncio.to_thread(deployment.command, "rebuild", "--app", app_id, "--swap")


def outgoing(name: str) -> Outgoing:
    return Outgoing(key="k", fields={b"data": name.encode()})


async def test_what_a_replica_lacks_is_neither_accepted_nor_applied(group: SentinelGroup) -> None:
    waiting, plain = f"{group.url}?wait_replicas=1", group.url
    new = Layout(partitions=1, order="app")
    async with (
        contextlib.aclosing(make_transport(waiting, new=new)) as careful,
        contextlib.aclosing(make_transport(plain, new=new)) as careless,
        contextlib.aclosing(redis_bus(waiting, new=new)) as bus,
    ):
        await careful.append([outgoing("first"), outgoing("second")])
        assert await bus.partitions.committed(0) == CommittedPosition()
        assert await bus.leases.claim(0, "w", 3600.0)
        found = (await bus.log.read(0, CommittedPosition(), limit=9)).entries
        assert [each.fields for each in found] == [outgoing(name).fields for name in ("first", "second")]
        await asyncio.to_thread(group.cut)
        await careless.append([outgoing("lost")])
        with pytest.raises(BusUnavailable, match="0 of 1 replicas have it"):
            await careful.append([outgoing("third")])
        with pytest.raises(BusUnavailable, match="0 of 1 replicas have it"):
            await bus.log.read(0, CommittedPosition(), limit=9)
        await fail_over(group)
        third = [outgoing("third")]
        await until_answered(lambda: careful.append(third), BusUnavailable, why="the new master has a replica")
        found = await until_answered(
            lambda: bus.log.read(0, CommittedPosition(), limit=9), BusUnavailable, why="a worker reads what both have"
        )
        names = [each.fields[b"data"].decode() for each in found.entries]
        assert names[:3] == ["first", "second", "third"]
        assert set(names[3:]) <= {"third"}, "what was not accepted may be there, as a copy"


@pytest.mark.soak
async def test_a_killed_master_loses_nothing_that_a_replica_has(
    group: SentinelGroup, scratch: FalkorDBStore, tmp_path: Path
) -> None:
    url = f"{group.url}?wait_replicas=1"
    deployment = Deployment(tmp_path / "own", url, FalkorDBPlace(tmp_path / "graph"), APPS, archive=False)
    async with deployment.running():
        await emit(deployment, 40)
        await deployment.until_whole()
        failing = asyncio.create_task(fail_over(group))
        while not failing.done():
            await emit(deployment, 4)
        await failing
        await emit(deployment, 40)
        await deployment.until_whole()
        await deployment.check_rebuilt(scratch)
        assert {each.reason for each in await deployment.letters()} == {"query_error", "skipped"}


@pytest.mark.soak
async def test_graphs_ahead_of_the_new_master_wait_for_a_rebuild(
    group: SentinelGroup, scratch: FalkorDBStore, tmp_path: Path
) -> None:
    deployment = Deployment(tmp_path / "own", group.url, FalkorDBPlace(tmp_path / "graph"), APPS, archive=False)
    async with deployment.running():
        await emit(deployment, 40)
        await deployment.until_whole()
        await asyncio.to_thread(until_sync, group.follows, why="the replica has all of it")
        kept = deployment.expected()
        await asyncio.to_thread(group.cut)
        await emit(deployment, 20)
        await deployment.until_whole()
        before = await deployment.traces()
        await fail_over(group)
        await emit(deployment, 20)
        log = {
            place: trace + whole.removeprefix(before[place])
            for (place, trace), whole in zip(kept.items(), deployment.expected().values(), strict=True)
        }

        async def waits() -> set[str]:
            said = await asyncio.to_thread(deployment.command, "status", "--json")
            return {each["app_id"] for each in json.loads(said)["parked"] if each["why"] == "needs_rebuild"}

        await until(waits, lambda found: found == set(APPS), why=f"the apps wait, see {deployment.log}")
        assert await deployment.traces() == before, "nothing came behind what the log has lost"
        for app_id in APPS:
            await rebuild(deployment, app_id)
        await until(deployment.traces, lambda found: found == log, why=f"the graphs are the log, see {deployment.log}")
        await deployment.check_rebuilt(scratch)


@pytest.mark.soak
async def test_a_graph_server_that_failed_over_gets_again_what_it_lacks(
    url: str, scratch: FalkorDBStore, tmp_path: Path
) -> None:
    place = GraphGroup(tmp_path / "graph")
    bus_server = EmbeddedServer(tmp_path / "bus")
    await bus_server.start()
    try:
        deployment = Deployment(tmp_path / "own", f"unix://{bus_server.socket}", place, APPS, archive=False)
        async with deployment.running():
            await emit(deployment, 60)
            await deployment.until_whole()
            await asyncio.to_thread(until_sync, place.group.follows, why="the replica has all of it")
            await asyncio.to_thread(place.group.cut)
            await emit(deployment, 60)
            await deployment.until_whole()
            letters = ids(await deployment.letters())
            await fail_over(place.group)
            await deployment.until_whole()
            assert ids(await deployment.letters()) == letters
            assert "graph_is_behind" in deployment.events()
            await emit(deployment, 20)
            await deployment.until_whole()
            await deployment.check_rebuilt(scratch)
    finally:
        await bus_server.stop()

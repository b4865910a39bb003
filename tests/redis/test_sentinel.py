"""A bus, and a graph server, behind Sentinel: the master is killed under load, and the replica takes over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.services.commands import inside
from tests.services.environment import clean_environment
from tests.services.older_graphs import Deployment, ids
from tests.services.redis_servers import SentinelGroup
from tests.services.rules import rules_of_parts
from tests.services.waiting import until, until_answered, until_sync
from tests.services.workers import working

from graphweft.transport import Outgoing, Transport
from graphweft.transports.registry import make_transport
from graphweft_contracts import BusUnavailable, Event, Layout, wire
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.log.position_note import PositionNote
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.wiring.rules import push

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


async def send(transport: Transport, first: int, count: int) -> None:
    """Send events until the bus has them, as clients do: the same ones again after each error."""
    events = [
        Event.create("note.made", app_id="shop", chat_id="c", workflow="W", id=f"e{number}", data={"v": f"n{number},"})
        for number in range(first, first + count)
    ]
    sent = [Outgoing(key=event.key, fields=wire.encode(event)) for event in events]
    await until_answered(lambda: transport.append(sent), BusUnavailable, why="the bus takes events")


async def trace(graph: GraphStore) -> str:
    found = await graph.read("shop", "MATCH (n:Log) RETURN n.trace", {}, timeout_s=60)
    return str(found.rows[0][0]) if found.rows else ""


async def log_of(bus: Bus) -> str:
    """Return what a pass over the log makes of it: each event once, in order."""
    entries = await until_answered(lambda: bus.log.after(0, "", limit=10_000), BusUnavailable, why="the log is read")
    texts = [wire.decode(each.fields).data["v"] for each in entries if wire.ACTIVATION not in each.fields]
    return "".join(dict.fromkeys(texts))


async def why(bus: Bus) -> dict[str, str]:
    """Return why apps wait."""
    [partition] = await until_answered(bus.partitions.status, BusUnavailable, why="the bus answers")
    return {app: each.why for app, each in PositionNote.decode(partition.note).parked.items()}


@pytest.mark.soak
@pytest.mark.parametrize("query", ["?wait_replicas=1", ""], ids=["waits for replicas", "does not wait"])
async def test_a_graph_is_that_of_the_log_which_survived_the_master(
    group: SentinelGroup, graph: FalkorDBStore, url: str, tmp_path: Path, query: str
) -> None:
    (tmp_path / "rules").mkdir()
    rules = rules_of_parts(
        tmp_path / "rules", {"log": "MERGE (n:Log {id: 1}) SET n.trace = coalesce(n.trace, '') + $v"}
    )
    address, new = f"{group.url}{query}", Layout(partitions=1, order="app")
    async with (
        contextlib.aclosing(make_transport(address, new=new)) as transport,
        contextlib.aclosing(redis_bus(address, new=new)) as bus,
        contextlib.aclosing(redis_bus(address, new=new)) as looking,
    ):
        await push(bus, rules, "*")
        async with working(bus, graph, rules):
            await send(transport, 0, 40)
            first = await log_of(looking)
            await until(lambda: trace(graph), lambda found: found == first, why="the first events are applied")
            await asyncio.to_thread(until_sync, group.follows, why="the replica has all of it")
            await asyncio.to_thread(group.cut)
            sending = asyncio.create_task(send(transport, 40, 20))
            ahead = first
            if not query:  # what only the master has takes effect
                await sending
                ahead = await log_of(looking)
                await until(lambda: trace(graph), lambda found: found == ahead, why="lost events are applied")
            await fail_over(group)
            await sending
            await send(transport, 60, 20)
            survived = await log_of(looking)
            if query:
                assert survived == "".join(f"n{number}," for number in range(80)), "what was accepted is there"
            else:
                assert survived == first + "".join(f"n{number}," for number in range(60, 80))
                await until(lambda: why(looking), lambda found: found == {"shop": "needs_rebuild"}, why="the app waits")
                assert await trace(graph) == ahead, "nothing came behind what the log has lost"
                environment = clean_environment() | {"GRAPHWEFT_BUS_URL": address, "GRAPHWEFT_GRAPH_URL": url}
                environment["GRAPHWEFT_RULES"] = str(tmp_path / "rules")
                words = ["rebuild", "--app", "shop", "--swap"]
                done = await asyncio.to_thread(inside, words, environment, folder=tmp_path)
                assert done.code == 0, done.err
            await until(lambda: trace(graph), lambda found: found == survived, why="the graph is that of the log")
            assert not await why(looking)


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

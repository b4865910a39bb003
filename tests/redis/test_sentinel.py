"""A bus, and a graph server, behind Sentinel: the master is killed under load, and the replica takes over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.services.commands import inside
from tests.services.environment import clean_environment
from tests.services.fixtures import Logs, events_of
from tests.services.maven import free_port
from tests.services.redis_servers import SERVICE, SentinelGroup
from tests.services.rules import rules_of_parts
from tests.services.waiting import until, until_answered, until_sync
from tests.services.workers import working

from graphweft.transport import Outgoing, Transport
from graphweft.transports.registry import make_transport
from graphweft_contracts import BusUnavailable, Event, GraphUnavailable, Layout, wire
from graphweft_workers.drivers import bus_driver, graph_driver
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.wiring.rules import push

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
NEW = Layout(partitions=1, order="app")
_LOG = "MERGE (n:Log {id: 1}) SET n.trace = coalesce(n.trace, '') + $v"


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[SentinelGroup]:
    running = SentinelGroup(tmp_path / "bus")
    try:
        await asyncio.to_thread(running.start)
        yield running
    finally:
        running.kill()


async def fail_over(group: SentinelGroup) -> None:
    """Kill the master, and return when the replica is the master and the old one follows it."""
    master, replica = group.servers
    await asyncio.to_thread(master.kill)
    await asyncio.to_thread(replica.resume)
    await asyncio.to_thread(group.until_master, replica)
    await asyncio.to_thread(master.start)  # the Sentinels make it a replica


def outgoing(name: str) -> Outgoing:
    return Outgoing(key="k", fields={b"data": name.encode()})


async def test_a_url_that_reaches_no_master_says_what_is_wrong(group: SentinelGroup) -> None:
    servers = ",".join(each.url.partition("//")[2] for each in group.servers)
    nobody = f"127.0.0.1:{free_port()}"
    said = {
        f"redis+sentinel://{nobody}/{SERVICE}": f"no Sentinel answers: {nobody}: Error 111 connecting",
        f"redis+sentinel://{servers}/{SERVICE}": "this address is of a Redis server, not of a Sentinel",
        group.url.replace(SERVICE, "mymaster"): f"must be that of `sentinel monitor`; known: '{SERVICE}'",
    }
    for url, text in said.items():
        of_bus = await bus_driver(url).examine(url, "", new=NEW, asked=())
        for check in (*of_bus, *await graph_driver(url).examine(url, "")):
            assert text in check.found
            assert "object at" not in check.found
    mixed = group.url.replace("//", f"//{nobody},{servers},")
    assert (await bus_driver(mixed).examine(mixed, "", new=NEW, asked=()))[0].state == "ok"


async def test_a_master_without_the_replicas_that_events_wait_for_is_a_finding(group: SentinelGroup) -> None:
    async def replicas(waits: int) -> list[tuple[str, str]]:
        url = f"{group.url}?wait_replicas={waits}"
        checks = await bus_driver(url).examine(url, "", new=NEW, asked=())
        return [(each.state, each.found) for each in checks if each.name == "bus replicas"]

    assert await replicas(0) == []
    assert await replicas(1) == [("ok", "1 replica follows the server, and each event waits for 1")]
    assert await replicas(2) == [
        ("fail", "1 replica follows the server, but wait_replicas=2 is in the URL: no event is accepted")
    ]


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
    """Return the events of which the graph holds effects, in order; nothing while its server does not answer."""
    with contextlib.suppress(GraphUnavailable):
        found = await graph.read("shop", "MATCH (n:Log) RETURN n.trace", {}, timeout_s=60)
        return str(found.rows[0][0]) if found.rows else ""
    return ""


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
    rules = rules_of_parts(tmp_path / "rules", {"log": _LOG})
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
async def test_a_graph_server_that_failed_over_gets_again_what_it_lacks(url: str, tmp_path: Path, logs: Logs) -> None:
    (tmp_path / "rules").mkdir()
    rules = rules_of_parts(tmp_path / "rules", {"log": _LOG})
    new = Layout(partitions=1, order="app")
    group = SentinelGroup(tmp_path / "graphs", graphs=True)
    try:
        await asyncio.to_thread(group.start)
        async with (
            contextlib.aclosing(make_transport(url, new=new)) as transport,
            contextlib.aclosing(redis_bus(url, new=new)) as bus,
            contextlib.aclosing(FalkorDBStore(group.url)) as graph,
            contextlib.aclosing(FalkorDBStore(group.url)) as looking,
        ):
            await push(bus, rules, "*")
            async with working(bus, graph, rules):
                await send(transport, 0, 40)
                first = await log_of(bus)
                await until(lambda: trace(looking), lambda found: found == first, why="the first events are applied")
                await asyncio.to_thread(until_sync, group.follows, why="the replica has all of it")
                await asyncio.to_thread(group.cut)
                await send(transport, 40, 40)
                second = await log_of(bus)
                await until(lambda: trace(looking), lambda found: found == second, why="more events are applied")
                await until(bus.partitions.status, lambda found: not found[0].lag, why="and the bus knows it")
                await fail_over(group)
                await until(lambda: trace(looking), lambda found: found == second, why="what was lost is applied again")
                await send(transport, 80, 20)
                whole = await log_of(bus)
                await until(lambda: trace(looking), lambda found: found == whole, why="new events are applied")
                assert "graph_is_behind" in events_of(logs)
    finally:
        group.kill()

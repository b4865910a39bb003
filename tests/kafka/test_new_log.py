"""A Kafka log that begins anew under graphs of the old one: its events do not count as applied, and work goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.services.buses import why_apps_wait
from tests.services.commands import inside
from tests.services.environment import clean_environment
from tests.services.fixtures import empty_kafka
from tests.services.kafka import KafkaServer
from tests.services.rules import rules_of_parts
from tests.services.waiting import until
from tests.services.workers import working

from graphweft.transport import Outgoing
from graphweft.transports.kafka.transport import KafkaTransport
from graphweft_contracts import Event, GraphUnavailable, Layout, wire
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.kafka.bus import kafka_bus
from graphweft_workers.ports.bus import Bus
from graphweft_workers.wiring.rules import push

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
APP = "shop"
LAYOUT = Layout(partitions=1, order="app")


@pytest.fixture
async def bus(kafka_url: str) -> AsyncIterator[Bus]:
    async with contextlib.aclosing(kafka_bus(kafka_url, new=LAYOUT)) as opened:
        await opened.partitions.count()
        yield opened


@pytest.fixture
async def graph(url: str) -> AsyncIterator[FalkorDBStore]:
    async with contextlib.aclosing(FalkorDBStore(url)) as opened:
        yield opened


@pytest.fixture
def rules(tmp_path: Path) -> RuleSet:
    return rules_of_parts(tmp_path, {"note": "MERGE (n:Note {id: $v})"})


async def send(kafka_url: str, numbers: Sequence[int]) -> None:
    made = [
        Event.create("note.made", app_id=APP, chat_id="c", workflow="W", id=f"e{n}", data={"v": n}) for n in numbers
    ]
    async with contextlib.aclosing(KafkaTransport(kafka_url, new=LAYOUT)) as transport:
        await transport.append([Outgoing(key=event.key, fields=wire.encode(event)) for event in made])


async def notes(graph: FalkorDBStore) -> list[int]:
    with contextlib.suppress(GraphUnavailable):
        found = await graph.read(APP, "MATCH (n:Note) RETURN n.id ORDER BY n.id", {}, timeout_s=20)
        return [row[0] for row in found.rows]
    return []


async def test_events_of_a_new_log_do_not_count_as_applied(
    kafka: KafkaServer, kafka_url: str, url: str, graph: FalkorDBStore, rules: RuleSet, tmp_path: Path
) -> None:
    async with contextlib.aclosing(kafka_bus(kafka_url, new=LAYOUT)) as bus:
        await send(kafka_url, range(5))
        async with working(bus, graph, rules):
            await until(lambda: notes(graph), lambda found: found == [*range(5)], why="the events are applied")
    await empty_kafka(kafka)
    async with contextlib.aclosing(kafka_bus(kafka_url, new=LAYOUT)) as bus:
        await push(bus, rules, "*")
        await send(kafka_url, range(10, 20))  # more than the old log had
        async with working(bus, graph, rules):
            await until(lambda: why_apps_wait(bus), lambda found: found == {APP: "needs_rebuild"}, why="the app waits")
            assert await notes(graph) == [*range(5)]
            [letter] = await bus.dead_letters.read(limit=10)
            assert (letter.reason, letter.position, letter.count) == ("trimmed", "0:4", 5), "the new log is longer"
            environment = clean_environment() | {"GRAPHWEFT_BUS_URL": kafka_url, "GRAPHWEFT_GRAPH_URL": url}
            environment["GRAPHWEFT_RULES"] = str(tmp_path)
            rebuild = ["rebuild", "--app", APP, "--swap"]
            done = await asyncio.to_thread(inside, rebuild, environment, folder=tmp_path)
            assert (done.code, "lack 5 with the label Note" in done.err) == (2, True), done
            done = await asyncio.to_thread(inside, [*rebuild, "--accept-losses"], environment, folder=tmp_path)
            assert done.code == 0, done.err
            await send(kafka_url, [20])
            await until(lambda: notes(graph), lambda found: found == [*range(10, 21)], why="the graph is of the log")
            await until(lambda: why_apps_wait(bus), lambda found: not found, why="no app waits")


async def test_a_worker_goes_on_when_all_topics_were_lost(
    kafka: KafkaServer, kafka_url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet
) -> None:
    await send(kafka_url, range(5))
    async with working(bus, graph, rules):
        await until(lambda: notes(graph), lambda found: found == [*range(5)], why="the events are applied")
        await empty_kafka(kafka)
        await until(lambda: why_apps_wait(bus), lambda found: not found, why="the worker has made the topics again")
        await send(kafka_url, [30])
        await until(
            lambda: why_apps_wait(bus),
            lambda found: found == {APP: "needs_rebuild"},
            why="the worker reads the new log",
        )
        assert [(each.reason, each.position) for each in await bus.dead_letters.read(limit=10)] == [("trimmed", "0:4")]

"""Three brokers: one is killed under load and comes back, two are gone, and reads go to the replica in the own rack."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from tests.services.kafka import KafkaCluster
from tests.services.older_graphs import Deployment, FalkorDBPlace
from tests.services.waiting import until

from graphweft.transports.kafka.connection import servers
from graphweft_contracts import BusUnavailable, channels
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.kafka.doctor import _settings_of
from graphweft_workers.drivers.kafka.reader import RangeReader

pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(400)]
_COPIES = "?replication_factor=3&min_insync_replicas=2"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KafkaCluster]:
    running = KafkaCluster(tmp_path_factory.mktemp("brokers"))
    try:
        await asyncio.to_thread(running.start)
        yield running
    finally:
        running.kill()


@pytest.fixture
async def scratch(url: str) -> AsyncIterator[FalkorDBStore]:
    async with contextlib.aclosing(FalkorDBStore(url)) as store:
        yield store


async def emit(deployment: Deployment, count: int) -> None:
    """Send events until the bus has them, as clients do: the same ones again after each error."""
    before = dict(deployment._sent)
    while True:
        try:
            return await deployment.emit(count)
        except BusUnavailable:
            deployment._sent = dict(before)


async def leader_of(url: str) -> int:
    """Return the number of the broker that leads the first partition of events."""
    described = await topic(url)
    return int(described["partitions"][0]["leader"])


async def topic(url: str) -> Any:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers(url).bootstrap)
    await admin.start()
    try:
        return next(each for each in await admin.describe_topics() if each["topic"] == channels.EVENTS_TOPIC)
    finally:
        await admin.close()


async def test_a_killed_broker_loses_and_doubles_nothing(
    cluster: KafkaCluster, scratch: FalkorDBStore, tmp_path: Path
) -> None:
    url = cluster.url + _COPIES
    deployment = Deployment(tmp_path, url, FalkorDBPlace(tmp_path / "graph"), ("shop", "bank"), archive=False)
    async with deployment.running():
        await emit(deployment, 40)
        await deployment.until_whole()
        broker = cluster.brokers[await leader_of(url) - 1]
        killing = asyncio.create_task(asyncio.to_thread(broker.kill))
        for _ in range(12):
            await emit(deployment, 10)
        await killing
        await deployment.until_whole()  # with two of three
        starting = asyncio.create_task(asyncio.to_thread(broker.start))
        for _ in range(6):
            await emit(deployment, 10)
        await starting
        await deployment.until_whole()
        await deployment.check_rebuilt(scratch)

        async def has_all_copies() -> bool:
            return all(len(each["isr"]) == 3 for each in (await topic(url))["partitions"])

        await until(has_all_copies, why="the broker that came back has all copies")
        assert (await asyncio.to_thread(deployment.doctor))["bus disk"] == ("ok", "3 copies of each event")
        assert {each.reason for each in await deployment.letters()} == {"query_error", "skipped"}


async def test_without_a_majority_of_brokers_it_is_an_outage(
    cluster: KafkaCluster, scratch: FalkorDBStore, tmp_path: Path
) -> None:
    url = cluster.url + _COPIES
    deployment = Deployment(tmp_path, url, FalkorDBPlace(tmp_path / "graph"), ("desk", "till"), archive=False)
    async with deployment.running():
        await emit(deployment, 40)
        await deployment.until_whole()
        letters = len(await deployment.letters())
        gone = cluster.brokers[:2]
        for each in gone:
            await asyncio.to_thread(each.kill)
        before = dict(deployment._sent)
        refused: list[BusUnavailable] = []
        for _ in range(8):  # a broker may not know yet that the others are gone
            try:
                await deployment.emit(4)
            except BusUnavailable as error:
                refused.append(error)
                deployment._sent = before
                break
            before = dict(deployment._sent)
        assert refused, "a minority of the copies is not enough"
        assert deployment.worker.running
        await asyncio.gather(*(asyncio.to_thread(each.start) for each in gone))
        await emit(deployment, 40)
        await deployment.until_whole()
        assert deployment.worker.running
        await deployment.check_rebuilt(scratch)
        found = await deployment.letters()
        assert {each.reason for each in found} == {"query_error", "skipped"}
        assert len(found) > letters


async def test_a_topic_gets_the_copies_of_the_url(cluster: KafkaCluster) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers(cluster.url).bootstrap)
    await admin.start()
    try:
        described = {each["topic"]: each["partitions"] for each in await admin.describe_topics()}
        ours = [name for name in described if name.startswith("graphweft.")]
        assert ours
        for name in ours:
            assert {len(part["replicas"]) for part in described[name]} == {3}
            assert (await _settings_of(admin, name))["min.insync.replicas"] == "2"
    finally:
        await admin.close()


async def test_a_reader_reads_from_the_replica_in_its_rack(cluster: KafkaCluster) -> None:
    leader = await leader_of(cluster.url)
    near = leader % 3 + 1
    reader = RangeReader(servers(f"{cluster.url}?client_rack=rack-{near}"))
    partition = TopicPartition(channels.EVENTS_TOPIC, 0)
    try:
        first, end = (await reader.bounds([partition]))[partition]
        assert end > first
        found = await reader.read(partition, first, end)
        offsets = [each.offset for each in found]
        assert offsets == sorted(set(offsets))
        assert len(offsets) > (end - first) / 2, "the rest are marks of transactions"
        assert reader._consumer._fetcher._select_read_replica(partition) == near
    finally:
        await reader.aclose()

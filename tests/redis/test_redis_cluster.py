"""A Redis Cluster is refused at once, with what to use instead: scripts and transactions have keys of several slots."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.services.environment import clean_environment
from tests.services.redis_servers import RedisCluster

from graphweft.transport import Outgoing
from graphweft.transports.registry import make_transport
from graphweft_contracts import BusUnavailable, InvalidSettings
from graphweft_workers.drivers import bus_driver, graph_driver
from graphweft_workers.drivers.redis.bus import redis_bus

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
_INSTEAD = r"does not run on a Redis Cluster.*redis\+sentinel://host:26379/mymaster.*or Kafka"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RedisCluster]:
    running = RedisCluster(tmp_path_factory.mktemp("cluster"))
    try:
        await asyncio.to_thread(running.start)
        yield running
    finally:
        running.kill()


@pytest.mark.parametrize("url", ["redis+cluster://one:7000,two:7000", "rediss+cluster://one"])
def test_the_url_of_a_cluster_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match=_INSTEAD):
        make_transport(url)
    for driver in (bus_driver(url), graph_driver(url)):
        with pytest.raises(ValueError, match=_INSTEAD):
            driver.check_url(url)


async def test_a_node_of_a_cluster_is_refused_by_workers(cluster: RedisCluster) -> None:
    for node in cluster.nodes:
        async with contextlib.aclosing(redis_bus(node.url)) as bus:
            with pytest.raises(InvalidSettings, match=_INSTEAD):
                await bus.partitions.count()


async def test_clients_say_what_is_wrong_with_a_cluster(cluster: RedisCluster) -> None:
    for node in cluster.nodes:
        async with contextlib.aclosing(make_transport(node.url)) as transport:
            with pytest.raises(BusUnavailable, match=_INSTEAD):
                await transport.append([Outgoing(key="k", fields={b"data": b"{}"})])


async def test_commands_end_at_once_on_a_cluster(cluster: RedisCluster, url: str, tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    environment = clean_environment() | {
        "GRAPHWEFT_BUS_URL": cluster.nodes[0].url,
        "GRAPHWEFT_GRAPH_URL": url,
        "GRAPHWEFT_RULES": str(tmp_path / "rules"),
        "GRAPHWEFT_EMBEDDER": "hash:32",
    }
    for words in (("run", "mutation"), ("run", "memory"), ("doctor",)):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "graphweft_workers.cli", *words],
            env=environment, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode, (words, said)
        assert "does not run on a Redis Cluster" in said, (words, said)
        assert "Traceback" not in said, (words, said)

"""One real embedded server for the whole session; every test finds it empty."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
import redis.asyncio as redis

from graphweft.drivers import make_transport
from graphweft.transport import Transport
from graphweft_workers.bus.redis_streams import RedisStreamsBus
from graphweft_workers.embedded import EmbeddedServer
from graphweft_workers.graph.falkordb import FalkorDBStore


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server() -> AsyncIterator[EmbeddedServer]:
    with tempfile.TemporaryDirectory(prefix="graphweft-test-") as folder:
        running = EmbeddedServer(Path(folder))
        await running.start()
        try:
            yield running
        finally:
            await running.stop()


@pytest_asyncio.fixture
async def url(server: EmbeddedServer) -> str:
    address = f"unix://{server.socket}"
    client = redis.Redis.from_url(address)
    await client.flushall()
    await client.aclose()
    return address


@pytest_asyncio.fixture
async def bus(url: str) -> AsyncIterator[RedisStreamsBus]:
    driver = RedisStreamsBus(url, partitions=2)
    yield driver
    await driver.aclose()


@pytest_asyncio.fixture
async def transport(url: str) -> AsyncIterator[Transport]:
    made = make_transport(url, partitions=2)
    yield made
    await made.aclose()


@pytest_asyncio.fixture
async def graph(url: str) -> AsyncIterator[FalkorDBStore]:
    driver = FalkorDBStore(url, write_timeout_ms=500)
    yield driver
    await driver.aclose()

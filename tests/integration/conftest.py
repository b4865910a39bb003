"""One real embedded server for the whole session; every test finds it empty."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
import redis.asyncio as redis
from tests.services.layouts import spread

from graphweft.transport import Transport
from graphweft.transports.registry import make_transport
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.event_log import RedisEventLog


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
async def bus(url: str) -> AsyncIterator[RedisEventLog]:
    driver = RedisEventLog(url, new=spread(2))
    yield driver
    await driver.aclose()


@pytest_asyncio.fixture
async def transport(url: str) -> AsyncIterator[Transport]:
    made = make_transport(url, new=spread(2))
    yield made
    await made.aclose()


@pytest_asyncio.fixture
async def graph(url: str) -> AsyncIterator[FalkorDBStore]:
    driver = FalkorDBStore(url, write_timeout_ms=500)
    yield driver
    await driver.aclose()

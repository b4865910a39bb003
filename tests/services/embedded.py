"""One real embedded server for the whole session; every test finds it empty."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
import redis.asyncio as redis

from graphweft_workers.drivers.embedded.server import EmbeddedServer

__all__ = ("server", "url")


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

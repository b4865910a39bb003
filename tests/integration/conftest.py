"""Drivers and transports on the embedded server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.services.layouts import spread

from graphweft.transport import Transport
from graphweft.transports.registry import make_transport
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.event_log import RedisEventLog


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

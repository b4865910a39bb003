"""Drivers and transports on the embedded server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from neo4j import AsyncGraphDatabase
from tests.services.fixtures import empty_kafka
from tests.services.kafka import KafkaServer
from tests.services.layouts import spread
from tests.services.neo4j import Neo4jServer

from graphweft.transport import Transport
from graphweft.transports.registry import make_transport
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.ports.bus import Bus


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """A command that runs in the process of the tests sets up its logs."""
    logger = logging.getLogger("graphweft")
    handlers, level, propagate = [*logger.handlers], logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest_asyncio.fixture
async def bus(url: str) -> AsyncIterator[Bus]:
    driver = redis_bus(url, new=spread(2))
    yield driver
    await driver.aclose()


@pytest_asyncio.fixture
async def transport(url: str) -> AsyncIterator[Transport]:
    made = make_transport(url, new=spread(2))
    yield made
    await made.aclose()


@pytest_asyncio.fixture
async def graph(url: str) -> AsyncIterator[FalkorDBStore]:
    driver = FalkorDBStore(url)
    yield driver
    await driver.aclose()


@pytest.fixture
def with_keys(request: pytest.FixtureRequest) -> bool:
    """Whether every entry needs a signature. No, unless a test is marked."""
    return bool(getattr(request, "param", False))


@pytest_asyncio.fixture(params=["redis", "kafka"])
async def own_bus_url(request: pytest.FixtureRequest) -> str | None:
    """The URL of an empty Kafka, or None for the Redis that holds the graph too."""
    if request.param == "redis":
        return None
    kafka: KafkaServer = request.getfixturevalue("kafka")
    await empty_kafka(kafka)
    return kafka.url


@pytest_asyncio.fixture
async def own_graph_url(request: pytest.FixtureRequest) -> str | None:
    """The URL of an empty Neo4j, or None, unless a test is marked, for the server that is the bus too."""
    if getattr(request, "param", "falkordb") == "falkordb":
        return None
    server: Neo4jServer = request.getfixturevalue("neo4j_server")
    async with AsyncGraphDatabase.driver(server.uri, notifications_min_severity="OFF") as driver:
        await driver.execute_query("MATCH (n) DETACH DELETE n")
    return server.uri

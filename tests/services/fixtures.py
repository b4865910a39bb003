"""Servers that several test modules share: each is started once a session, by the first test that asks for it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs
from tests.services.certificates import Authority
from tests.services.kafka import KafkaServer, Secure
from tests.services.neo4j import Neo4jServer
from tests.services.waiting import until

from graphweft_contracts import channels

__all__ = (
    "Logs",
    "SecureKafka",
    "beats",
    "empty_kafka",
    "events_of",
    "kafka",
    "kafka_url",
    "logs",
    "neo4j_server",
    "secure_kafka",
)

type Logs = list[MutableMapping[str, Any]]
"""Entries of the logs: their fields, with ``event`` and ``log_level``."""


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the heartbeats of roles that run in the process of the tests."""
    monkeypatch.setenv("GRAPHWEFT_HEARTBEAT_DIR", str(tmp_path / "beats"))
    return tmp_path / "beats"


@pytest.fixture
def logs() -> Iterator[Logs]:
    """What the workers' loggers write while the test runs in this process."""
    with capture_logs() as entries:
        yield entries


def events_of(logs: Logs) -> list[str]:
    """Return the names of the entries."""
    return [entry["event"] for entry in logs]


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """One broker for the whole session, with whatever earlier tests left on it."""
    with tempfile.TemporaryDirectory(prefix="graphweft-kafka-", ignore_cleanup_errors=True) as folder:
        server = KafkaServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()


@pytest_asyncio.fixture
async def kafka_url(kafka: KafkaServer) -> str:
    """The broker without topics, and so without positions of groups."""
    await empty_kafka(kafka)
    return kafka.url


async def empty_kafka(kafka: KafkaServer) -> None:
    """Drop all our topics; for those who cannot ask for ``kafka_url``, because their loop is running already.

    A new broker sets up its groups when it is first asked about one, and knows nothing of any until they are loaded:
    that is waited for. A process that an earlier test has killed would be in its group, and own partitions there, until
    its session ends: it is taken out.
    """
    from aiokafka import TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.errors import GroupCoordinatorNotAvailableError

    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:

        async def ours() -> list[str]:
            if found := [name for name in await admin.list_topics() if name.startswith("graphweft.")]:
                await admin.delete_topics(found)
            return found

        async def is_loaded() -> bool:
            with contextlib.suppress(GroupCoordinatorNotAvailableError):
                return bool(await admin.list_consumer_group_offsets("any", partitions=[TopicPartition("any", 0)]))
            return False

        await until(ours, lambda found: not found, why="the broker lists none of our topics")
        await until(is_loaded, why="the broker has loaded its groups")
        await _take_out_members(admin)
    finally:
        await admin.close()


async def _take_out_members(admin: Any) -> None:
    from aiokafka.protocol.group import LeaveGroupRequest

    for name in {name for name, *_ in await admin.list_consumer_groups() if name.startswith(channels.GROUP_PREFIX)}:
        coordinator = await admin.find_coordinator(name)
        (response,) = await admin.describe_consumer_groups([name], group_coordinator_id=coordinator)
        for group in response.to_object()["groups"]:
            for member in group["members"]:
                await admin._send_request(LeaveGroupRequest(name, member["member_id"]), coordinator)


@dataclass(frozen=True, kw_only=True)
class SecureKafka:
    """A broker with TLS, SASL and an authorizer, with the authority of its certificate."""

    server: KafkaServer
    authority: Path

    def address(self, user: str, *, password: str = "secret", sasl: str = "PLAIN") -> str:
        """Return the URL for a user; ``admin`` may do everything, any other what it is given."""
        return f"kafka+ssl://{user}:{password}@{self.server.bootstrap}?sasl={sasl}&ca={self.authority}"


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """One such broker for the session, with the users of the tests and no rights."""
    folder = tmp_path_factory.mktemp("kafka")
    authority = Authority(folder)
    users = ("acme", "globex", "worker", "responder", "before", "nobody", "vendor")
    server = KafkaServer(
        folder, Secure(authority=authority.file, certificate=authority.sign("server").both, users=users)
    )
    server.start()
    try:
        yield SecureKafka(server=server, authority=authority.file)
    finally:
        server.kill()


@pytest.fixture(scope="session")
def neo4j_server() -> Iterator[Neo4jServer]:
    """One Neo4j for the whole session, with whatever earlier tests left in it."""
    with tempfile.TemporaryDirectory(prefix="graphweft-neo4j-", ignore_cleanup_errors=True) as folder:
        server = Neo4jServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()

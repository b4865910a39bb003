"""The real servers that are measured, started on first use, and what a measurement does with them from outside."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import batched
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import pytest
import redis.asyncio as redis
from pydantic import SecretStr

from benchmarks.harness import Skip
from benchmarks.workload import APP
from graphweft.transport import Outgoing
from graphweft_contracts import channels, wire
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_transport

Bus = Literal["redis", "kafka"]
Graph = Literal["falkordb", "neo4j"]

PARTITIONS: Final = 4
Fsync = Literal["always", "everysec"]
_AT_ONCE: Final = 500
_WARM_UP_S: Final = 5.0
_PROBE: Final = "graphweft-bench-probe"
"""Name under which Neo4j knows our own connections."""
_IDLE_S: Final = 60.0
_IDLE_POLL_S: Final = 0.5
_POLL_S: Final = 0.02


class GraphProbe(Protocol):
    """Looks at the app's graph and empties it, by the server's driver alone."""

    async def busy(self) -> bool:
        """Whether a query of somebody else runs or waits; what a killed process had sent may do so for a while."""
        ...

    async def rows(self, query: str) -> Sequence[Sequence[Any]]: ...

    async def clear(self) -> None: ...

    async def index(self, keys: Iterable[tuple[str, str]]) -> None: ...


class Services:
    """Starts what is asked for and ends it with the block."""

    def __init__(self, *, fsync: Fsync) -> None:
        self._fsync = fsync
        self._stack = AsyncExitStack()
        self._urls: dict[str, str] = {}
        self._probes: dict[Graph, GraphProbe] = {}
        self.redis_pid: int | None = None
        """The process that is Redis and FalkorDB, once it runs."""

    async def __aenter__(self) -> Services:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def url(self, name: Bus | Graph) -> str:
        """Return the URL of a running server. Raises ``Skip`` when it cannot be had here."""
        if name == "falkordb":
            name = "redis"  # one server is both
        if name not in self._urls:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="graphweft-bench-")))
            start = {"redis": self._redis, "kafka": self._kafka, "neo4j": self._neo4j}[name]
            self._urls[name] = await start(folder)
        return self._urls[name]

    async def settings(self, bus: Bus, graph: Graph, rules: Path) -> Settings:
        return Settings(
            bus_url=SecretStr(await self.url(bus)),
            graph_url=SecretStr(await self.url(graph)),
            rules=rules,
            partitions=PARTITIONS,
            order="chat",
            log_level="warning",
        )

    async def probe(self, graph: Graph) -> GraphProbe:
        if graph not in self._probes:
            url = await self.url(graph)
            probe = FalkorDBProbe(url) if graph == "falkordb" else Neo4jProbe(url)
            self._stack.push_async_callback(probe.aclose)
            self._probes[graph] = probe
        return self._probes[graph]

    async def clear(self, bus: Bus, graph: Graph) -> None:
        """Empty graph and bus once nobody's query runs, which would be counted for the next one.

        No process may use them meanwhile. The positions of workers go, too: else the next one would find the graph
        behind them, and read all events of the app again.
        """
        probe = await self.probe(graph)
        async with asyncio.timeout(_IDLE_S):
            while await probe.busy():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
        await probe.clear()
        if bus == "kafka":
            await self._drop_topics()
        if bus == "redis" or graph == "falkordb":
            async with _client(await self.url("redis")) as client:
                await client.flushall()

    async def _drop_topics(self) -> None:
        from aiokafka.admin import AIOKafkaAdminClient

        admin = AIOKafkaAdminClient(bootstrap_servers=(await self.url("kafka")).removeprefix("kafka://"))
        await admin.start()
        try:
            while topics := [name for name in await admin.list_topics() if name.startswith("graphweft.")]:
                await admin.delete_topics(topics)
                await asyncio.sleep(_IDLE_POLL_S)
        finally:
            await admin.close()

    async def _redis(self, folder: Path) -> str:
        server = EmbeddedServer(folder, fsync=self._fsync)
        await server.start()
        self._stack.push_async_callback(server.stop)
        self.redis_pid = server.process.pid if server.process is not None else None
        return f"unix://{server.socket}"

    async def _kafka(self, folder: Path) -> str:
        try:
            from tests.services.kafka import KafkaServer

            server = KafkaServer(folder)
            await asyncio.to_thread(server.start)
        except (ImportError, pytest.skip.Exception, pytest.fail.Exception) as error:
            raise Skip(f"no Kafka: {error}") from error
        self._stack.callback(server.stop)
        return server.url

    async def _neo4j(self, folder: Path) -> str:
        try:
            import neo4j  # noqa: F401
            from tests.services.neo4j import Neo4jServer

            server = Neo4jServer(folder, fast=True)
            await asyncio.to_thread(server.start)
        except (ImportError, pytest.skip.Exception, pytest.fail.Exception) as error:
            raise Skip(f"no Neo4j: {error}") from error
        self._stack.callback(server.stop)
        await _warm_up(server.uri)
        return server.uri


class FalkorDBProbe:
    def __init__(self, url: str) -> None:
        self._redis: Any = redis.Redis.from_url(url, decode_responses=True, protocol=2)
        self._name = channels.graph_name(APP)

    async def rows(self, query: str) -> Sequence[Sequence[Any]]:
        try:
            _, rows, _ = await self._redis.execute_command("GRAPH.RO_QUERY", self._name, query)
        except redis.ResponseError as error:
            if "empty key" in str(error):
                return []
            raise
        found: list[list[Any]] = rows
        return found

    async def busy(self) -> bool:
        _, running, _, waiting, *_ = await self._redis.execute_command("GRAPH.INFO")
        return bool(running or waiting)

    async def clear(self) -> None:
        await self._redis.delete(self._name)

    async def index(self, keys: Iterable[tuple[str, str]]) -> None:
        for label, name in sorted(keys):
            await self._redis.execute_command("GRAPH.QUERY", self._name, f"CREATE INDEX FOR (n:{label}) ON (n.{name})")
        built = "CALL db.indexes() YIELD status RETURN all(s IN collect(status) WHERE s = 'OPERATIONAL')"
        while (await self.rows(built))[0][0] != "true":  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    async def aclose(self) -> None:
        await self._redis.aclose()


class Neo4jProbe:
    def __init__(self, url: str) -> None:
        import neo4j

        self._driver = neo4j.AsyncGraphDatabase.driver(url, user_agent=_PROBE, notifications_min_severity="OFF")

    async def rows(self, query: str) -> Sequence[Sequence[Any]]:
        async with self._driver.session() as session:
            result = await session.run(query)
            return [list(record.values()) async for record in result]

    async def busy(self) -> bool:
        # While a connection is there, something may come from it that is no transaction yet.
        connections = f"CALL dbms.listConnections() YIELD userAgent WHERE userAgent <> '{_PROBE}' RETURN count(*)"
        transactions = "SHOW TRANSACTIONS YIELD currentQuery WHERE NOT currentQuery STARTS WITH 'SHOW' RETURN count(*)"
        return any([(await self.rows(query))[0][0] for query in (connections, transactions)])

    async def clear(self) -> None:
        # Relationships first: all those of a hub may be more than a transaction can hold.
        await self.rows("MATCH ()-[r]->() CALL (r) { DELETE r } IN TRANSACTIONS OF 10000 ROWS")
        await self.rows("MATCH (n) CALL (n) { DETACH DELETE n } IN TRANSACTIONS OF 5000 ROWS")

    async def index(self, keys: Iterable[tuple[str, str]]) -> None:
        for label, name in sorted(keys):
            await self.rows(f"CREATE INDEX IF NOT EXISTS FOR (n:{label}) ON (n.{name})")
        await self.rows("CALL db.awaitIndexes(60)")

    async def aclose(self) -> None:
        await self._driver.close()


async def _warm_up(url: str) -> None:
    """Let Neo4j load and compile what its first queries need; else the first who is measured pays for it."""
    probe = Neo4jProbe(url)
    one = "MERGE (c:Call {id: 'warm-up-' + i}) MERGE (j:Journey {id: 'chat-' + i % 100}) MERGE (j)-[:MADE]->(c)"
    try:
        await probe.index({("Call", "id"), ("Journey", "id")})
        until, number = time.monotonic() + _WARM_UP_S, 0
        while time.monotonic() < until:
            await probe.rows(f"WITH {number} AS i {one}")
            numbers = f"range({number}, {number + 499})"
            await probe.rows(f"UNWIND {numbers} AS i CALL (i) {{ {one} SET j.calls = coalesce(j.calls, 0) + 1 }}")
            number += 500
        await probe.clear()
    finally:
        await probe.aclose()


async def publish(settings: Settings, events: Iterable[Outgoing]) -> None:
    """Put events on the bus as a client does."""
    transport = make_transport(settings)
    try:
        for group in batched(events, _AT_ONCE):
            await transport.append(group)
    finally:
        await transport.aclose()


async def publish_plain(settings: Settings, name: str, events: Iterable[Outgoing]) -> None:
    """Put the same JSON on a new stream or topic, where a FastStream subscriber reads it from the beginning."""
    if settings.bus.startswith("kafka://"):
        await _produce(settings.bus.removeprefix("kafka://"), name, events)
        return
    async with _client(settings.bus) as client:
        # A FastStream subscriber makes its group at the end of the stream and would not see what is there before it.
        await client.xgroup_create(name, name, id="0", mkstream=True)
        for group in batched(events, _AT_ONCE):
            pipeline = client.pipeline(transaction=False)
            for event in group:
                pipeline.xadd(name, {"__data__": event.fields[wire.DATA]})
            await pipeline.execute()


async def drop_plain(settings: Settings, name: str) -> None:
    """Delete a topic of ``publish_plain``: the topics of many measurements would fill the disk."""
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bus.removeprefix("kafka://"))
    await admin.start()
    try:
        await admin.delete_topics([name])
    finally:
        await admin.close()


async def _produce(bootstrap: str, topic: str, events: Iterable[Outgoing]) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        if topic not in await admin.list_topics():
            await admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])
    finally:
        await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5)
    await producer.start()
    try:
        for group in batched(events, _AT_ONCE):
            sent = [
                await producer.send(
                    topic,
                    event.fields[wire.DATA],
                    key=event.key.encode(),
                    headers=[("content-type", b"application/json")],
                )
                for event in group
            ]
            await asyncio.gather(*sent)
    finally:
        await producer.stop()


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[Any]:
    client: Any = redis.Redis.from_url(url)
    try:
        yield client
    finally:
        await client.aclose()

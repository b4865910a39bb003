"""What a round runs on: a bus, a graph, and workers as processes, as a deployment has them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import SecretStr
from tests.services.environment import clean_environment
from tests.services.loop_holds import SWITCH, check_log

from graphweft import Client
from graphweft.transport import Transport
from graphweft_workers.drivers.embedded.server import die_with_parent
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus, make_graph, make_transport

from .serial import FalkorDBReference, Neo4jReference, Reference
from .servers import Server, Servers

__all__ = ("LEASE_S", "GraphKind", "Role", "Stack", "Worker")

GraphKind = Literal["falkordb", "neo4j"]

LEASE_S = 2
_STOP_S = 30
_PARTITIONS = 2


class Role:
    """``graphweft run ROLE`` as a process, with ``options``; ``log`` is where it writes."""

    def __init__(self, role: str, environment: Mapping[str, str], log: Path, *options: str) -> None:
        self._arguments = (role, *options)
        self._environment = environment
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "graphweft_workers.cli", "run", *self._arguments],
                env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - runs before any thread of the child
            )  # fmt: skip

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ended(self) -> int | None:
        """The exit code, when it has ended by itself."""
        return self._process.poll() if self._process is not None else None

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def stop(self) -> int:
        """Ask it to finish and return its exit code; a worker that does not end in time is killed.

        Raises ``AssertionError`` if its event loop was held for long, in all of its runs.
        """
        assert self._process is not None
        self._process.terminate()
        try:
            ended = await asyncio.to_thread(self._process.wait, _STOP_S)
            check_log(self.log)
            return ended
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL
        finally:
            self._process = None


class Worker(Role):
    """``graphweft run mutation`` under a name."""

    def __init__(self, name: str, environment: Mapping[str, str], log: Path) -> None:
        super().__init__("mutation", {**environment, "GRAPHWEFT_WORKER_NAME": name}, log)
        self.name = name


@dataclass(frozen=True, slots=True)
class Stack:
    """A bus and a graph server that run; workers and producers reach them through proxies, checks do not."""

    bus_server: Server
    graph_server: Server
    graph_kind: GraphKind

    @classmethod
    async def of(cls, servers: Servers, bus: str, graph: str) -> Self:
        """Return the stack on servers by their names."""
        return cls(await servers.get(bus), await servers.get(graph), "neo4j" if graph == "neo4j" else "falkordb")

    def worker(self, name: str, rules: Path, log: Path, *, batch_events: int) -> Worker:
        """Return a worker that is not started yet."""
        environment = clean_environment()
        environment |= {
            "GRAPHWEFT_BUS_URL": self.bus_server.url_behind(self.bus_server.workers),
            "GRAPHWEFT_GRAPH_URL": self.graph_server.url_behind(self.graph_server.workers),
            "GRAPHWEFT_RULES": str(rules),
            "GRAPHWEFT_PARTITIONS": str(_PARTITIONS),
            "GRAPHWEFT_BATCH_EVENTS": str(batch_events),
            "GRAPHWEFT_LEASE_S": str(LEASE_S),
            "GRAPHWEFT_LOG_FORMAT": "json",
            **SWITCH,
        }
        return Worker(name, environment, log)

    def transport(self) -> Transport:
        """Return a producer's transport."""
        return make_transport(self._settings(bus_url=self.bus_server.url_behind(self.bus_server.producers)))

    def direct_transport(self) -> Transport:
        """Return the same without a proxy between."""
        return make_transport(self._settings())

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Give a producer."""
        client = Client(transport=self.transport())
        try:
            yield client
        finally:
            await client.aclose()

    @asynccontextmanager
    async def bus(self, *, as_worker: bool = False) -> AsyncIterator[Bus]:
        """Give the bus; only a worker's has the proxy between."""
        url = self.bus_server.url_behind(self.bus_server.workers) if as_worker else None
        bus = make_bus(self._settings(bus_url=url))
        try:
            yield bus
        finally:
            await bus.aclose()

    @asynccontextmanager
    async def graph(self, *, as_worker: bool = False) -> AsyncIterator[GraphStore]:
        """Give the graph; only a worker's has the proxy between."""
        url = self.graph_server.url_behind(self.graph_server.workers) if as_worker else None
        graph = make_graph(self._settings(graph_url=url))
        try:
            yield graph
        finally:
            await graph.aclose()

    @asynccontextmanager
    async def reference(self) -> AsyncIterator[Reference]:
        """Give the serial reference on the same graph server; a Neo4j must be cleared first."""
        url = self.graph_server.url
        reference = FalkorDBReference(url) if self.graph_kind == "falkordb" else Neo4jReference(url)
        try:
            yield reference
        finally:
            await reference.aclose()

    def _settings(self, *, bus_url: str | None = None, graph_url: str | None = None) -> Settings:
        return Settings(
            bus_url=SecretStr(bus_url or self.bus_server.url),
            graph_url=SecretStr(graph_url or self.graph_server.url),
            partitions=_PARTITIONS,
            order="chat",
        )

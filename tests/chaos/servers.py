"""The servers of a stack, each with the proxies in front of it, started once and used for many rounds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from graphweft_workers.drivers.embedded.server import EmbeddedServer

from .proxy import Proxy

__all__ = ("Kafka", "Neo4j", "Redis", "Server", "Servers")


class Server(Protocol):
    """A server as a process of its own, which starts again on the same data and under the same addresses."""

    workers: Proxy
    """Between workers and server."""
    producers: Proxy
    """Between producers and server."""

    @property
    def url(self) -> str:
        """The address without a proxy between."""
        ...

    def url_behind(self, proxy: Proxy) -> str:
        """The address that leads through a proxy."""
        ...

    async def start(self) -> None:
        """Start, or start again; returns when clients are served."""
        ...

    async def kill(self) -> None:
        """End it as a crash would."""
        ...

    async def stop(self) -> None:
        """End it and its proxies for good."""
        ...


class Redis:
    """Redis with FalkorDB, on a Unix socket."""

    def __init__(self, folder: Path, *, fsync: Literal["always", "everysec"]) -> None:
        self._server = EmbeddedServer(folder, fsync=fsync)
        self.workers = Proxy(self._server.socket)
        self.producers = Proxy(self._server.socket)

    @property
    def url(self) -> str:
        return f"unix://{self._server.socket}"

    def url_behind(self, proxy: Proxy) -> str:
        return f"redis://127.0.0.1:{proxy.port}"

    async def start(self) -> None:
        await self._server.start()
        await _listen(self.workers, self.producers)

    async def kill(self) -> None:
        process = self._server.process
        assert process is not None
        process.kill()
        await process.wait()

    async def stop(self) -> None:
        await _close(self.workers, self.producers)
        await self._server.stop()


class Kafka:
    """A Kafka broker. Its clients go where it says that it is, so each proxy has a listener of its own behind it."""

    def __init__(self, folder: Path) -> None:
        from tests.services.kafka import KafkaServer
        from tests.services.maven import free_port

        folder.mkdir()
        self._folder = folder
        self._server = KafkaServer(folder)
        self.workers = Proxy(free_port())
        self.producers = Proxy(free_port())
        self._started = False

    @property
    def url(self) -> str:
        return self._server.url

    def url_behind(self, proxy: Proxy) -> str:
        return f"kafka://127.0.0.1:{proxy.port}"

    async def start(self) -> None:
        await _listen(self.workers, self.producers)
        await asyncio.to_thread(self._server.start)
        if not self._started:
            self._started = True
            await asyncio.to_thread(self._server.stop)
            self._add_listeners()
            await asyncio.to_thread(self._server.start)

    async def kill(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def stop(self) -> None:
        await _close(self.workers, self.producers)
        await asyncio.to_thread(self._server.stop)

    def _add_listeners(self) -> None:
        settings = self._folder / "server.properties"
        values = dict(line.split("=", 1) for line in settings.read_text().splitlines() if "=" in line)
        for name, proxy in (("WORKERS", self.workers), ("PRODUCERS", self.producers)):
            values["listeners"] += f",{name}://127.0.0.1:{proxy.target}"
            values["advertised.listeners"] += f",{name}://127.0.0.1:{proxy.port}"
            values["listener.security.protocol.map"] += f",{name}:PLAINTEXT"
        settings.write_text("".join(f"{name}={value}{os.linesep}" for name, value in values.items()))


class Neo4j:
    """A Neo4j server; ``bolt:`` addresses lead through proxies as they are."""

    def __init__(self, folder: Path) -> None:
        from tests.services.neo4j import Neo4jServer

        folder.mkdir()
        self._server = Neo4jServer(folder)
        self.workers = Proxy(self._server.port)
        self.producers = Proxy(self._server.port)

    @property
    def url(self) -> str:
        return self._server.uri

    def url_behind(self, proxy: Proxy) -> str:
        return f"bolt://127.0.0.1:{proxy.port}"

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)
        await _listen(self.workers, self.producers)

    async def kill(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def stop(self) -> None:
        await _close(self.workers, self.producers)
        await asyncio.to_thread(self._server.stop)


_KINDS: dict[str, Callable[[Path], Server]] = {
    # Only what was confirmed must survive, and a bus that syncs once a second confirms what it may lose.
    "redis": lambda folder: Redis(folder, fsync="always"),
    "kafka": Kafka,
    "falkordb": lambda folder: Redis(folder, fsync="everysec"),
    "falkordb-always": lambda folder: Redis(folder, fsync="always"),
    "neo4j": Neo4j,
}


class Servers:
    """Starts a server when it is asked for the first time: redis, kafka, falkordb, falkordb-always or neo4j."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, Server] = {}
        self._started = 0

    async def get(self, name: str) -> Server:
        if name not in self._running:
            self._started += 1
            server = _KINDS[name](self._folder / f"{name}-{self._started}")
            await server.start()
            self._running[name] = server
        return self._running[name]

    async def drop(self, *names: str) -> None:
        """End servers; who asks for them again gets new ones without data."""
        for name in names:
            if server := self._running.pop(name, None):
                await server.stop()

    async def stop(self) -> None:
        await self.drop(*self._running)


async def _listen(*proxies: Proxy) -> None:
    for proxy in proxies:
        await proxy.start()


async def _close(*proxies: Proxy) -> None:
    for proxy in proxies:
        await proxy.aclose()

"""A TCP proxy that breaks the connections through it, in the middle of what is being said."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

__all__ = ("Proxy",)

_CHUNK = 65_536


class Proxy:
    """Passes bytes from a port of 127.0.0.1 on to one server until told to cut.

    ``target`` is a port of 127.0.0.1 or the path of a Unix socket. The port is chosen at ``start`` unless given.
    """

    def __init__(self, target: int | Path, port: int = 0) -> None:
        self.target = target
        self.port = port
        self.cuts = 0
        self.requests = 0
        """Pieces of data that came from clients; what is sent at once is mostly one piece."""
        self._server: asyncio.Server | None = None
        self._transports: set[asyncio.WriteTransport] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rng = random.Random(0)
        self._rate = 0.0

    async def start(self) -> None:
        """Listen, if not yet. Connections to a server that is away are closed at once, as a dead server's are."""
        if self._server is not None:
            return
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut_now(self) -> None:
        """Break every connection that is open."""
        self.cuts += len(self._transports) // 2
        for transport in self._transports:
            transport.abort()

    def cut_at_random(self, rng: random.Random, rate: float) -> None:
        """From now on break a connection with probability ``rate`` at each piece of data, behind a part of it."""
        self._rng, self._rate = rng, rate

    async def aclose(self) -> None:
        """Break what is open and stop listening."""
        if self._server is not None:
            self._server.close()
            self.cut_now()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if isinstance(self.target, Path):
                far_reader, far_writer = await asyncio.open_unix_connection(str(self.target))
            else:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer.transport, far_writer.transport}
        self._transports |= pair
        try:
            await asyncio.gather(self._pump(reader, far_writer, count=1), self._pump(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # asyncio logs what a connection's task ends with, be it that we cancelled it
        finally:
            self._transports -= pair
            for transport in pair:
                transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: int = 0) -> None:
        while data := await reader.read(_CHUNK):
            self.requests += count
            if self._rate and self._rng.random() < self._rate:
                self.cuts += 1
                writer.write(data[: self._rng.randrange(len(data))])
                await writer.drain()
                raise ConnectionAbortedError
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # one side has closed: close the other

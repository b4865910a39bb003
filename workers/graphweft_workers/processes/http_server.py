"""The HTTP server of gateway, console and probes: uvicorn with strict parsing, limits and graphweft's log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Generator
from typing import Any, Final, Literal, override

import uvicorn

from graphweft_contracts import InvalidSettings
from graphweft_workers.gateway.audit import AuditLog
from graphweft_workers.gateway.protocol import protocol_of
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.log_limit import LimitedLines
from graphweft_workers.support.logs import send_along

_STOP_S: Final = 15
"""Longest wait for current requests: longer than the largest budget and the longest wait for the bus."""
_CONNECTIONS: Final = 2_000
"""uvicorn answers 503 beyond this number of connections."""


def server_config(
    app: Any, *, connections: int, newest_first: bool = False, lifespan: Literal["on", "off"] = "on"
) -> uvicorn.Config:
    """Return the configuration of a server; see ``ConnectionLimit`` for ``connections`` and ``newest_first``."""
    return uvicorn.Config(
        app,
        http=protocol_of(connections, newest_first=newest_first),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan=lifespan,
        ws="none",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_STOP_S,
    )


class HttpServer(uvicorn.Server):
    """uvicorn's server, but a signal ends the process with exit code 0, and a cancellation leaves nothing open."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        """``ready`` is called once connections are accepted."""
        super().__init__(config)
        self._ready = ready

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    @override
    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        except asyncio.CancelledError:
            if self.started:  # uvicorn would close neither its connections nor what the application has opened
                await self.shutdown(sockets)
            raise

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:  # another process has taken the address since it was bound here
            where = ":".join(str(part) for each in sockets or () for part in each.getsockname()[:2])
            raise InvalidSettings(f"cannot listen on {where}: {error.strerror}; give another port") from error
        if self.started:
            self._ready()


@contextlib.contextmanager
def auditing(settings: Settings) -> Generator[AuditLog | None]:
    """Open the audit log that the settings name, if any."""
    if settings.audit_log is None:
        yield None
        return
    audit = AuditLog(settings.audit_log)
    try:
        yield audit
    finally:
        audit.close()


@contextlib.contextmanager
def bound(
    host: str, port: int, *, what: str = "gateway", advice: str = "give another --host or --port"
) -> Generator[socket.socket]:
    """Bind the address; uvicorn would end the process without saying what to do.

    The server listens when it serves. Who connects before is refused, and asks another one: a connection that waits
    until a process has started would use up the time of its request.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if sys.platform != "win32":  # where it would take the address of a server that listens
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address[:2])
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise InvalidSettings(f"the {what} cannot listen on {host}:{port}: {error.strerror}; {advice}") from error
    with listener:
        # Accepted connections inherit it. asyncio does not set it for them, and without it the second answer on a
        # connection comes 40 ms late.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


@contextlib.contextmanager
def limited_logs() -> Generator[None]:
    """Send uvicorn's warnings to graphweft's log, and limit the lines that a peer can cause."""
    send_along("uvicorn", logging.WARNING)
    limited = [logging.getLogger(name) for name in ("uvicorn.error", "graphweft.gateway", "graphweft.console")]
    lines = LimitedLines()
    for each in limited:
        each.addFilter(lines)
    try:
        yield
    finally:
        for each in limited:
            each.removeFilter(lines)

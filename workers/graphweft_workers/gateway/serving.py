"""The gateway as a process: uvicorn, until it is told to stop, and then until the requests in hand are answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Generator
from typing import Final, override

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from graphweft import Client
from graphweft_contracts import InvalidSettings
from graphweft_workers.gateway.app import make_app
from graphweft_workers.gateway.tokens import read_tokens
from graphweft_workers.services import load_ontologies, make_refusal, make_transport
from graphweft_workers.settings import Settings

_LOOPBACK: Final = "127.0.0.1"
_STOP_S: Final = 15
"""Longest wait for requests in hand: longer than the largest budget and than the bus is waited for."""
_CONNECTIONS: Final = 2_000
"""Beyond these uvicorn answers 503 by itself; a request is counted by its app once its token is known."""
_HEAD_S: Final = 10.0
"""Longest that the head of a request may take to arrive, as long as its body may."""


async def run_gateway(
    settings: Settings, *, host: str, port: int, insecure_app: str | None, ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` gets the URL when connections are taken.

    Raises ``InvalidSettings`` without tokens, unless ``insecure_app`` is given and ``host`` is this machine's loopback
    address; also when the address cannot be had.
    """
    if settings.gateway_tokens is None and insecure_app is None:
        raise InvalidSettings(
            "the gateway has no tokens: `graphweft token new --app APP` makes one and says what goes into a file; set "
            "GRAPHWEFT_GATEWAY_TOKENS to that file. On this machine alone --insecure-app APP does without"
        )
    if settings.gateway_tokens is not None and insecure_app is not None:
        raise InvalidSettings("--insecure-app does without tokens, and GRAPHWEFT_GATEWAY_TOKENS is set: drop one")
    if insecure_app is not None and host != _LOOPBACK:
        raise InvalidSettings(f"--insecure-app does not go with --host {host}: only with {_LOOPBACK}")
    tokens = None if settings.gateway_tokens is None else read_tokens(settings.gateway_tokens)
    ontologies = load_ontologies(settings)
    with _listening(host, port) as listener:
        client = Client(transport=make_transport(settings))
        config = uvicorn.Config(
            make_app(
                client,
                connect=lambda: make_transport(settings),
                tokens=tokens,
                insecure_app=insecure_app,
                refusal=make_refusal(ontologies),
                schema_ids=ontologies.ids,
            ),
            http=_Protocol,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            ws="none",
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=_STOP_S,
        )
        _send_logs_along()
        shown = f"[{host}]" if ":" in host else host
        await _Server(config, lambda: ready(f"http://{shown}:{listener.getsockname()[1]}")).serve([listener])


class _Protocol(H11Protocol):
    """uvicorn's, which waits without end for the first request, and for the rest of one of which something is there."""

    _closing: asyncio.TimerHandle | None = None
    """Runs while no request is in hand: from the beginning, and from the first byte behind an answer."""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_watching()

    def _watch(self) -> None:
        # Before the first request there is none, whatever the types say.
        if self.cycle and not self.cycle.response_complete:
            self._stop_watching()
        elif self._closing is None:
            self._closing = self.loop.call_later(_HEAD_S, self.transport.close)

    def _stop_watching(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


class _Server(uvicorn.Server):
    """uvicorn's server, which would end the process by the signal that stopped it; ours end with 0."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
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
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


@contextlib.contextmanager
def _listening(host: str, port: int) -> Generator[socket.socket]:
    """Bind before uvicorn does, which would end the process without saying what to do."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise InvalidSettings(
            f"the gateway cannot listen on {host}:{port}: {error.strerror}; give another --host or --port"
        ) from error
    with listener:
        yield listener


def _send_logs_along() -> None:
    """Let uvicorn's warnings go where ours go."""
    ours, theirs = logging.getLogger("graphweft"), logging.getLogger("uvicorn")
    theirs.handlers, theirs.propagate = list(ours.handlers), False
    theirs.setLevel(logging.WARNING)

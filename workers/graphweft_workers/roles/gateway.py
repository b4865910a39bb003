"""Runs the HTTP gateway with uvicorn until it is stopped and the current requests are answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Final, override

import uvicorn

from graphweft import Client
from graphweft_contracts import InvalidSettings
from graphweft_workers.apps import AppPolicies
from graphweft_workers.gateway.app import make_app
from graphweft_workers.gateway.audit import AuditLog
from graphweft_workers.gateway.protocol import protocol_of
from graphweft_workers.gateway.quotas import QuotaGate
from graphweft_workers.gateway.tokens import read_tokens
from graphweft_workers.log_limit import LimitedLines
from graphweft_workers.roles.connections import make_bus, make_transport
from graphweft_workers.roles.gateway_usage import GatewayUsage, gateway_name
from graphweft_workers.roles.ontologies import load_ontologies, make_refusal
from graphweft_workers.roles.policies import may_use, open_policies
from graphweft_workers.roles.settings import Settings
from graphweft_workers.watched_file import WatchedFile

_LOOPBACK: Final = "127.0.0.1"
_STOP_S: Final = 15
"""Longest wait for current requests: longer than the largest budget and the longest wait for the bus."""
_CONNECTIONS: Final = 2_000
"""uvicorn answers 503 beyond this number of connections."""
_FAULTY: Final = "the changed file is faulty, so its earlier content stays in use; the log says what to correct"
_TURN_S: Final = 0.001
"""Turn of a thread. Python's 5 ms made other requests five times slower while bodies were read."""


async def run_gateway(
    settings: Settings, *, host: str, port: int, insecure_app: str | None, ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` gets the URL once connections are accepted.

    Raises ``InvalidSettings`` without tokens, unless ``insecure_app`` is given and ``host`` is this machine's loopback
    address; also if it cannot listen on the address.
    """
    if settings.gateway_tokens is None and insecure_app is None:
        raise InvalidSettings(
            "the gateway has no tokens: create one with `graphweft token new --app APP`, which prints what to put into "
            "a file, and set GRAPHWEFT_GATEWAY_TOKENS to that file. On this machine only, --insecure-app APP needs none"
        )
    if settings.gateway_tokens is not None and insecure_app is not None:
        raise InvalidSettings("--insecure-app and GRAPHWEFT_GATEWAY_TOKENS exclude each other: drop one")
    if insecure_app is not None and host != _LOOPBACK:
        raise InvalidSettings(f"--insecure-app requires --host {_LOOPBACK}, not {host}")
    tokens = None if settings.gateway_tokens is None else WatchedFile(settings.gateway_tokens, read_tokens)
    policies = open_policies(settings)
    watched = {"tokens": tokens, "apps": policies}
    ontologies = load_ontologies(settings)

    def faults() -> dict[str, str]:
        found = {name: _FAULTY for name, file in watched.items() if file is not None and file.problem is not None}
        if audit is not None and audit.failed:
            found["audit"] = f"{audit.failed} lines could not be written; the log says why"
        return found

    def current() -> AppPolicies:
        return AppPolicies() if policies is None else policies.current

    quotas = QuotaGate(lambda app_id: current().of(app_id).quotas)
    with _auditing(settings) as audit, _listening(host, port) as listener:
        client = Client(transport=make_transport(settings))
        config = uvicorn.Config(
            make_app(
                client,
                connect=lambda: make_transport(settings),
                tokens=None if tokens is None else lambda: tokens.current,
                insecure_app=insecure_app,
                may_use=may_use(policies),
                faults=faults,
                audit=audit,
                refusal=make_refusal(ontologies),
                schema_ids=ontologies.ids,
                quotas=quotas,
            ),
            http=protocol_of(settings.gateway_connections),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            ws="none",
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=_STOP_S,
        )
        shown = f"[{host}]" if ":" in host else host
        listening = listener.getsockname()[1]
        following = [asyncio.create_task(file.follow()) for file in watched.values() if file is not None]
        try:
            async with _counting(settings, quotas, current, name=gateway_name(listening)):
                with _logging(), _short_turns():
                    await _Server(config, lambda: ready(f"http://{shown}:{listening}")).serve([listener])
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)


@contextlib.asynccontextmanager
async def _counting(
    settings: Settings, quotas: QuotaGate, current: Callable[[], AppPolicies], *, name: str
) -> AsyncGenerator[None]:
    """Learn what apps keep, and report what is refused. Without policies nothing is asked of the bus."""
    if settings.apps is None:
        yield
        return
    async with contextlib.aclosing(make_bus(settings, archived=False)) as bus:
        usage = GatewayUsage(bus, quotas, current, name=name)
        task = asyncio.create_task(usage.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await usage.exchange()


class _Server(uvicorn.Server):
    """uvicorn's server, but a signal ends the process with exit code 0."""

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
def _auditing(settings: Settings) -> Generator[AuditLog | None]:
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
def _listening(host: str, port: int) -> Generator[socket.socket]:
    """Bind the address; uvicorn would end the process without saying what to do."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise InvalidSettings(
            f"the gateway cannot listen on {host}:{port}: {error.strerror}; give another --host or --port"
        ) from error
    with listener:
        # Accepted connections inherit it. asyncio does not set it for them, and without it the second answer on a
        # connection comes 40 ms late.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener


@contextlib.contextmanager
def _short_turns() -> Generator[None]:
    """Let a thread that reads a large body give way soon: each step of the other requests waits for a turn of it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def _logging() -> Generator[None]:
    """Send uvicorn's warnings to graphweft's log, and limit the lines that a peer can cause."""
    ours, theirs = logging.getLogger("graphweft"), logging.getLogger("uvicorn")
    theirs.handlers, theirs.propagate = list(ours.handlers), False
    theirs.setLevel(logging.WARNING)
    limited = [logging.getLogger(name) for name in ("uvicorn.error", "graphweft.gateway")]
    lines = LimitedLines()
    for each in limited:
        each.addFilter(lines)
    try:
        yield
    finally:
        for each in limited:
            each.removeFilter(lines)

"""Runs the HTTP gateway with uvicorn until it is stopped and the current requests are answered."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final

from graphweft import Client
from graphweft.transport import Transport
from graphweft_contracts import InvalidSettings
from graphweft_contracts.plurals import counted
from graphweft_workers.apps import AppPolicies
from graphweft_workers.engine.usage.host_clock import HostClock
from graphweft_workers.gateway.app import make_app
from graphweft_workers.gateway.mcp_route import McpService
from graphweft_workers.gateway.quotas import QuotaLimiter
from graphweft_workers.gateway.tokens import NO_TOKENS, read_tokens
from graphweft_workers.processes.gateway_usage import GatewayUsage, gateway_name
from graphweft_workers.processes.http_server import (
    HttpServer,
    auditing,
    bound,
    limited_logs,
    server_config,
)
from graphweft_workers.processes.loop_monitor import watched
from graphweft_workers.processes.role_metrics import gateway_metrics
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.tasks import running_beside
from graphweft_workers.support.watched_file import WatchedFile
from graphweft_workers.wiring.connections import make_bus, make_transport
from graphweft_workers.wiring.ontologies import load_ontologies, make_refusal
from graphweft_workers.wiring.policies import may_use, open_policies

_LOOPBACK: Final = "127.0.0.1"
_GONE: Final = "the file is empty or is not there any more: no token is valid"
_FAULTY: Final = "the changed file is faulty, so its earlier content stays in use; the log says what to correct"


async def run_gateway(
    settings: Settings,
    *,
    host: str,
    port: int,
    insecure_app: str | None,
    ready: Callable[[str], None],
    mcp: Callable[[Transport, QuotaLimiter], McpService] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` gets the URL once connections are accepted.

    ``mcp`` makes the service that answers at ``/mcp``.

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
    tokens = (
        None if settings.gateway_tokens is None else WatchedFile(settings.gateway_tokens, read_tokens, gone=NO_TOKENS)
    )
    policies = open_policies(settings)
    files = {"tokens": tokens, "apps": policies}
    ontologies = load_ontologies(settings)

    def faults() -> dict[str, str]:
        faulty = {name: file for name, file in files.items() if file is not None and file.problem is not None}
        found = {name: _GONE if file.is_gone else _FAULTY for name, file in faulty.items()}
        if audit is not None and audit.failed:
            found["audit"] = f"{counted(audit.failed, 'line')} could not be written; the log says why"
        return found

    def current() -> AppPolicies:
        return AppPolicies() if policies is None else policies.current

    spans: dict[str, Counter[str]] = {}
    quotas = QuotaLimiter(lambda app_id: current().of(app_id).quotas)
    with auditing(settings) as audit, bound(host, port) as listener:
        client = Client(transport=make_transport(settings))
        config = server_config(
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
                spans=spans,
                mcp=None if mcp is None else mcp(make_transport(settings), quotas),
            ),
            connections=settings.gateway_connections,
        )
        shown = f"[{host}]" if ":" in host else host
        own_port = listener.getsockname()[1]
        async with (
            running_beside(*(file.follow() for file in files.values() if file is not None)),
            _counting(settings, quotas, current, spans, name=gateway_name(own_port)),
        ):
            with limited_logs(), watched(settings.loop_limit_ms), gateway_metrics(client):
                await HttpServer(config, lambda: ready(f"http://{shown}:{own_port}")).serve([listener])


@contextlib.asynccontextmanager
async def _counting(
    settings: Settings,
    quotas: QuotaLimiter,
    current: Callable[[], AppPolicies],
    spans: Mapping[str, Counter[str]],
    *,
    name: str,
) -> AsyncGenerator[None]:
    """Learn what apps keep, and report what is refused and which spans gave no event."""
    policies = None if settings.apps is None else current
    async with contextlib.aclosing(make_bus(settings, archived=False)) as bus:
        usage = GatewayUsage(bus.usage, quotas, policies, spans, name=name)
        host_clock = HostClock(bus, "gateway", name=name)
        try:
            async with running_beside(usage.run(), host_clock.run()):
                yield
        finally:
            await usage.exchange()
            await host_clock.aclose()

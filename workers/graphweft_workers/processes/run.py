"""Runs one role until SIGTERM or SIGINT.

Roles are imported when they run, so that other commands start quickly.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from graphweft_contracts import GraphweftError
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.optional_dependencies import naming_extra

if TYPE_CHECKING:
    from graphweft_workers.mcp.access import McpScope
    from graphweft_workers.processes.hosting import HostedRole

_FASTSTREAM: Final = logging.DEBUG
"""Level of FastStream's own lines about the start and the end, which the roles log themselves."""
_TURN_S: Final = 0.001
"""Turn of a thread. With Python's 5 ms, each step of the event loop waits so long for a thread that reads a large body
or matches a dear event, and a request or an event takes ten steps."""


def _settle() -> None:
    """Set the process up for events and requests by the thousand, when its start is over."""
    from graphweft_workers.support.garbage_collection import collect_less_often

    sys.setswitchinterval(_TURN_S)
    collect_less_often()


async def _host(role: HostedRole, settings: Settings) -> None:
    """Run a role. Raises a ``GraphweftError`` that ends it as it is, not in the groups of its tasks."""
    from graphweft_workers.processes.hosting import role_app
    from graphweft_workers.processes.late_end import end_late, look_at_servers

    _settle()
    app = role_app(role, settings)
    late = asyncio.create_task(end_late(app.ends, partial(look_at_servers, settings, role)))
    try:
        await app.run(log_level=_FASTSTREAM)
    except ExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(first, GraphweftError):
            raise first from group
        raise
    finally:
        late.cancel()


async def run_service(role: HostedRole, settings: Settings) -> None:
    """Run a role that FastStream hosts until SIGTERM or SIGINT, then finish its work. See ``processes.hosting``."""
    from graphweft_workers.wiring.connections import make_archive

    if role == "archive":
        make_archive(settings)  # says what is missing before anything starts
    await _host(role, settings)


async def run_gateway(
    settings: Settings,
    *,
    host: str,
    port: int,
    insecure_app: str | None,
    ready: Callable[[str], None],
    mcp: bool = False,
) -> None:
    """Run the HTTP gateway until SIGTERM or SIGINT, then finish its requests. See ``processes.gateway``.

    With ``mcp`` it serves the tools of MCP, too.
    """
    # google is protobuf.
    with naming_extra("`run gateway`", "gateway", "starlette", "uvicorn", "google", "opentelemetry"):
        from graphweft_workers.processes import gateway as serving
    make_mcp = None
    if mcp:
        with naming_extra("`run gateway --mcp`", "mcp", "mcp", "mcp_types"):
            from graphweft_workers.processes.gateway_mcp import GatewayMcp
        make_mcp = GatewayMcp
    from graphweft_workers.processes.health import healthy
    from graphweft_workers.processes.traced import traced

    _settle()
    async with traced("gateway", settings), healthy("gateway", settings) as heartbeat:

        def listens(url: str) -> None:
            heartbeat.begin()
            ready(url)

        await serving.run_gateway(
            settings, host=host, port=port, insecure_app=insecure_app, ready=listens, mcp=make_mcp
        )


async def run_mcp(settings: Settings, access: McpScope) -> None:
    """Run the MCP server on standard input and output until the client closes them. See ``processes.mcp.run_mcp``."""
    # mcp before 2.0 has no mcp_types.
    with naming_extra("`run mcp`", "mcp", "mcp", "mcp_types"):
        from graphweft_workers.processes import mcp as serving
    from graphweft_workers.processes.traced import traced

    async with traced("mcp", settings):
        await serving.run_mcp(settings, access)

"""What shows from outside that a role's process lives: its heartbeat file, and probes if the settings ask for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from graphweft_workers.processes.heartbeat import Heartbeat, beating
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.optional_dependencies import naming_extra


@asynccontextmanager
async def healthy(role: str, settings: Settings) -> AsyncGenerator[Heartbeat]:
    """Write heartbeats and answer probes until the block ends. Call ``begin`` of the heartbeat once the role works.

    Raises ``InvalidSettings`` if probes are asked for and the address is taken, or a package is missing.
    """
    async with beating(role) as heartbeat, AsyncExitStack() as stack:
        if settings.probe_address is not None:
            with naming_extra("GRAPHWEFT_PROBE_ADDRESS", "gateway", "uvicorn", "h11"):
                from graphweft_workers.processes.probes import routes, serving
            from graphweft_workers.processes.server_look import looking_at_servers

            servers = await stack.enter_async_context(looking_at_servers(settings, role))
            await stack.enter_async_context(serving(routes(heartbeat, servers.look), settings.probe_address))
        yield heartbeat

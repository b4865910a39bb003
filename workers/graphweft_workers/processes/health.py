"""What shows from outside that a role's process lives: its heartbeat file, probes and metrics if the settings ask for
them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from graphweft_workers.processes.heartbeat import Heartbeat, beating
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.optional_dependencies import naming_extra

logger = get_logger("graphweft.hosting")


@asynccontextmanager
async def healthy(role: str, settings: Settings) -> AsyncGenerator[Heartbeat]:
    """Write heartbeats, answer probes and count metrics until the block ends. Call ``begin`` of the heartbeat once the
    role works.

    Raises ``InvalidSettings`` if the address of the probes is taken, or a package is missing for what is asked for.
    """
    address = settings.probe_address
    if settings.metrics and address is None and settings.metrics_otlp_url is None:
        logger.warning(
            "metrics_off",
            next="nobody would see them: set GRAPHWEFT_PROBE_ADDRESS for /metrics, or GRAPHWEFT_METRICS_OTLP_URL",
        )
    counts = settings.metrics_otlp_url is not None or (settings.metrics and address is not None)
    async with beating(role) as heartbeat, AsyncExitStack() as stack:
        if address is not None or counts:
            from graphweft_workers.processes.server_look import looking_at_servers

            servers = await stack.enter_async_context(looking_at_servers(settings, role))

            async def look() -> Mapping[str, bool]:
                return {**await servers.look(), **heartbeat.reached()}

            collect = None
            if counts:
                from graphweft_workers.processes.metrics import measured

                collect = await stack.enter_async_context(measured(settings, heartbeat, look))
            if address is not None:
                with naming_extra("GRAPHWEFT_PROBE_ADDRESS", "gateway", "uvicorn", "h11"):
                    from graphweft_workers.processes.probes import metrics_route, routes, serving
                by_path = routes(heartbeat, look)
                if collect is not None and settings.metrics:
                    by_path["/metrics"] = metrics_route(collect)
                await stack.enter_async_context(serving(by_path, address))
        yield heartbeat

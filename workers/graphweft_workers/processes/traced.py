"""Makes the spans of a role, if the variables of OpenTelemetry ask for them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from graphweft_workers.settings.settings import Settings
from graphweft_workers.settings.telemetry import TraceVariables
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.telemetry.tracing import using
from graphweft_workers.wiring.connections import server_names

logger = get_logger("graphweft.tracing")


@contextlib.asynccontextmanager
async def traced(role: str, settings: Settings) -> AsyncGenerator[None]:
    """Make spans until the block ends. Without the SDK a warning says so, and the role works without spans."""
    variables = TraceVariables.of_environment()
    for fault in variables.faults:
        logger.warning("tracing_settings", error=fault)
    if not variables.on:
        yield
        return
    try:
        from graphweft_workers.telemetry import tracing_sdk
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        logger.warning(
            "tracing_off", error="OTEL_* variables ask for spans, and OpenTelemetry's SDK is not installed",
            next="pip install 'graphweft[telemetry]', or set OTEL_TRACES_EXPORTER=none",
        )  # fmt: skip
        yield
        return
    with tracing_sdk.provider(role), using(tracing_sdk.SdkTracer(server_names(settings))):
        logger.info("tracing_on", role=role)
        yield

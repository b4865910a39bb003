"""The exporter of ``OTEL_TRACES_EXPORTER=graphweft``: capture by OpenTelemetry without a change of the program.

The SDK requires a subclass of its exporter at the entry point, so this module imports the SDK. Only the SDK imports it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphweft_runtimes.otel import GraphweftSpanProcessor

if TYPE_CHECKING:  # not installed where types are checked
    trace: Any

    class SpanExporter:
        """The SDK's."""

    SpanExportResult: Any
else:
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger("graphweft.adapters")


class GraphweftSpanExporter(SpanExporter):
    """Adds a ``GraphweftSpanProcessor`` with these settings to the program's tracer provider.

    When the SDK configures itself from the environment, it sets the provider before it makes exporters. Without a
    provider, events are emitted in batches after spans have ended, as over OTLP. In code, use the processor instead.
    """

    def __init__(self, **settings: Any) -> None:
        self._processor: GraphweftSpanProcessor | None = None
        self._live = False
        try:
            self._processor = GraphweftSpanProcessor(**settings)
            provider: Any = trace.get_tracer_provider()
            self._live = hasattr(provider, "add_span_processor")
            if self._live:
                provider.add_span_processor(self._processor)
        except Exception:  # the program starts without capture
            logger.exception("cannot start the capture")

    def export(self, spans: Sequence[Any]) -> Any:
        """Emit the events of ended spans, unless the processor sees them live."""
        if self._processor is not None and not self._live:
            self._processor.emit_ended(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Send buffered events, and close."""
        if self._processor is not None and not self._live:  # the provider closes its processors
            self._processor.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait until all events are on the bus; return False if that takes longer."""
        return self._processor is None or self._processor.force_flush(timeout_millis)

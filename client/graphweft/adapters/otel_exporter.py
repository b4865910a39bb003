"""What ``OTEL_TRACES_EXPORTER=graphweft`` names: capture by OpenTelemetry without a change of the program.

The SDK asks for a subclass of its exporter at the entry point, so this module imports it; nobody else imports this one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphweft.adapters.otel import GraphweftSpanProcessor

if TYPE_CHECKING:  # it is in the environment of its tests only
    trace: Any

    class SpanExporter:
        """The SDK's."""

    SpanExportResult: Any
else:
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

__all__ = ("GraphweftSpanExporter",)

logger = logging.getLogger("graphweft.adapters")


class GraphweftSpanExporter(SpanExporter):
    """Lets a ``GraphweftSpanProcessor`` of those settings see the spans of the program's tracer provider, live.

    The SDK, when it configures itself by the environment, has set the provider by the time it makes exporters. Where
    there is none yet, spans are told in batches when they have ended, as over OTLP. In code take the processor.
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
        except Exception:  # the program starts all the same
            logger.exception("nothing is captured")

    def export(self, spans: Sequence[Any]) -> Any:
        """Tell of spans that have ended, unless the processor sees them live."""
        if self._processor is not None and not self._live:
            self._processor.tell_ended(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Send what is buffered, and end."""
        if self._processor is not None and not self._live:  # a provider ends those that it has
            self._processor.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait until all that was told is on the bus; return False when that takes longer."""
        return self._processor is None or self._processor.force_flush(timeout_millis)

"""OpenTelemetry: GenAI spans of any instrumented runtime become events, as they begin and end. It gives no context."""

from graphweft_runtimes.otel.adapter import (
    GraphweftSpanProcessor,
)

__all__ = ("GraphweftSpanProcessor",)

"""Traces by OpenTelemetry's SDK: spans go by OTLP over HTTP to where the variables ``OTEL_*`` say.

The SDK reads these variables itself: endpoint, headers, sampler, limits, resource. If the program has set up a provider
of its own before, such as by ``opentelemetry-instrument``, that one makes the spans.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Mapping, Sequence
from importlib import metadata
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from graphweft.tracing import LIBRARY
from graphweft_contracts import QueryFailed
from graphweft_contracts.trace_context import TraceContext
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_context import LogIds
from graphweft_workers.telemetry.tracing import Link, OpenSpan, ServerNames, SpanKind, SpanValue

logger = get_logger("graphweft.tracing")

_LAST_S: Final = 1.0
"""So long a process that ends waits until its last spans are sent: clients kill an MCP server after two seconds."""
_NO_NAME: Final = "unknown_service"
"""How the SDK's name begins for a process that has none."""
_FORM: Final = TraceContextTextMapPropagator()


@contextlib.contextmanager
def provider(role: str) -> Generator[None]:
    """Send the spans of this process until the block ends, unless it has a provider already."""
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        yield
        return
    made = TracerProvider(resource=_resource(role), shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(made)
    try:
        yield
    finally:
        # A collector that does not answer must not hold up the end.
        last = threading.Thread(target=made.shutdown, name="graphweft-last-spans", daemon=True)
        last.start()
        last.join(_LAST_S)
        if last.is_alive():
            logger.warning("spans_lost", error=f"the collector did not take the last spans within {_LAST_S:g} s")


def _resource(role: str) -> Resource:
    """Return what the spans say of this process. ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` win."""
    version = metadata.version("graphweft")
    found = Resource.create()
    ours: dict[str, str] = {"graphweft.role": role}
    if str(found.attributes["service.name"]).startswith(_NO_NAME):
        ours["service.name"] = f"graphweft-{role}"
    if "service.version" not in found.attributes:
        ours["service.version"] = version
    return found.merge(Resource(ours))


class SdkTracer:
    """Makes spans by a provider, or by that of the process."""

    def __init__(self, names: ServerNames, provider: trace.TracerProvider | None = None) -> None:
        self._names = names
        self._tracer = trace.get_tracer(LIBRARY, metadata.version("graphweft"), provider)

    @property
    def names(self) -> ServerNames:
        """See ``Tracer``."""
        return self._names

    @contextlib.contextmanager
    def span(
        self,
        name: str,
        kind: SpanKind,
        values: Mapping[str, SpanValue],
        *,
        parent: TraceContext | None = None,
        links: Sequence[Link] = (),
        began_ns: int | None = None,
    ) -> Generator[OpenSpan]:
        """See ``Tracer``."""
        made = self._tracer.start_span(
            name,
            context=None if parent is None else _FORM.extract(_headers(parent)),
            kind=trace.SpanKind[kind],
            attributes=values,
            links=[trace.Link(_span_of(link.trace), link.values) for link in links],
            start_time=began_ns,
        )
        opened = _SdkSpan(made)
        context = made.get_span_context()
        # The texts of errors may quote what somebody sent.
        with (
            trace.use_span(made, end_on_exit=True, record_exception=False, set_status_on_exception=False),
            LogIds(trace_id=trace.format_trace_id(context.trace_id), span_id=trace.format_span_id(context.span_id)),
        ):
            try:
                yield opened
            except Exception as error:
                opened.fail(error.code if isinstance(error, QueryFailed) else type(error).__name__)
                raise


class _SdkSpan:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def set(self, values: Mapping[str, SpanValue]) -> None:
        """See ``OpenSpan``."""
        self._span.set_attributes(values)

    def fail(self, kind: str) -> None:
        """See ``OpenSpan``."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(trace.StatusCode.ERROR)


def _headers(given: TraceContext) -> dict[str, str]:
    return {name: value for name, value in given._asdict().items() if value is not None}


def _span_of(given: TraceContext) -> trace.SpanContext:
    return trace.get_current_span(_FORM.extract(_headers(given))).get_span_context()

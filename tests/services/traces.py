"""A collector of spans for tests: OTLP over HTTP on 127.0.0.1, and the spans as the trees that they make.

It runs in a thread of its own, so other processes and the loop of a test may send to it.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, override

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

__all__ = ("CollectedSpan", "TraceCollector", "collector")


@dataclass(frozen=True, kw_only=True)
class CollectedSpan:
    """A span as it came."""

    service: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    links: Sequence[tuple[str, str]]
    values: dict[str, Any]
    failed: bool
    start_ns: int
    end_ns: int


@dataclass
class TraceCollector:
    """Takes spans, and keeps the bodies as they came."""

    bodies: list[bytes] = field(default_factory=list)
    spans: list[CollectedSpan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.collector = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process gets that shall send its spans here, soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def __enter__(self) -> TraceCollector:
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans.extend(_span(about["service.name"], raw) for raw in scope.spans)

    def named(self, name: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.name == name]

    def lines(self, trace: str) -> list[str]:
        """Return the tree of a trace: a line for each span, indented below its parent, in the order of their start."""
        spans = sorted((span for span in self.spans if span.trace == trace), key=lambda span: span.start_ns)
        known = {span.id for span in spans}

        def below(parent: str, depth: int) -> Iterator[str]:
            for span in spans:
                if span.parent == parent or (not depth and span.parent not in known):
                    yield f"{'  ' * depth}{span.name} [{span.service}]"
                    yield from below(span.id, depth + 1)

        return list(below("", 0))


def _span(service: str, raw: Any) -> CollectedSpan:
    return CollectedSpan(
        service=service,
        name=raw.name,
        kind=raw.SpanKind.Name(raw.kind).removeprefix("SPAN_KIND_"),
        trace=raw.trace_id.hex(),
        id=raw.span_id.hex(),
        parent=raw.parent_span_id.hex(),
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in raw.links],
        values={each.key: getattr(each.value, each.value.WhichOneof("value")) for each in raw.attributes},
        failed=raw.status.code == raw.status.STATUS_CODE_ERROR,
        start_ns=raw.start_time_unix_nano,
        end_ns=raw.end_time_unix_nano,
    )


class _Server(ThreadingHTTPServer):
    collector: TraceCollector
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces", self.path
        self.server.collector.take(body)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[TraceCollector]:
    """A collector of its own for each test."""
    with TraceCollector() as running:
        yield running

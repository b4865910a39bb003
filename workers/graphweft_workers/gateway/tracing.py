"""The trace of HTTP requests: their own span while tracing is on, and in any case the one that their headers name."""

from __future__ import annotations

from typing import Any, Final

from graphweft.tracing import within
from graphweft_contracts.trace_context import TraceContext
from graphweft_workers.telemetry import tracing, tracing_spans

_NAMES: Final = (b"traceparent", b"tracestate")
_FAILED: Final = 500


class TraceMiddleware:
    """ASGI middleware. Only requests to ``routes`` have spans: anybody may name any other path."""

    def __init__(self, app: Any, routes: frozenset[str]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request within its span."""
        if scope["type"] != "http" or scope["path"] not in self._routes:
            await self._app(scope, receive, send)
            return
        given = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _NAMES}
        trace = TraceContext.of(given.get(b"traceparent"), given.get(b"tracestate"))
        if tracing.tracer() is None:
            with within(trace):
                await self._app(scope, receive, send)
            return
        with tracing_spans.served(scope["method"], scope["path"], trace) as span:

            async def answer(message: Any) -> None:
                if message["type"] == "http.response.start":
                    span.set({"http.response.status_code": message["status"]})
                    if message["status"] >= _FAILED:
                        span.fail(str(message["status"]))
                await send(message)

            await self._app(scope, receive, answer)

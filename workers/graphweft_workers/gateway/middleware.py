"""ASGI middleware of the gateway: counts requests, and puts them into their traces."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from graphweft.tracing import within
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.trace_context import TraceContext
from graphweft_workers.telemetry import tracing, tracing_spans
from graphweft_workers.telemetry.metrics import GATEWAY_DURATION, GATEWAY_REQUESTS, OTHER

_NAMES: Final = (b"traceparent", b"tracestate")
_FAILED: Final = 500


class RequestMetrics:
    """Counts each request at its end, by path and status. Paths that are no routes count together."""

    def __init__(self, app: Any, *, paths: Collection[str], clock: Clock = SYSTEM_CLOCK) -> None:
        self._app = app
        self._paths = frozenset(paths)
        self._clock = clock

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request by the application, and count it."""
        if scope["type"] != "http" or GATEWAY_REQUESTS.sink is None:
            await self._app(scope, receive, send)
            return
        status = 500
        began = self._clock.monotonic()

        async def sending(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            path = scope["path"] if scope["path"] in self._paths else OTHER
            GATEWAY_REQUESTS.add(1, path, str(status))
            GATEWAY_DURATION.record(self._clock.monotonic() - began, path)


class TraceMiddleware:
    """Puts each request into its trace: its own span while tracing is on, and in any case that of its headers.

    Only requests to ``routes`` have spans: anybody may name any other path.
    """

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

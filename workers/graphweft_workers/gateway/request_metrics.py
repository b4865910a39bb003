"""Counts the requests of the gateway by path and status."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.telemetry.metrics import GATEWAY_DURATION, GATEWAY_REQUESTS, OTHER


class RequestMetrics:
    """Middleware: counts each request at its end. Paths that are no routes count together."""

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

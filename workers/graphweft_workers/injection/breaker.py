"""When the graph of an app is away, most requests are not kept waiting to find that out again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

_FAILURES: Final = 5
_FIRST_WAIT_S: Final = 0.2
_LAST_WAIT_S: Final = 5.0
_REMEMBERED: Final = 10_000
"""Apps; their names come from outside, so there is no end of them."""


@dataclass(slots=True)
class _App:
    failures: int = 0
    until: float | None = None
    """When the next request may try; None: it is closed."""
    wait_s: float = _FIRST_WAIT_S
    trying: bool = False


@dataclass(slots=True)
class Breaker:
    """Opens for an app after 5 failures in a row; then one request at a time tries, after 0.2 to 5 s.

    A failure is that the server is away; a query that it refuses is a success.
    """

    clock: Callable[[], float] = time.monotonic
    _apps: dict[str, _App] = field(default_factory=dict[str, _App])

    def enter(self, app_id: str) -> Literal["closed", "trial", "open"]:
        """Say whether a request may ask the graph: not when it is open. After ``trial`` call ``leave``."""
        app = self._apps.get(app_id)
        if app is None or app.until is None:
            return "closed"
        if app.trying or self.clock() < app.until:
            return "open"
        app.trying = True
        return "trial"

    def leave(self, app_id: str) -> None:
        """End a trial. One without a success was none: the next comes after twice the time."""
        app = self._apps.get(app_id)
        if app is not None and app.until is not None:
            app.trying = False
            app.wait_s = min(app.wait_s * 2, _LAST_WAIT_S)
            app.until = self.clock() + app.wait_s

    def succeeded(self, app_id: str) -> None:
        """Note that the server answered: it is closed."""
        if self._apps:
            self._apps.pop(app_id, None)

    def failed(self, app_id: str) -> None:
        """Note that the server was away."""
        app = self._apps.get(app_id)
        if app is None:
            if len(self._apps) >= _REMEMBERED:
                self._apps.pop(next(iter(self._apps)))
            app = self._apps[app_id] = _App()
        app.failures += 1
        if app.failures >= _FAILURES and app.until is None:
            app.until = self.clock() + app.wait_s

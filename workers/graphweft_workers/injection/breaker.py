"""A circuit breaker for each app: while its graph is unavailable, most requests do not wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.support.timing import TIMING, ContextTiming

_FAILURES: Final = 5


@dataclass(slots=True, kw_only=True)
class _App:
    failures: int = 0
    until: float | None = None
    """When the next request may try; None while closed."""
    wait_s: float
    trying: bool = False


@dataclass(slots=True)
class Breaker:
    """Opens for an app after 5 failures in a row; then one request at a time tries, after 0.2 to 5 s.

    Only an unavailable server is a failure; a refused query is a success.
    """

    clock: Clock = SYSTEM_CLOCK
    timing: ContextTiming = TIMING.context
    _apps: BoundedDict[str, _App] = field(default_factory=BoundedDict[str, _App])

    def enter(self, app_id: str) -> Literal["closed", "trial", "open"]:
        """Tell whether a request may ask the graph: not if ``open``. After ``trial``, call ``leave``."""
        app = self._apps.get(app_id)
        if app is None or app.until is None:
            return "closed"
        if app.trying or self.clock.monotonic() < app.until:
            return "open"
        app.trying = True
        return "trial"

    def leave(self, app_id: str) -> None:
        """End a trial. After one without a success, the next one waits twice as long."""
        app = self._apps.get(app_id)
        if app is not None and app.until is not None:
            app.trying = False
            app.wait_s = min(app.wait_s * 2, self.timing.last_trial_s)
            app.until = self.clock.monotonic() + app.wait_s

    def succeeded(self, app_id: str) -> None:
        """Note that the server answered; this closes the breaker."""
        self._apps.pop(app_id, None)

    def failed(self, app_id: str) -> None:
        """Note that the server was unavailable."""
        app = self._apps.setdefault(app_id, _App(wait_s=self.timing.first_trial_s))
        app.failures += 1
        if app.failures >= _FAILURES and app.until is None:
            app.until = self.clock.monotonic() + app.wait_s

"""How long a client waits: values that are passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_BUDGET_MS: Final = 500
"""How long a context may take unless a caller says otherwise: clients, adapters, wrapped model clients and the gateway.
A turn waits this long only if nobody answers. See decision 80."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportTiming:
    """A transport; each has a class of its own with its further waits."""

    layout_s: float = 30.0
    """How long a producer uses the layout that it has read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTiming:
    """Adapters of runtimes."""

    tick_s: float = 5.0
    """The longest time between two looks for abandoned turns."""
    confirm_s: float = 5.0
    """How long the position of an event is waited for: later context then need not reflect it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTiming:
    """The client."""

    first_retry_s: float = 0.1
    last_retry_s: float = 2.0
    """When events are sent again while the bus, or a partition of it, is unavailable; the wait doubles."""
    reserve: float = 0.02
    least_reserve_ms: float = 2.0
    most_reserve_ms: float = 5.0
    """A call gives up this share of its budget early, within these bounds, and at most half of the budget early. The
    event loop waits in whole milliseconds, so timers fire up to 1 ms late, and the call still has to return: with a
    reserve of 1 ms about half of the calls returned too late."""
    append_s: float = 15.0
    """Limit of a request to a gateway, which waits 10 s for a body, and 5 s for the bus."""
    last_calls_s: float = 1.0
    """How long a synchronous client waits at its end for calls of other threads."""
    adapters: AdapterTiming = AdapterTiming()

    def reserve_ms(self, budget_ms: int) -> float:
        """Return how long before the end of its budget a call gives up."""
        return min(max(budget_ms * self.reserve, self.least_reserve_ms), self.most_reserve_ms, budget_ms / 2)


CLIENT_TIMING: Final = ClientTiming()
"""What runs in production, and the default wherever a value may be passed in."""

"""Whether the clocks of runtimes and responders agree: deadlines are times of day."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Final

import structlog

from graphweft_contracts import Transient
from graphweft_workers.injection.requests import RequestQueue

logger = structlog.get_logger("graphweft.injection")

_SKEW_MS: Final = 50
"""A request that is late by more than this when it comes to the bus has its deadline from a clock that differs."""
_MOST_MS: Final = 86_400_000
"""Of what is said; anybody may send any number."""


@dataclass(slots=True)
class Clocks:
    """Warns, once, of requests that are lost because clocks differ. A queue that tells no age tells nothing of it."""

    queue: RequestQueue
    _done: bool = False

    async def look(self, token: str, deadline_ms: int) -> None:
        """Look whether a late request was late when it came; of several at once only at one."""
        if self._done:
            return
        self._done = True
        age_s: float | None = None
        with contextlib.suppress(Transient):
            age_s = await self.queue.age_s(token)
        late_ms = 0 if age_s is None else int((time.time() - age_s) * 1000) - deadline_ms
        self._done = late_ms > _SKEW_MS
        if self._done:
            logger.warning(
                "clock_skew",
                late_ms=min(late_ms, _MOST_MS),
                error="by the clock of this machine a request was late before it came to the bus; such requests are "
                "dropped: set the clocks of runtimes and responders by NTP",
            )

"""Warns if the clocks of runtimes and responders differ: deadlines are wall-clock times."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from graphweft_contracts import Transient
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.ports.request_queue import RequestQueue
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.timing import TIMING

logger = get_logger("graphweft.injection")

_MOST_MS: Final = 86_400_000
"""Upper bound of the logged value: a request may hold any number."""


@dataclass(slots=True)
class ClockSkew:
    """Logs one warning for requests that are dropped because clocks differ, if the queue knows the age of requests."""

    queue: RequestQueue
    clock: Clock = SYSTEM_CLOCK
    skew_ms: int = TIMING.context.skew_ms
    _done: bool = False

    async def check(self, token: str, deadline_ms: int) -> None:
        """Check whether a late request was late already when it reached the bus; one request at a time."""
        if self._done:
            return
        self._done = True
        age_s: float | None = None
        with contextlib.suppress(Transient):
            age_s = await self.queue.age_s(token)
        late_ms = 0 if age_s is None else int((self.clock.now().timestamp() - age_s) * 1000) - deadline_ms
        self._done = late_ms > self.skew_ms
        if self._done:
            logger.warning(
                "clock_skew",
                late_ms=min(late_ms, _MOST_MS),
                error="by this machine's clock a request passed its deadline before it reached the bus; such requests "
                "are dropped: synchronize the clocks of runtimes and responders by NTP",
            )

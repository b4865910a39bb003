"""A right that a server may refuse: it is tried again from time to time, because somebody may give it."""

from __future__ import annotations

from typing import Final

from graphweft_contracts.clock import Clock

AGAIN_S: Final = 30.0
"""How long what was refused is not tried: somebody who has given the right looks within a minute."""


class RefusedRight:
    """Whether a server refuses a right. Who uses it tells of each refusal, and of what the server allows."""

    def __init__(self, clock: Clock, *, again_s: float = AGAIN_S) -> None:
        self._clock = clock
        self._again_s = again_s
        self._again_at: float | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the server refused it when it was last tried."""
        return self._again_at is not None

    @property
    def is_due(self) -> bool:
        """Whether it is to be tried now: it was not refused, or not lately."""
        return self._again_at is None or self._clock.monotonic() >= self._again_at

    def refuse(self) -> bool:
        """Note that the server refused it; return whether that is new, so that one line in the log says it."""
        is_new = self._again_at is None
        self._again_at = self._clock.monotonic() + self._again_s
        return is_new

    def allow(self) -> bool:
        """Note that the server allowed it; return whether it was refused before."""
        was_refused, self._again_at = self.is_refused, None
        return was_refused

"""Limits of a rate."""

from __future__ import annotations

from typing import Final

_SOON_S: Final = 1e-6
"""A wait that a sum of floats may not reach."""


class TokenBucket:
    """Allows ``per_s`` units a second, and what a second brings at once.

    Anything is taken while one unit is left, so a batch may be larger than the limit: the next one waits until it is
    paid off. On average a caller takes at most ``per_s``. ``now`` is a time in seconds that never goes back.
    """

    __slots__ = ("_at", "_left", "_room", "per_s")

    def __init__(self, per_s: float, now: float) -> None:
        self.per_s = per_s
        self._room = self._left = max(per_s, 1.0)
        self._at = now

    def wait_s(self, now: float) -> float:
        """Return the seconds until something may be taken; 0 if it may be taken now."""
        self._left = min(self._room, self._left + (now - self._at) * self.per_s)
        self._at = now
        wait_s = (1.0 - self._left) / self.per_s
        return wait_s if wait_s > _SOON_S else 0.0

    def take(self, units: float) -> None:
        """Take units."""
        self._left -= units

    @property
    def left(self) -> float:
        """The units that were left at the last call; below 0 they are owed."""
        return self._left

    @property
    def used(self) -> float:
        """The units that were taken and not yet brought back by time."""
        return self._room - self._left

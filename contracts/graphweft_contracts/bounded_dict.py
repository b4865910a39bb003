"""A dictionary of bounded size, for keys that come from outside, such as the names of apps."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """Holds at most ``limit`` keys: a new key beyond them removes the oldest key.

    Assigning to a key makes it the newest; reading changes nothing.
    """

    def __init__(self, limit: int = 10_000) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        """Set the value, and remove the oldest key if there are too many."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)

"""A map of limited size."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """A dictionary that keeps at most ``limit`` keys.

    Assigning to a key makes it the newest; beyond the limit the oldest key is removed. Reading changes nothing. Only
    assignment by index counts: do not fill it with ``update`` or ``setdefault``.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        """Set the value, and remove the oldest key if there are too many."""
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._limit:
            del self[next(iter(self))]

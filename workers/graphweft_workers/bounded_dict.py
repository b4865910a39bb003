"""A dictionary of bounded size, for keys that come from outside, such as the names of apps."""

from __future__ import annotations

from collections import OrderedDict


class BoundedDict[Key, Value](OrderedDict[Key, Value]):
    """Holds at most ``limit`` keys: a new key beyond them removes the oldest key.

    The age of a key counts from its first assignment; ``move_to_end`` renews it.
    """

    def __init__(self, limit: int = 10_000) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self._limit:
            self.popitem(last=False)

"""Values of many apps in one bounded room, of which no app can push the values of another out of its even share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _OfApp[Key, Value]:
    values: OrderedDict[Key, tuple[Value, int]] = field(default_factory=OrderedDict[Any, Any])
    """With their sizes, the least recently used first."""
    size: int = 0


@dataclass(slots=True)
class AppShares[Key, Value]:
    """Values by app and key. If their sizes are more than ``limit`` together, the app with the most forgets what it has
    not used for the longest time. So one with no more than an even share keeps what it has.
    """

    limit: int
    size: int = 0
    """Of all values."""
    _apps: OrderedDict[str, _OfApp[Key, Value]] = field(default_factory=OrderedDict[Any, Any])
    """The least recently used first."""

    def __len__(self) -> int:
        return sum(len(of_app.values) for of_app in self._apps.values())

    def __iter__(self) -> Iterator[tuple[str, Key]]:
        return ((app_id, key) for app_id, of_app in self._apps.items() for key in of_app.values)

    def get(self, app_id: str, key: Key) -> Value | None:
        """Return a value, and count it as used."""
        of_app = self._apps.get(app_id)
        if of_app is None or (found := of_app.values.get(key)) is None:
            return None
        self._apps.move_to_end(app_id)
        of_app.values.move_to_end(key)
        return found[0]

    def put(self, app_id: str, key: Key, value: Value, size: int = 1) -> None:
        """Keep a value in place of an earlier one; it may be the first to be forgotten."""
        self.pop(app_id, key)
        of_app = self._apps.setdefault(app_id, _OfApp())
        self._apps.move_to_end(app_id)
        of_app.values[key] = value, size
        of_app.size += size
        self.size += size
        while self.size > self.limit:
            largest = max(self._apps, key=lambda each: self._apps[each].size)
            self.pop(largest, next(iter(self._apps[largest].values)))

    def pop(self, app_id: str, key: Key) -> None:
        """Forget a value, if it is there."""
        of_app = self._apps.get(app_id)
        if of_app is None or (found := of_app.values.pop(key, None)) is None:
            return
        of_app.size -= found[1]
        self.size -= found[1]
        if not of_app.values:
            del self._apps[app_id]

    def pop_app(self, app_id: str) -> None:
        """Forget all values of an app."""
        of_app = self._apps.pop(app_id, None)
        if of_app is not None:
            self.size -= of_app.size

    def clear(self) -> None:
        """Forget all values."""
        self._apps.clear()
        self.size = 0

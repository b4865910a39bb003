"""Telling the second copy of an event from a new one.

A producer that lost the answer to its write writes again, so the log may hold an event twice. The rule is a property
of the log alone, so every reading of it decides alike: an entry is a copy when one of the ``WINDOW`` entries before it
in its partition has the same app, source and id.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from graphweft_contracts import Event, wire
from graphweft_workers.bus.log import Entry

WINDOW: Final = 10_000
"""Entries. A worker that starts reads as many back, so the bound is also the price of a start (about 0.1 s)."""

type Identity = tuple[str, ...]


def identity_of(entry: Entry, event: Event) -> Identity:
    """Return what makes two entries one event. Tenants cannot shadow one another; a retry is an event of its own.

    Raises ``InvalidEvent`` when the entry says that it is a retry and does not say of what.
    """
    retried = wire.retry_of(entry.fields)
    if retried is not None:
        return (event.appid, "retry", retried.letter)
    return (event.appid, event.source, event.id)


class RecentEvents:
    """The identities of the last entries of one partition."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._order: deque[Identity | None] = deque()
        self._counts: Counter[Identity] = Counter()

    def is_copy(self, identity: Identity | None) -> bool:
        """Note the next entry of the partition and return whether it repeats a recent one.

        Entries without an identity (they could not be decoded) count for the window and repeat nothing.
        """
        known = identity is not None and identity in self._counts
        self._order.append(identity)
        if identity is not None:
            self._counts[identity] += 1
        if len(self._order) > self._window:
            oldest = self._order.popleft()
            if oldest is not None:
                self._counts[oldest] -= 1
                if not self._counts[oldest]:
                    del self._counts[oldest]
        return known

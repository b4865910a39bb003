"""Recognises copies of events.

A producer that gets no answer to a write repeats it, so the log may hold an event twice. An entry is a copy if one of
the ``WINDOW`` entries before it in its partition has the same app, source and id. This depends on the log alone, so
every reader decides alike.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from graphweft_contracts import Event, wire
from graphweft_workers.ports.event_log import Entry

WINDOW: Final = 10_000
"""Entries. A worker reads as many back when it opens a partition, which takes about 0.1 s."""

type Identity = tuple[str, ...]


def identity_of(entry: Entry, event: Event) -> Identity:
    """Return a value that is equal for two entries of the same event of the same app; a retry is an event of its own.

    The retry of an entry that was not a valid event is that event.

    Raises ``InvalidEvent`` if the entry is a retry but does not say of which mutation.
    """
    retried = wire.retry_of(entry.fields)
    if retried is not None and retried.rule != wire.WHOLE:
        return (event.appid, "retry", retried.letter)
    return (event.appid, event.source, event.id)


class RecentEvents:
    """The identities of the last entries of one partition."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._order: deque[Identity | None] = deque()
        self._counts: Counter[Identity] = Counter()

    def is_copy(self, identity: Identity | None) -> bool:
        """Add the next entry of the partition; return whether it is a copy of a recent one.

        Entries without an identity, which could not be decoded, fill the window and are never copies.
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

"""Events that the bus has not confirmed: a queue for each partition."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphweft.transport import Outgoing
    from graphweft_contracts import BusUnavailable, Event, InvalidEvent, Layout, PartitionRefused


@dataclass(slots=True, kw_only=True, eq=False)
class PartitionQueue:
    """The events for one partition, in order."""

    partition: int
    events: deque[PendingEvent] = field(default_factory=deque)
    bytes: int = 0
    held: bool = False
    """Whether the partition takes no events for now. Then its queue is sent apart from the others."""
    refusal: str = ""
    """Why it refused the last one."""

    def add(self, pending: PendingEvent) -> None:
        """Put an event at the end."""
        pending.queue = self
        self.events.append(pending)
        self.bytes += pending.size

    def first(self, count: int) -> list[PendingEvent]:
        """Return the first events."""
        return list(islice((pending for pending in self.events if not pending.settled), count))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedEvent:
    """An event, and what is sent of it."""

    event: Event
    outgoing: Outgoing

    @property
    def size(self) -> int:
        """Bytes of its fields."""
        return sum(map(len, self.outgoing.fields.values()))


@dataclass(slots=True, kw_only=True, eq=False)
class PendingEvent:
    """An event in the outbox."""

    event_id: str
    outgoing: Outgoing
    size: int
    position: asyncio.Future[str | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """None if the bus will not have the event."""
    refusal: InvalidEvent | PartitionRefused | BusUnavailable | None = None
    """Why the bus will not have it."""
    number: int = 0
    """Its place in the order of all events."""
    queue: PartitionQueue | None = None
    settled: bool = False


class Outbox:
    """Holds up to ``limit`` events with at most ``limit_bytes`` bytes. Without a layout all are in one queue."""

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self.limit = limit
        self.limit_bytes = limit_bytes
        self.count = 0
        self._bytes = 0
        self._next = 0
        self._layout: Layout | None = None
        self._queues: dict[int, PartitionQueue] = {}

    def use(self, layout: Layout) -> None:
        """Put all events into the queues of a layout, if it is another one."""
        if layout == self._layout:
            return
        self._layout = layout
        waiting = sorted(self.pending(), key=attrgetter("number"))
        for queue in self._queues.values():
            queue.events.clear()
            queue.bytes = 0
        for pending in waiting:
            self._queue_of(pending).add(pending)

    def add(self, events: Sequence[PendingEvent], *, sharing: bool = True) -> bool:
        """Take all events and return True, or take none and return False if there is no room for all of them.

        With ``sharing``, queues that are held have half of the room, so that events of the others find some.
        """
        size = sum(pending.size for pending in events)
        if self.count + len(events) > self.limit or self._bytes + size > self.limit_bytes:
            return False
        queues = [self._queue_of(pending) for pending in events]
        if sharing and any(queue.held for queue in queues):
            held = [queue for queue in self._queues.values() if queue.held]
            count = len(events) + sum(len(queue.events) for queue in held)
            if count * 2 > self.limit or (size + sum(queue.bytes for queue in held)) * 2 > self.limit_bytes:
                return False
        for queue, pending in zip(queues, events, strict=True):
            pending.number = self._next
            self._next += 1
            queue.add(pending)
        self.count += len(events)
        self._bytes += size
        return True

    def pending(self) -> Iterable[PendingEvent]:
        """Return all events, queue by queue."""
        return [pending for queue in self._queues.values() for pending in queue.first(self.limit)]

    def first(self, count: int) -> list[PendingEvent]:
        """Return the oldest events of all queues that are not held."""
        parts = [queue.events for queue in self._queues.values() if queue.events and not queue.held]
        merged = chain(*parts) if len(parts) == 1 else heapq.merge(*parts, key=attrgetter("number"))
        return list(islice((pending for pending in merged if not pending.settled), count))

    @property
    def refusals(self) -> dict[int, str]:
        """Why partitions refused their last event."""
        return {queue.partition: queue.refusal for queue in self._queues.values() if queue.refusal}

    @property
    def ready(self) -> bool:
        """Whether some event is in a queue that is not held."""
        return any(queue.events and not queue.held for queue in self._queues.values())

    def settle(self, pending: PendingEvent, position: str | None) -> None:
        """Remove an event, and set its position."""
        if pending.settled:
            return
        pending.settled = True
        self.count -= 1
        self._bytes -= pending.size
        if pending.queue is not None:
            pending.queue.bytes -= pending.size
            while (events := pending.queue.events) and events[0].settled:
                events.popleft()
        if not pending.position.done():
            pending.position.set_result(position)

    def _queue_of(self, pending: PendingEvent) -> PartitionQueue:
        partition = 0 if self._layout is None else self._layout.partition_of(pending.outgoing.key)
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(partition=partition)
        return queue

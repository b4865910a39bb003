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
    from graphweft_contracts import InvalidEvent, Layout, PartitionRefused


@dataclass(slots=True, kw_only=True, eq=False)
class Lane:
    """The events for one partition, in order."""

    partition: int
    queue: deque[Pending] = field(default_factory=deque)
    bytes: int = 0
    held: bool = False
    """Whether the partition takes no events for now. Then its lane is sent apart from the others."""
    refused: int = 0
    """Events that the partition refused since it took one."""
    refusal: str = ""
    """Why it refused the last one."""

    def add(self, pending: Pending) -> None:
        """Put an event at the end."""
        pending.lane = self
        self.queue.append(pending)
        self.bytes += pending.size

    def first(self, count: int) -> list[Pending]:
        """Return the first events."""
        return list(islice((pending for pending in self.queue if not pending.settled), count))


@dataclass(slots=True, kw_only=True, eq=False)
class Pending:
    """An event in the outbox."""

    event_id: str
    outgoing: Outgoing
    size: int
    position: asyncio.Future[str | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """None if the bus will not have the event."""
    refusal: InvalidEvent | PartitionRefused | None = None
    number: int = 0
    """Its place in the order of all events."""
    lane: Lane | None = None
    settled: bool = False


class Outbox:
    """Holds up to ``limit`` events with at most ``limit_bytes`` bytes. Without a layout all are in one lane."""

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self.limit = limit
        self.limit_bytes = limit_bytes
        self.count = 0
        self._bytes = 0
        self._next = 0
        self._layout: Layout | None = None
        self._lanes: dict[int, Lane] = {}

    def use(self, layout: Layout) -> None:
        """Put all events into the lanes of a layout, if it is another one."""
        if layout == self._layout:
            return
        self._layout = layout
        waiting = sorted(self.pending(), key=attrgetter("number"))
        for lane in self._lanes.values():
            lane.queue.clear()
            lane.bytes = 0
        for pending in waiting:
            self._lane_of(pending).add(pending)

    def add(self, events: Sequence[Pending], *, sharing: bool = True) -> bool:
        """Take all events, or none if there is no room for all of them; tell which.

        With ``sharing``, lanes that are held have half of the room, so that events of the others find some.
        """
        size = sum(pending.size for pending in events)
        if self.count + len(events) > self.limit or self._bytes + size > self.limit_bytes:
            return False
        lanes = [self._lane_of(pending) for pending in events]
        if sharing and any(lane.held for lane in lanes):
            held = [lane for lane in self._lanes.values() if lane.held]
            count = len(events) + sum(len(lane.queue) for lane in held)
            if count * 2 > self.limit or (size + sum(lane.bytes for lane in held)) * 2 > self.limit_bytes:
                return False
        for lane, pending in zip(lanes, events, strict=True):
            pending.number = self._next
            self._next += 1
            lane.add(pending)
        self.count += len(events)
        self._bytes += size
        return True

    def pending(self) -> Iterable[Pending]:
        """Return all events, lane by lane."""
        return [pending for lane in self._lanes.values() for pending in lane.first(self.limit)]

    def first(self, count: int) -> list[Pending]:
        """Return the oldest events of all lanes that are not held."""
        queues = [lane.queue for lane in self._lanes.values() if lane.queue and not lane.held]
        merged = chain(*queues) if len(queues) == 1 else heapq.merge(*queues, key=attrgetter("number"))
        return list(islice((pending for pending in merged if not pending.settled), count))

    @property
    def refusals(self) -> dict[int, str]:
        """Why partitions refused their last event."""
        return {lane.partition: lane.refusal for lane in self._lanes.values() if lane.refusal}

    @property
    def ready(self) -> bool:
        """Whether some event is in a lane that is not held."""
        return any(lane.queue and not lane.held for lane in self._lanes.values())

    def settle(self, pending: Pending, position: str | None) -> None:
        """Remove an event, and set its position."""
        if pending.settled:
            return
        pending.settled = True
        self.count -= 1
        self._bytes -= pending.size
        if pending.lane is not None:
            pending.lane.bytes -= pending.size
            while (queue := pending.lane.queue) and queue[0].settled:
                queue.popleft()
        if not pending.position.done():
            pending.position.set_result(position)

    def _lane_of(self, pending: Pending) -> Lane:
        partition = 0 if self._layout is None else self._layout.partition_of(pending.outgoing.key)
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane(partition=partition)
        return lane

"""What a job of the memory workers is: it reads events and says which events follow from them.

A model's answer is an event of its own, so that a replay asks no model. Jobs write nothing but events, and dead letters
for what they give up.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from graphweft_contracts import DeadLetter, Event, wire
from graphweft_workers.bus.log import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One event of the log, as a job sees it."""

    event: Event
    position: str
    """``partition:offset``"""
    retried: wire.Retry | None = None
    """Set when the entry is there to try one mutation of the event again; the event itself was seen before."""
    entry: Entry | None = None
    """As it stands on the bus; a worker always gives it."""


class Job(Protocol):
    """One thing that is done with the events of memory, with positions of its own on the bus.

    One object serves all partitions of a process, several at a time, in one event loop. The creator closes it.
    """

    group: str
    """The group on the bus whose positions are the job's."""
    types: frozenset[str]
    """The types of events that it wants; others are passed by."""
    tick_s: float = 0.0
    """Seconds between two calls of ``tick`` for a partition; 0: it is not called."""

    async def begin(self, partition: int) -> None:
        """Take note that the next events of a partition may have been handled before, in part, by whomever.

        Called whenever a worker takes a partition over, or over again; raises nothing.
        """
        del partition

    def handle(self, seen: Sequence[Seen]) -> AsyncGenerator[Sequence[Event | DeadLetter]]:
        """Yield the events that follow from these, which stand on one partition, in its order; and dead letters.

        What is yielded is on the bus before the generator goes on, and the position moves when it has ended. After
        whatever interruption the same events come again, cut into calls otherwise: so the ids of what is yielded must
        follow from single events. ``Transient`` lets the worker wait and call again; what is permanently wrong with
        one event must not be raised. A call may be cancelled anywhere.
        """
        ...

    async def tick(self, partition: int, partitions: int) -> AsyncGenerator[Sequence[Event]]:
        """Yield the events that time alone makes due on one of ``partitions`` partitions.

        Called between batches. ``Transient`` ends the call; the next one comes after ``tick_s``.
        """
        nothing: tuple[Sequence[Event], ...] = ()
        for events in nothing:
            yield events

    async def aclose(self) -> None:
        """Let go of what the job holds; a second call does nothing."""
        ...

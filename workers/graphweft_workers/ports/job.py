"""The protocol of a job: it reads events of the log and derives further events from them.

A model's answer becomes an event of its own, so a replay of the log needs no model. A job writes nothing but events,
and dead letters for events that it gives up. What it leaves out without a dead letter it says as a skip.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from graphweft_contracts import DeadLetter, Event, Transient, wire
from graphweft_workers.ports.event_log import Entry


@dataclass(slots=True, kw_only=True)
class JobEvent:
    """One event of the log, as a job receives it: again the same object if the job must try again."""

    event: Event
    position: str
    """``partition:offset``"""
    retried: wire.Retry | None = None
    """Set if the entry retries one mutation of an event that was seen before."""
    entry: Entry | None = None
    """The entry on the bus; a worker always sets it."""
    done: bool = field(default=False, compare=False)
    """A job sets it when the bus holds all that follows from the event: it does not receive the event again."""
    tried: bool = field(default=False, compare=False)
    """Whether a job has received it before. A worker looks then whether the event was erased meanwhile."""
    erasures: int = field(default=0, compare=False)
    """It is on the log behind the erasure with this number of ``KnownErasures``, or was when it was read."""
    parts: set[int | str] = field(default_factory=set[int | str], compare=False)
    """What a job notes of the event for its next try: the parts of which the bus holds all that follows."""

    @property
    def offset(self) -> str:
        """The entry's offset."""
        return self.position.partition(":")[2]

    @property
    def plain(self) -> Event:
        """The event, by the name that it has where no model was made of it yet."""
        return self.event


type SkipReason = Literal["text_refused", "query_failed"]
"""Why a job leaves something out: the model refuses a text, or the graph a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSkip:
    """Something that a job leaves out without a dead letter: ``status`` and metrics count it."""

    app_id: str
    reason: SkipReason


@dataclass(frozen=True, slots=True, kw_only=True)
class AppWait:
    """An app whose events wait, but for those that are done, while the events of other apps go on."""

    app_id: str
    error: Transient
    """Why, and when to try again."""


type JobOutcome = Event | DeadLetter | JobSkip | AppWait


class Job(Protocol):
    """One task on the events of memory, with positions of its own on the bus.

    One object serves all partitions of a process, several at a time, in one event loop. The creator closes it.
    """

    group: str
    """The group of readers whose positions belong to the job."""
    types: frozenset[str]
    """The types of events that the job receives."""
    tick_s: float = 0.0
    """Seconds between two calls of ``tick`` for a partition; 0: never."""

    async def begin(self, partition: int) -> None:
        """Prepare for a partition whose next events may have been handled before, in part, by any worker.

        Called each time a worker opens a partition. Raises nothing.
        """
        del partition

    def handle(self, seen: Sequence[JobEvent]) -> AsyncGenerator[Sequence[JobOutcome]]:
        """Yield what follows from events of one partition, given in its order.

        The bus holds each yielded item before the generator continues, or the worker keeps it until the bus takes
        events of its app again; the position moves when the generator ends and all is on the bus.
        After an interruption the same events arrive again, in other groupings, so the ids of yielded items must depend
        on single events only. On ``Transient`` the worker waits and calls again with the events that are not done; for
        a ``AppWait`` with those of the app, and if it waits for more than a moment, later events of other apps arrive
        meanwhile. A permanent fault of one event must not be raised. A call may be cancelled at any await.
        """
        ...

    async def tick(self, partition: int, partitions: int) -> AsyncGenerator[Sequence[JobOutcome]]:
        """Yield the events and skips that are due by time alone on one of ``partitions`` partitions.

        Called between batches: first after the first batch of a partition that is opened, then ``tick_s`` after the
        last call by the same worker; sooner if that raised ``Transient``.
        """
        nothing: tuple[Sequence[JobOutcome], ...] = ()
        for events in nothing:
            yield events

    async def aclose(self) -> None:
        """Release what the job holds; a second call does nothing."""
        ...

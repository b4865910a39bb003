"""The port of the event log: the entries of its partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from graphweft_contracts import BusUnavailable, Event, Layout, wire
from graphweft_contracts.errors import MisplacedEvent
from graphweft_workers.ports import event_decoder
from graphweft_workers.ports.event_decoder import PlainEvent


class EntriesLost(BusUnavailable):
    """Entries that were asked for are neither on the bus nor in its archive."""


class Judge(Protocol):
    """Decides by signatures whether entries have an effect."""

    def check(self, fields: Mapping[bytes, bytes], event: Event, received: datetime) -> None:
        """Raise ``RefusedEvent`` for an event that may not have an effect."""
        ...

    def check_drop(self, fields: Mapping[bytes, bytes], dropped: wire.DroppedLetter, received: datetime) -> None:
        """Raise ``RefusedEvent`` for the record of a dropped dead letter that may not have an effect."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPlace:
    """The partition of an entry, and the layout of its bus."""

    partition: int
    layout: Layout

    def check(self, app_id: str, received: datetime) -> None:
        """Raise ``MisplacedEvent`` for an entry of an app whose events are in another partition."""
        if fault := self.layout.fault_of(self.partition, app_id, received):
            raise MisplacedEvent(fault)

    def apps_elsewhere(self, received: datetime) -> frozenset[str]:
        """Return the apps with a partition of their own that an entry without an app says nothing of."""
        own = self.layout.own
        return frozenset(app_id for app_id in own if self.layout.fault_of(self.partition, app_id, received))


@dataclass(slots=True, kw_only=True)  # frozen would triple the cost, and there is one per event
class Entry:
    """One entry of a partition, not yet decoded. ``received`` is the time at which the server took it."""

    offset: str
    fields: Mapping[bytes, bytes]
    received: datetime
    erased: bool = False
    """Whether its content was erased from the archive: it has no fields, and no effect. A bus never says so."""
    judge: Judge | None = field(default=None, compare=False, repr=False)
    """Who says whether the entry may be what it is; None: it may."""
    place: EntryPlace | None = field(default=None, compare=False, repr=False)
    """Where the entry is; None where that decides nothing."""

    @property
    def owner(self) -> str | None:
        """The only app whose events its partition takes; None if apps share it."""
        return None if self.place is None else self.place.layout.owner_of(self.place.partition)

    def event(self) -> Event:
        """Return the event as workers apply it. Raises what ``read`` does."""
        return event_decoder.whole(self.read())

    def read(self) -> Event | PlainEvent:
        """Decode the event as workers apply it.

        Raises ``InvalidEvent``, which is a ``RefusedEvent`` if its signature is missing or wrong, and a
        ``MisplacedEvent`` if its app's events are in another partition.
        """
        received = self.received
        if wire.RETRY in self.fields:
            received = wire.recorded_at(self.fields, received)
        event = event_decoder.decode(self.fields, received)
        if self.place is not None:
            self.place.check(event.appid, self.received)
        if self.judge is not None:
            self.judge.check(self.fields, event_decoder.whole(event), self.received)
        return event

    def dropped(self) -> wire.DroppedLetter | None:
        """Return the dropped dead letter that the entry records, or None. Raises ``InvalidEvent`` like ``event``."""
        dropped = wire.dropped_of(self.fields)
        if dropped is not None and dropped.app_id is not None and self.place is not None:
            self.place.check(dropped.app_id, self.received)
        if dropped is not None and self.judge is not None:
            self.judge.check_drop(self.fields, dropped, self.received)
        return dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPosition:
    """A position: the last offset (empty: none) up to which all events took effect, and the number of these events.

    The number includes events that were trimmed before they were read. ``note`` is text of the reader (3 kB at most)
    that is stored with the position and returned with it. It says nothing about the position.
    """

    offset: str = ""
    count: int = 0
    note: str = field(default="", compare=False)

    def to_text(self) -> str:
        """Return the position and its note as ``of_text`` reads them."""
        return f"{self.offset} {self.count} {self.note}"

    @classmethod
    def of_text(cls, text: str) -> CommittedPosition:
        """Return the position that ``to_text`` wrote."""
        offset, count, note = text.split(" ", 2)
        return cls(offset=offset, count=int(count), note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A contiguous range of a partition that was read."""

    entries: Sequence[Entry]
    lost: int = 0
    """The number of entries before the first one here that were trimmed before they were read."""
    stepped: bool = False
    """Whether the reader passed something after the position that is not an entry. Commit the position again then."""


class EventLog(Protocol):
    """The entries of partitions, in their order.

    Order: ``read`` returns a contiguous range of one partition in its order, without gaps. Redelivery: reading again
    from the same offset returns the same entries. Every method raises ``BusUnavailable`` when the server is
    unavailable. Offsets have a form of ``OffsetForm``.
    """

    async def read(self, partition: int, after: CommittedPosition, *, limit: int, wait_s: float | None = None) -> Batch:
        """Return up to ``limit`` entries after a position.

        With ``wait_s`` the reader goes on from its own position, for which it claims the partition before, and waits so
        many seconds for the first entry. Without it, any position can be read, at once and without a claim.

        One call returns about 16 MiB, or a single entry that is larger. Entries that were trimmed unread are counted
        exactly: ``after.count`` includes all entries up to the position, trimmed ones too.

        Raises ``BusUnavailable`` also if the partition ends before the position, because the log was recreated. Then
        continue from ``Partitions.committed``.
        """
        ...

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        """Return the entries with these offsets that still exist. ``offsets`` are in order and do not repeat."""
        ...

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """Return up to ``limit`` entries after an offset that exist now. Tools use it; it needs no claim.

        With an archive, raises ``EntriesLost`` if entries between two that exist are missing.
        """
        ...

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """Return the last ``limit`` entries up to and including ``offset``, in order.

        Fewer if they are large: about 8 MiB (``pages.PAGE_BYTES``), but two entries if there are as many.
        """
        ...

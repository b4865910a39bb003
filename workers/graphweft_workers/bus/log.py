"""What the engine needs of a bus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from graphweft_contracts import DeadLetter

__all__ = ("Bus", "Committed", "Entry", "PartitionStatus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a partition, not yet decoded. ``received`` is the bus's own time of it."""

    offset: str
    fields: Mapping[bytes, bytes]
    received: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The last offset (empty: none) up to which all events took effect, and how many events that is."""

    offset: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Where a partition stands: committed offset, last offset on the bus, and the number of events between them."""

    id: int
    position: str
    end: str
    lag: int
    owner: str | None


class Bus(Protocol):
    """Partitions of events, read like a log, and the dead letters.

    Order: ``read`` returns a contiguous range of one partition in its order, without gaps. Redelivery: reading again
    from the same offset returns the same entries; nothing is acknowledged but by ``commit``. Ownership: ``claim`` is a
    lease and keeps workers out of each other's way; it does not protect the graph (the graph's own mark does), so two
    owners at once are harmless. Every method raises ``BusUnavailable`` when the bus is away. The creator closes it.
    """

    async def partitions(self) -> int:
        """Return the number of partitions; it never changes for a bus."""
        ...

    async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
        """Take or extend the lease on a partition; False while somebody else holds it."""
        ...

    async def release(self, partition: int, owner: str) -> None:
        """Give the lease back if ``owner`` holds it."""
        ...

    async def committed(self, partition: int) -> Committed:
        """Return where the next reader has to begin."""
        ...

    async def read(self, partition: int, after: str, *, limit: int, wait_s: float) -> Sequence[Entry]:
        """Return up to ``limit`` entries after an offset; waits up to ``wait_s`` for the first one."""
        ...

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """Return the last ``limit`` entries up to and including ``offset``, in order."""
        ...

    def is_after(self, offset: str, other: str) -> bool:
        """Return whether ``offset`` stands behind ``other`` in a partition; the empty offset stands before all."""
        ...

    async def commit(self, partition: int, committed: Committed) -> None:
        """Record that all events up to an offset took effect and are on disk in the graph. Never goes back."""
        ...

    async def status(self) -> Sequence[PartitionStatus]:
        """Return where every partition stands."""
        ...

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Write dead letters; a letter with a known id replaces the old one."""
        ...

    async def dead_letter_count(self) -> int:
        """Return the number of dead letters."""
        ...

    async def dead_letters(self, *, limit: int) -> Sequence[DeadLetter]:
        """Return dead letters, oldest first."""
        ...

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        """Return one dead letter."""
        ...

    async def retry(self, letter: DeadLetter) -> bool:
        """Put the letter's event back on its partition and drop the letter, both or neither; False if it is gone."""
        ...

    async def aclose(self) -> None:
        """Give connections back; a second call does nothing."""
        ...

"""The port of partitions: how many there are, which keys they hold, and how far a group of readers is in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from graphweft_contracts import Layout, Order
from graphweft_workers.ports.event_log import CommittedPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The committed offset of a partition, its last offset, and the number of events between them."""

    id: int
    position: str
    end: str
    lag: int
    owner: str | None
    written: int
    """Entries that were ever written to the partition. A bus may count control records too."""
    trimmed: int
    """Entries that the bus no longer holds."""
    deleted: str = ""
    """The last offset of an entry that somebody removed from between others, by hand; empty if nobody ever did."""
    note: str = ""
    """The note of ``CommittedPosition``."""
    fault: str = ""
    """Why the bus takes no events for the partition, or gives them wrong times, with the next step."""


class Partitions(Protocol):
    """The partitions of a log as one group of readers sees them. Every method raises ``BusUnavailable``."""

    async def count(self, *, fresh: bool = False) -> int:
        """Return the number of partitions; they count from 0. It may grow: operators can add partitions.

        The number is cached; ``fresh`` asks the server. Any partition can be claimed and read, known or not.
        """
        ...

    async def layout(self) -> Layout:
        """Return how keys are mapped to the first partitions, read from the server.

        Other partitions hold only events of producers that are not graphweft's.
        """
        ...

    async def store_order(self, app_id: str, order: Order) -> None:
        """Store the order of an app, or with ``*`` of all others. Producers follow within half a minute."""
        ...

    async def give_partition(self, app_id: str, *, least: int = 0) -> Layout:
        """Give an app a partition that no other app uses, unless it has one; return the layout.

        Its number is ``least`` or more, and never that of another app. Rules that are active for the app are active in
        it from its begin. Producers follow within half a minute. Raises ``InvalidSettings`` where the bus needs no such
        partitions.
        """
        ...

    async def committed(self, partition: int) -> CommittedPosition:
        """Return the position from which the next reader begins."""
        ...

    async def commit(self, partition: int, committed: CommittedPosition) -> None:
        """Record that all events up to an offset took effect and are on disk in the graph, with the reader's note.

        The position never goes back. At the same position the note is replaced.
        """
        ...

    async def status(self, *, group: str = "") -> Sequence[PartitionStatus]:
        """Return the status of every partition for the group of the bus, or for another one."""
        ...

    async def positions(self, partition: int) -> Mapping[str, CommittedPosition]:
        """Return what each group of readers has committed in the partition, by the group's name.

        A group is left out if it has neither an offset nor a note there.
        """
        ...

    async def trim(self, partition: int, offset: str) -> None:
        """Remove the entries up to and including ``offset``. The offsets and counts of later ones stay as they are.

        Nothing checks whether somebody still needs them; see ``positions``.
        """
        ...


async def status_of(partitions: Partitions, number: int) -> PartitionStatus:
    """Return the status of one partition. Raises ``BusUnavailable``."""
    return next(each for each in await partitions.status() if each.id == number)

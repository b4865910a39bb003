"""What the engine needs of a bus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from graphweft_contracts import DeadLetter, wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a partition, not yet decoded. ``received`` is the bus's own time of it."""

    offset: str
    fields: Mapping[bytes, bytes]
    received: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The last offset (empty: none) up to which all events took effect, and how many events that is.

    Events that were trimmed unread count too. ``note`` is short text (3 kB at most) of the reader's own, which is kept
    with the position and returned with it; it says nothing about where the position is.
    """

    offset: str = ""
    count: int = 0
    note: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A contiguous range of a partition that was read."""

    entries: Sequence[Entry]
    lost: int = 0
    """How many entries stood in front of the first one here, or would have, and were trimmed before they were read."""
    stepped: bool = False
    """Whether the reader stepped over something behind the position that is no entry: commit the position once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Where a partition stands: committed offset, last offset on the bus, and the number of events between them."""

    id: int
    position: str
    end: str
    lag: int
    owner: str | None
    note: str = ""
    """What the group's reader keeps with its position, see ``Committed``."""


def retry_entry(letter: DeadLetter) -> dict[bytes, bytes]:
    """Return the entry that tries the event of a letter again: only the mutation that the letter names, if it does."""
    fields = wire.unpack(letter.fields)
    if letter.rule and letter.mutation:
        fields[wire.RETRY] = wire.Retry(letter.id, letter.rule, letter.mutation).encode()
    return fields


class Bus(Protocol):
    """Partitions of events, read like a log, and the dead letters.

    A bus is opened for one group of readers. ``claim`` to ``committed``, ``commit`` and ``status`` are about that group
    alone; the log and the dead letters are everybody's.

    Order: ``read`` returns a contiguous range of one partition in its order, without gaps. Redelivery: reading again
    from the same offset returns the same entries; nothing is acknowledged but by ``commit``. Ownership: ``claim`` is a
    lease and keeps workers out of each other's way; it does not protect the graph (the graph's own mark does), so two
    owners at once are harmless. Every method raises ``BusUnavailable`` when the bus is away. The creator closes it.
    """

    async def partitions(self, *, fresh: bool = False) -> int:
        """Return the number of partitions there are, from 0 on. It may grow: on Kafka operators add some.

        The number is remembered; ``fresh`` asks the server. Any partition can be claimed and read, known or not.
        """
        ...

    async def keyed_partitions(self) -> int:
        """Return to how many partitions, the first ones, keys are mapped; it never changes for a bus.

        Others hold only what producers that are not graphweft's have put there.
        """
        ...

    async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
        """Take or extend the lease on a partition; False while somebody else holds it, or is to have it."""
        ...

    def wanted_back(self, partition: int) -> bool:
        """Tell, at once, whether a partition that was claimed is to be given up: finish the batch, commit, release.

        Workers that live share the partitions evenly, so a newcomer gets some of the others'. The bus waits a while for
        the release before it lets the next owner begin. ``read`` may return early then.
        """
        ...

    async def release(self, partition: int, owner: str) -> None:
        """Give the lease back if ``owner`` holds it."""
        ...

    async def committed(self, partition: int) -> Committed:
        """Return where the next reader has to begin."""
        ...

    async def read(self, partition: int, after: Committed, *, limit: int, wait_s: float) -> Stretch:
        """Return up to ``limit`` entries after a position; waits up to ``wait_s`` for the first one.

        The partition must have been claimed. What was trimmed unread is counted, exactly.
        """
        ...

    async def reread(self, partition: int, after: Committed, *, limit: int) -> Stretch:
        """Return like ``read`` what stands behind a position other than the reader's own, without waiting for more."""
        ...

    async def entries(self, partition: int, offsets: Sequence[str]) -> Sequence[Entry]:
        """Return the entries with these offsets (in order, without repetition) that are still there."""
        ...

    async def after(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """Return up to ``limit`` entries behind an offset that are there now; for tools, without a claim."""
        ...

    async def before(self, partition: int, offset: str, *, limit: int) -> Sequence[Entry]:
        """Return the last ``limit`` entries up to and including ``offset``, in order."""
        ...

    def is_after(self, offset: str, other: str) -> bool:
        """Return whether ``offset`` stands behind ``other`` in a partition; the empty offset stands before all."""
        ...

    async def commit(self, partition: int, committed: Committed) -> None:
        """Record that all events up to an offset took effect and are on disk in the graph, with the reader's note.

        The position never goes back; at the same position the note is replaced.
        """
        ...

    async def status(self) -> Sequence[PartitionStatus]:
        """Return where every partition stands."""
        ...

    async def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Write dead letters; a letter with a known id replaces the old one."""
        ...

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        """Put ``longer`` in the place of a letter with the same id, or of none; False if another one is there now."""
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

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        """Append entries to the letter's partition and put ``rest`` in its place, or nothing: all of it, or none.

        Without entries the letter is only dropped or replaced. False, and nothing is done, when the letter is not there
        any more as it is given.
        """
        ...

    async def aclose(self) -> None:
        """Give connections back; a second call does nothing."""
        ...

"""What the suite of buses needs of a driver, and what its tests share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from graphweft_contracts import DeadLetter, Layout, channels, wire
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Batch, CommittedPosition, Entry
from graphweft_workers.testing.waiting import until

PARTITIONS: Final = 2
OWNER: Final = "first"
SESSION_S: Final = 3.0
"""So long that a machine which is busy for a second costs no owner its partition."""
START: Final = CommittedPosition()


@dataclass(frozen=True, slots=True, kw_only=True)
class BusFeatures:
    """What a driver may leave out or do in another way; the tests then expect that."""

    lease_keeper: bool = True
    """``Bus.lease_keeper`` extends leases beside the event loop. Without it there is none."""
    moves_least: bool = True
    """No more partitions change hands than must, when workers come and go."""
    revokes_all: bool = False
    """When a worker joins, the others give back all partitions, and a read that waits ends."""


class BusKit(ABC):
    """One bus, empty, and what the tests do to it past the driver."""

    features = BusFeatures()
    beyond = "99999"
    """An offset that no partition reaches."""

    def __init__(self) -> None:
        self.buses: list[Bus] = []

    def bus(
        self, partitions: int = PARTITIONS, group: str = channels.MUTATION_GROUP, *, session_s: float = SESSION_S
    ) -> Bus:
        """Return another process's bus, which ends with the test."""
        self.buses.append(self.make_bus(Layout(partitions=partitions, order="chat"), group, session_s))
        return self.buses[-1]

    @abstractmethod
    def make_bus(self, new: Layout, group: str, session_s: float) -> Bus:
        """Return a bus for a reader group. ``session_s`` is how long a dead owner keeps a partition."""

    @abstractmethod
    async def write(self, partition: int, values: Sequence[bytes]) -> None:
        """Append entries that have a value in ``wire.DATA`` and nothing else."""

    @abstractmethod
    async def trim(self, partition: int, keep: int) -> None:
        """Remove all entries of a partition but the last ones."""

    @abstractmethod
    async def stop(self) -> None:
        """End the server."""

    @abstractmethod
    async def start(self) -> None:
        """Start the server again, with what it kept."""

    async def forget(self, bus: Bus) -> None:  # noqa: B027 - a default, not a duty
        """Drop what a bus has read ahead: it is not lost when it is trimmed. By default nothing is."""

    async def die(self, bus: Bus) -> None:  # noqa: B027 - a default, not a duty
        """End the owner of partitions as a crash does. By default its leases run out."""

    async def sent_bytes(self) -> int | None:
        """Return how many bytes the server has sent; None if it does not say."""
        return None

    async def aclose(self) -> None:
        """Close all buses."""
        for bus in self.buses:
            await bus.aclose()


class BusFixtures:
    """The fixtures of the suites. A driver's tests define ``kit``, and close it behind the test."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def kit(self) -> BusKit:
        """Return an empty bus of the driver."""
        raise NotImplementedError("define the fixture `kit` in the class of your driver's tests")

    @pytest.fixture
    def own_kit(self, kit: BusKit) -> BusKit:
        """Return a bus whose server may be stopped; another one if tests share that of ``kit``."""
        return kit


async def claimed(bus: Bus, partition: int = 0, owner: str = OWNER) -> None:
    """Become the owner and ask where to begin, as a worker does."""
    await until(lambda: bus.leases.claim(partition, owner, SESSION_S), why=f"{owner} owns partition {partition}")
    await bus.partitions.committed(partition)


async def drained(bus: Bus, after: CommittedPosition = START, partition: int = 0, limit: int = 1000) -> list[Entry]:
    """Read all there is."""
    found: list[Entry] = []
    while True:
        batch = await bus.log.read(partition, after, limit=limit, wait_s=0)
        if not batch.entries:
            assert not batch.lost
            return found
        found += batch.entries
        after = behind(after, batch)


def behind(after: CommittedPosition, batch: Batch) -> CommittedPosition:
    """Return the position behind a batch that was read after another one."""
    offset = batch.entries[-1].offset if batch.entries else after.offset
    return CommittedPosition(offset=offset, count=after.count + batch.lost + len(batch.entries))


def values(entries: Sequence[Entry]) -> list[bytes]:
    """Return the values of entries."""
    return [entry.fields[wire.DATA] for entry in entries]


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Return values that count."""
    return [b"%d" % number for number in range(start, start + count)]


def letter(name: str = "one", **fields: Any) -> DeadLetter:
    """Return a dead letter."""
    given: dict[str, Any] = {"reason": "query_error", "message": "no", "position": "0:1", "time": SYSTEM_CLOCK.now()}
    return DeadLetter(id=name, fields=wire.pack({wire.DATA: b"payload"}), **{**given, **fields})


async def kit_ready(bus: Bus, kit: BusKit) -> None:
    """Make a bus of ten entries."""
    await bus.partitions.count()
    await kit.write(0, numbered(10))

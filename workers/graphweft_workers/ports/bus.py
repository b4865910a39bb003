"""The bus: a port for each purpose, on one server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.dead_letters import DeadLetters
from graphweft_workers.ports.effects import EffectStream
from graphweft_workers.ports.event_log import EventLog, Judge
from graphweft_workers.ports.leases import LeaseKeeper, PartitionLeases
from graphweft_workers.ports.offsets import OffsetForm
from graphweft_workers.ports.partitions import Partitions
from graphweft_workers.ports.records import RecordLog
from graphweft_workers.ports.rules_log import RulesLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus:
    """The ports of a bus that was opened for one group of readers. The creator closes it.

    To change one of them, replace that member: ``dataclasses.replace(bus, log=…)``.
    """

    log: EventLog
    partitions: Partitions
    leases: PartitionLeases
    dead_letters: DeadLetters
    rules: RulesLog
    purges: RecordLog
    """What responders must drop, see ``ports.purges``."""
    usage: RecordLog
    """What each process says of how much apps use."""
    offsets: OffsetForm
    """How the bus writes offsets."""
    close: Callable[[], Awaitable[None]]
    """Closes the connections; a second call does nothing."""
    lease_keeper: Callable[[], LeaseKeeper] | None = None
    """Returns what extends leases while the event loop is blocked; None if this bus offers nothing.

    It must not be used to keep the leases of a process that hangs for ever.
    """
    series: RecordLog | None = None
    """The marks of numbered events, see ``engine.series``; only workers read and write it.

    None if this bus keeps none: then a worker that starts reads the numbers of all entries.
    """
    gives_partitions: bool = False
    """Whether apps may have partitions of their own; see ``Partitions.give_partition``."""
    archive: BlobStore | None = None
    """The archive behind the bus, with what was trimmed, restored and erased."""
    unarchived: EventLog | None = None
    """The log of the bus alone, where ``log`` also reads from the archive; else None."""
    effects: EffectStream | None = None
    """The stream of what took effect; None if this bus has none."""
    time: Callable[[], Awaitable[datetime]] | None = None
    """Returns the time of the bus's server; None if this bus does not tell it. Raises ``BusUnavailable``."""
    judge: Judge | None = None
    """Who decides by signatures whether entries have an effect; ``log`` marks each entry with it."""

    async def aclose(self) -> None:
        """Close the connections."""
        await self.close()

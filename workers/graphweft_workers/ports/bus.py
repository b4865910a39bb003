"""The bus: a port for each purpose, on one server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.dead_letters import DeadLetters
from graphweft_workers.ports.event_log import EventLog, Judge
from graphweft_workers.ports.leases import PartitionLeases
from graphweft_workers.ports.offsets import OffsetForm
from graphweft_workers.ports.partitions import Partitions
from graphweft_workers.ports.purges import PurgeLog
from graphweft_workers.ports.rules_log import RulesLog
from graphweft_workers.ports.usage import UsageLog


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
    purges: PurgeLog
    usage: UsageLog
    offsets: OffsetForm
    """How the bus writes offsets."""
    close: Callable[[], Awaitable[None]]
    """Closes the connections; a second call does nothing."""
    archive: BlobStore | None = None
    """The archive behind the bus, with what was trimmed, restored and erased."""
    judge: Judge | None = None
    """Who decides by signatures whether entries have an effect; ``log`` marks each entry with it."""

    async def aclose(self) -> None:
        """Close the connections."""
        await self.close()

"""The bus: an event log with its leases, dead letters, rule sets, purges and records of usage, on one server."""

from __future__ import annotations

from typing import Protocol

from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.dead_letters import DeadLetters
from graphweft_workers.ports.event_log import EventLog
from graphweft_workers.ports.leases import PartitionLeases
from graphweft_workers.ports.purges import PurgeLog
from graphweft_workers.ports.rules_log import RulesLog
from graphweft_workers.ports.usage import UsageLog


class Bus(EventLog, PartitionLeases, DeadLetters, RulesLog, PurgeLog, UsageLog, Protocol):
    """All ports together, opened for one group of readers. The creator closes it."""

    @property
    def archive(self) -> BlobStore | None:
        """The archive behind the bus; None without one. A bus that wraps another one passes this on."""
        ...

    async def aclose(self) -> None:
        """Close the connections; a second call does nothing."""
        ...

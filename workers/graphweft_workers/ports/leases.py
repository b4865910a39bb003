"""The port of partition leases."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class LeaseKeeper(Protocol):
    """Extends leases through a connection of its own, in another thread and event loop than the bus."""

    async def extend(self, partitions: Collection[int], owner: str, ttl_s: float) -> int:
        """Extend those of the leases that ``owner`` holds, and take none; return their number.

        Raises ``BusUnavailable``.
        """
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


class PartitionLeases(Protocol):
    """Leases on partitions, shared evenly by the live workers of one group.

    A lease saves work that would be done twice. It does not protect the graph: the graph's own checkpoint does, so two
    owners at once do no harm. The methods that wait raise ``BusUnavailable``.
    """

    async def claim(self, partition: int, owner: str, ttl_s: float) -> bool:
        """Take or extend the lease on a partition. Return False while it belongs, or is promised, to another owner."""
        ...

    def is_revoked(self, partition: int) -> bool:
        """Return at once whether a claimed partition must be given up: finish the batch, commit, release.

        A new worker gets partitions in this way. The bus waits a while for the release before the next owner begins.
        ``read`` may return early then.
        """
        ...

    async def release(self, partition: int, owner: str) -> None:
        """Give the lease back if ``owner`` holds it."""
        ...

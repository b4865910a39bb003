"""What a role of the graph does: it runs until it is told to stop."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from graphweft_workers.settings.settings import Settings


class Service(Protocol):
    """A hosted service."""

    @property
    def interrupted(self) -> Collection[int]:
        """The partitions that it holds and where its work has failed again and again: nothing goes on there."""
        ...

    async def run(self) -> None:
        """Work until ``stop``, then finish the current work."""
        ...

    def stop(self) -> None:
        """Ask for the end of ``run``."""
        ...


@runtime_checkable
class Reaching(Protocol):
    """A service that uses more than the servers of bus and graph."""

    def reached(self) -> Mapping[str, bool]:
        """Return by name whether it answers, as the work of the last moments has seen it. Nothing is asked."""
        ...


def worker_name(settings: Settings) -> str:
    """Return the name under which the worker of this process holds partitions."""
    return settings.worker_name or f"{socket.gethostname()}-{os.getpid()}"

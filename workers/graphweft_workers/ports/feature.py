"""What a feature offers: mutations for events of its own, and jobs that run beside the mutation workers.

Another package adds a feature by an entry point in the group ``graphweft.features``: a callable that takes the
``Settings`` and returns a ``Feature``. Its name is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a command that reads a count need not wait for the rules to load
    from graphweft_rules.matching.pack import Pack
    from graphweft_workers.ports.bus import Bus
    from graphweft_workers.ports.graph_store import GraphStore
    from graphweft_workers.ports.job import Job


class Feature(Protocol):
    """Something that is built on the engine, for one set of settings."""

    def mutations(self) -> Sequence[Pack]:
        """Return the mutations for the feature's events. Raises ``RulesError`` for files that do not load."""
        ...

    def groups(self) -> Sequence[str]:
        """Return the reader groups of the jobs that the settings ask for, in the order of ``make_jobs``."""
        ...

    def make_jobs(self, graph: GraphStore, make_bus: Callable[[str], Bus]) -> Sequence[Job]:
        """Return the jobs that the settings ask for; the caller closes each. Nothing is connected yet.

        ``graph`` is for jobs that read the graph and stays the caller's; ``make_bus`` opens the bus for a group, and
        the job closes it. Raises ``InvalidSettings`` when something that a job needs is not set or not installed.
        """
        ...

"""How long the graphs on Neo4j wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Neo4jTiming:
    """How long the graphs on Neo4j wait."""

    grace_s: float = 15.0
    """The time beyond the server's limit after which the connection counts as lost."""
    listing_s: float = 3_600.0
    """Limit of a query that reads or deletes a whole graph."""
    admin_s: float = 60.0
    """Limit of commands about databases and indexes."""
    owner_s: float = 1.0
    """How long readers rely on what a graph said of its app; a responder reads that ten times a second."""


NEO4J_TIMING: Final = Neo4jTiming()
"""The default wherever a value may be passed in."""

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
    refused_s: float = 15.0
    """The wait after a wrong login before the server is asked again; it doubles each time."""
    longest_refused_s: float = 300.0
    locked_s: float = 5.0
    """The same where the server has locked the user, and did not look at the password: as long as it locks one."""
    login_s: float = 1.0
    """How long others wait for the answer to one such question."""


NEO4J_TIMING: Final = Neo4jTiming()
"""The default wherever a value may be passed in."""

"""How long the graphs on FalkorDB wait, and how often they look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class FalkorDBTiming:
    """How long the graphs on FalkorDB wait, and how often they look."""

    writer_grace_s: float = 15.0
    """The time beyond the server's query limit after which the connection counts as lost."""
    listing_ms: int = 60_000
    """Limit of a query that reads or deletes a whole graph, page by page."""
    try_s: float = 0.15
    """The time limit of a query that is believed to be quick. Beyond it the query is slow, and begins again as such."""
    slow_s: float = 30.0
    """How long a statement counts as slow after it took longer than ``try_s``, whatever it takes since."""
    grace_s: float = 0.1
    """Extra time for a reply after the time limit, which the server enforces."""
    build_s: float = 10.0
    """How long a worker waits until new indexes are built."""
    repair_s: float = 120.0
    """The longest that a repair may take, and that another worker waits for it."""
    lock_s: float = 30.0
    """How long others wait for a worker that was killed during a repair; longer than the longest wait for a reply."""
    index_step_s: float = 0.02
    """How often it looks whether indexes are built or repaired."""
    announced_ms: int = 60_000
    """How long the workers heed the slow reads of a graph after the last one was announced."""
    again_ms: int = 20_000
    """After which a read announces its graph again."""
    announced_look_s: float = 0.25
    """How often workers look for announced graphs."""
    seen_ms: int = 600
    """After which every worker has seen an announcement."""
    turn_step_s: float = 0.01
    """How often reads and writes look whether it is their turn."""
    waits_ms: int = 200
    """How long a waiting read counts without saying so again."""
    first_ms: int = 500
    """After which a waiting read goes before new writes."""
    yields_ms: int = 1_000
    """How long a write lets waiting reads go first. Without an end, many slow reads would keep it out for ever."""
    write_ms: int = 20_000
    """The longest round trip of writes."""
    short_ms: int = 250
    """Limit of a query that may keep the server from other work: a context request has half a second."""
    rows_ms: int = 500
    """The same with many rows: if it is too short, the next query has fewer."""
    long_ms: int = 1_500
    """The same for one row that ran into the short limit."""
    long_s: float = 0.1
    """A write that takes this long, and may have kept the server from other work, is announced to other workers."""
    long_look_s: float = 0.1
    """How long it waits until others have announced theirs."""
    long_kept_ms: int = 60_000
    """How long such announcements are kept."""
    surprise_s: float = 60.0
    """A long time of a quick statement that nothing explains counts if there was another one within this time."""
    round_s: float = 1.0
    """How long the writes of an app that are sent together may take."""
    owner_s: float = 1.0
    """How long readers rely on what a graph said of its app; a responder reads that ten times a second."""
    end_ms: int = 500
    """Extra time of a read for the server to end it."""


FALKORDB_TIMING: Final = FalkorDBTiming()
"""The default wherever a value may be passed in."""

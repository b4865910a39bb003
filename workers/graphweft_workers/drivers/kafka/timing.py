"""How long the bus on Kafka waits, and how often it looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaBusTiming:
    """How long the bus on Kafka waits, and how often it looks."""

    longest_wait_s: float = 5.0
    """Longest wait for events."""
    step_s: float = 0.1
    """How often a cluster is asked again that sets up its groups."""
    metadata_ms: int = 5_000
    """How often a member looks for added partitions, which the group then assigns."""
    commit_s: float = 10.0
    """Limit of a commit of a position."""
    probe_s: float = 0.05
    """How long a membership is asked whether it is alive: longer only during a rebalance."""
    index_s: float = 3_600.0
    """An index of dead letters, or of usage, that is older than this is rebuilt: Kafka drops the records of deletions
    after a day."""
    poll_ms: int = 1_000
    """How long one fetch waits."""
    first_poll_s: float = 2.0
    """How long a read without waiting waits for the broker's first response."""
    answer_step_s: float = 0.02
    """How often it looks whether that has come."""
    failed_s: float = 0.5
    """When fetching goes on after an error."""
    silence_s: float = 5.0
    """The broker answers each poll within half a second. After this time without a response it is unavailable."""
    request_commit_s: float = 1.0
    """How often the positions of requests are committed. What was answered since then is read again after a crash."""
    request_note_s: float = 0.05
    """How often a responder says which requests it has. Clients wait for it for up to 0.3 s."""
    request_commit_limit_s: float = 5.0
    """Limit of such a commit."""
    request_probe_s: float = 1.0
    """How often the membership of a responder is asked whether it is alive."""
    request_retry_s: float = 0.2
    """When requests are read on after an error."""
    topics_s: float = 1.0
    """How often the topics are listed for one that is not known: requests may name any."""


KAFKA_BUS_TIMING: Final = KafkaBusTiming()
"""The default wherever a value may be passed in."""

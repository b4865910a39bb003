"""How long the transport over Kafka waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from graphweft.timing import TransportTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTiming(TransportTiming):
    """The transport over Kafka."""

    request_ms: int = 5_000
    """How long a request of the broker may take. The client retries, so a longer wait only delays that."""
    lookup_ms: int = 10
    """How long aiokafka waits before it looks up a topic; its default of 100 ms would dominate the connection time."""
    record_ms: int = 200
    """How long a look at the topic of the layout waits for records."""
    topic_step_s: float = 0.02
    """How often brokers are asked for a new topic."""
    topic_s: float = 15.0
    """How long a new topic may take until the brokers know it: a busy broker needs seconds."""
    start_s: float = 1.0
    """How long a cancelled start waits for the connection that it is opening."""
    retry_s: float = 0.2
    """The least time between two connections for context."""
    again: float = 1 / 3
    again_s: float = 0.3
    """A request of which nothing is heard for this share of its budget, and at most this time, is sent again."""
    silent_s: float = 2.0
    """How long a partition of which nothing was heard gets no requests. A responder's session ends after 6 s."""
    end_s: float = 1.0
    """Records that are not sent by then are dropped."""


KAFKA_TIMING: Final = KafkaTiming()
"""The default wherever a value may be passed in."""

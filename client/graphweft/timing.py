"""How long clients and their transports wait: values that are passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTiming:
    """The transport over Redis."""

    connect_s: float = 2.0
    """Limit of the network for a connection; how long the event loop is busy does not count."""
    io_s: float = 5.0
    """Limit of a reply of the server."""
    trim_s: float = 5.0
    """How often requests are removed from the stream by their age."""
    reconnect_s: float = 0.2
    """The least time between two connections of the reply channel."""
    silence_s: float = 5.0
    """The reply channel is pinged after this time without a message, and is broken after as long again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTiming:
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
    end_s: float = 1.0
    """Records that are not sent by then are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTiming:
    """Adapters of runtimes."""

    tick_s: float = 5.0
    """The longest time between two looks for abandoned turns."""
    confirm_s: float = 5.0
    """How long the position of an event is waited for: later context then need not reflect it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTiming:
    """The client."""

    first_retry_s: float = 0.1
    last_retry_s: float = 2.0
    """When events are sent again while the bus is unavailable; the wait doubles."""
    least_reserve_ms: float = 2.0
    most_reserve_ms: float = 5.0
    """A call gives up a share of its budget early, within these bounds, and at most half of the budget early. The event
    loop waits in whole milliseconds, so timers fire up to 1 ms late, and the call still has to return: with a reserve
    of 1 ms about half of the calls returned too late."""
    layout_s: float = 30.0
    """How long a producer uses the layout that it has read."""
    append_s: float = 15.0
    """Limit of a request to a gateway, which waits 10 s for a body, and 5 s for the bus."""
    last_calls_s: float = 1.0
    """How long a synchronous client waits at its end for calls of other threads."""
    redis: RedisTiming = RedisTiming()
    kafka: KafkaTiming = KafkaTiming()
    adapters: AdapterTiming = AdapterTiming()


CLIENT_TIMING: Final = ClientTiming()
"""What runs in production, and the default wherever a value may be passed in."""

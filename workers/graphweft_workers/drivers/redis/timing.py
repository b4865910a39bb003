"""How long the bus on Redis waits, and how often it looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisBusTiming:
    """How long the bus on Redis waits, and how often it looks."""

    io_s: float = 5.0
    """Limit of a reply of the server, beyond what a command waits there."""
    replicas_s: float = 2.0
    """How long replicas may take to have what a worker has read, if that is waited for; less than ``io_s``."""
    longest_wait_s: float = 5.0
    """Longest wait for events at the server."""
    lease_io_s: float = 2.0
    """Limit of a reply to the thread that extends leases: a lease may end meanwhile."""
    unblock_s: float = 0.001
    """How often a wait is ended that the server may not have begun yet."""
    slice_s: float = 0.05
    """How long the server blocks where it does not allow CLIENT UNBLOCK."""
    request_s: float = 1.0
    """Longest wait for requests at the server; a responder that is to stop waits for its end."""
    sign_s: float = 0.04
    """Seconds between two heartbeats, and between two looks at those of others, while any responder has a request."""
    again: float = 1 / 3
    again_ms: int = 100
    alive_ms: int = 300
    """A request whose responder is silent for this share of its budget goes to another one: after two heartbeats that
    did not come at the earliest, and at the latest when a heartbeat counts no more. Runtimes wait about 500 ms."""
    clean_s: float = 60.0
    """How often consumers that are gone are looked for."""
    stream_s: float = 5.0
    """How often a responder looks whether the stream of requests takes any."""
    gone_ms: int = 60_000
    """A consumer that is idle for this time is deleted; Redis recreates one that is alive."""
    leave_s: float = 1.0
    """At the end, how long requests are looked for that the server assigned meanwhile."""


REDIS_BUS_TIMING: Final = RedisBusTiming()
"""The default wherever a value may be passed in."""

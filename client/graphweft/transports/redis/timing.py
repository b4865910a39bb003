"""How long the transport over Redis waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from graphweft.timing import TransportTiming


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTiming(TransportTiming):
    """The transport over Redis."""

    connect_s: float = 2.0
    """Limit of the network for a connection; how long the event loop is busy does not count."""
    io_s: float = 5.0
    """Limit of a reply of the server."""
    replicas_s: float = 2.0
    """How long replicas may take to have an event, if that is waited for; less than ``io_s``."""
    trim_s: float = 5.0
    """How often requests are removed from the stream by their age."""
    reconnect_s: float = 0.2
    """The least time between two connections of the reply channel."""
    silence_s: float = 5.0
    """The reply channel is pinged after this time without a message, and is broken after as long again."""


REDIS_TIMING: Final = RedisTiming()
"""The default wherever a value may be passed in."""

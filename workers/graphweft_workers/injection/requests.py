"""Context requests as a responder sees them: one protocol, one driver a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from graphweft_contracts import ContextReply

__all__ = ("RequestQueue", "Waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request, not yet decoded, and what the queue needs to take it off."""

    token: str
    body: bytes


class RequestQueue(Protocol):
    """Hands out requests and takes replies, for one of several replicas.

    Each request goes to one replica. One that is dead, or away from the bus for longer than a moment, loses what it has
    in hand to the others; one that is slow does not. So it may happen that a request is answered twice: who asked takes
    the first answer. Order is not kept.

    ``next`` and ``reply`` raise ``BusUnavailable`` when the bus is away; calling them again is right. The creator
    closes the queue. One queue belongs to one event loop, and one caller at a time waits in ``next``.
    """

    taken_over: int
    """Requests so far that another replica had, or would have had, before."""

    async def next(self, limit: int, *, wait: bool = True) -> Sequence[Waiting]:
        """Return some of the requests that nobody has, about ``limit`` at most.

        With ``wait`` it waits for the first one, for a second or so, or until ``wake``; replicas that wait get new
        requests before those that do not.
        """
        ...

    def wake(self) -> None:
        """Let a ``next`` that waits return at once."""
        ...

    async def reply(self, channel: str, reply: ContextReply) -> bool:
        """Send ``reply`` to the process that listens on ``channel``; return False when it is known that nobody does."""
        ...

    def done(self, token: str) -> None:
        """Take a request off the queue, soon: until then it may be handed out again, to another replica."""
        ...

    async def leave(self) -> Sequence[Waiting]:
        """Take no more requests, and return those that are ours already but were not handed out yet. Never raises.

        Replies to what is in hand can still be sent.
        """
        ...

    async def aclose(self) -> None:
        """Take off what is done, and give connections back; a second call does nothing."""
        ...

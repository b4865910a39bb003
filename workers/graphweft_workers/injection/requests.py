"""Context requests as a responder sees them: one protocol, one driver a file; and the form of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from graphweft_contracts import ContextReply

MAX_REPLY_BYTES: Final = 1_000_000
"""Largest answer, encoded. Redis ends the subscription of a process that leaves 32 MB unread, and then all answers on
their way to it are lost, those of other apps too: 30 of the largest may wait there. It is half a megabyte of text.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request, not yet decoded, and what the queue needs to take it off."""

    token: str
    body: bytes


class Asker(BaseModel):
    """Who asks, and until when: what is needed to answer a request whose rest breaks the contract."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    deadline_ms: int
    reply_to: Annotated[str, StringConstraints(min_length=1)]


def read_asker(body: bytes) -> Asker | None:
    """Return who sent a request that breaks the contract; None when it does not say."""
    try:
        return Asker.model_validate_json(body)
    except ValidationError:
        return None


def encode(reply: ContextReply) -> bytes:
    """Return the id, a newline and the reply as JSON; for one that is too large, one that says so."""
    message = _message(reply)
    if len(message) <= MAX_REPLY_BYTES:
        return message
    detail = (
        f"the answer has {len(message)} bytes and a bus takes {MAX_REPLY_BYTES}: give the rules max_results, or ask "
        "with max_tokens"
    )
    return _message(ContextReply(id=reply.id, reason="internal_error", detail=detail, partial=True))


def _message(reply: ContextReply) -> bytes:
    return reply.id.encode() + b"\n" + reply.model_dump_json().encode()


class RequestQueue(Protocol):
    """Hands out requests and takes replies, for one of several replicas.

    Each request goes to one replica. One that is dead, or away from the bus for longer than a moment, loses what it has
    in hand to the others; one that is slow does not. So it may happen that a request is answered twice: who asked takes
    the first answer. Order is not kept.

    ``next``, ``reply`` and ``age_s`` raise ``BusUnavailable`` when the bus is away; calling them again is right. The
    creator closes the queue. One queue belongs to one event loop, and one caller at a time waits in ``next``.
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
        """Send ``reply`` to the process that listens on ``channel``; return False when it is known that nobody does.

        Only to channels of clients, whatever a request says. Of a reply that is too large only the reason is sent.
        """
        ...

    async def age_s(self, token: str) -> float | None:
        """Return how long ago the bus got a request, by the bus's own clock; None when it does not tell."""
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

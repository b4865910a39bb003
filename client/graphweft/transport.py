"""How a client reaches the bus: one protocol, one driver a file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import ValidationError

from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest, InvalidEvent

__all__ = (
    "DEFAULT_PARTITIONS",
    "MAX_CONTEXT_BYTES",
    "MAX_EVENT_BYTES",
    "Outgoing",
    "Transport",
    "check_sizes",
    "read_reply",
    "refusal",
    "seconds_left",
)

DEFAULT_PARTITIONS: Final = 4
"""Partitions of a new bus. The first process that writes decides; later ones follow what the bus says."""
MAX_EVENT_BYTES: Final = 1_000_000
"""Largest event, encoded, with its key and the names of its fields. Kafka's default limit is 1,048,588 for a batch of
one; Redis has none, but workers hold many events at once.
"""
MAX_CONTEXT_BYTES: Final = 8 * 1024**2
"""Largest context request, encoded; on Kafka also the largest answer to one."""
_SURELY_READ_BYTES: Final = 4_000
_SURELY_READ_LEVELS: Final = 100
"""Within both limits the responder's parser takes all JSON; it refuses 200 levels, and numbers of 4,300 digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One encoded event and the key that chooses its partition."""

    key: str
    fields: Mapping[bytes, bytes]


class Transport(Protocol):
    """Puts events on the bus and asks for context.

    Drivers refuse events larger than ``MAX_EVENT_BYTES`` with ``check_sizes``, before they write any.

    Order: events of one ``append`` that share a key keep their order, and a later ``append`` comes after an earlier
    one that returned. Delivery: ``append`` returns when the bus has the events; after ``BusUnavailable`` some of them
    may be on the bus, and appending all of them again is right, for consumers drop the second of two equal
    identities. The creator closes it with ``aclose``.
    """

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """Put the events on the bus; return their positions (``partition:offset``).

        Raises ``BusUnavailable``, or ``InvalidEvent`` when the bus will never take these: one of them, or all at once,
        are too large. What is left of them when each is appended alone is refused for good.
        """
        ...

    async def request(self, request: ContextRequest) -> ContextReply:
        """Return the answer to ``request``, the first one if there should be two.

        Raises ``TimeoutError`` at its deadline, and for an answer that comes later; or ``BusUnavailable``.
        """
        ...

    async def aclose(self) -> None:
        """Give connections back; a second call does nothing."""
        ...


def check_sizes(events: Sequence[Outgoing]) -> None:
    """Raise ``InvalidEvent`` if one of the events is larger than ``MAX_EVENT_BYTES``."""
    for event in events:
        parts = sum(len(name) + len(value) for name, value in event.fields.items())
        if (size := parts + len(event.key.encode())) > MAX_EVENT_BYTES:
            raise InvalidEvent(
                f"an event of {event.key!r} has {size} bytes and a bus takes {MAX_EVENT_BYTES}: leave large content "
                "out of its data, or put it elsewhere and name the place in dataref"
            )


def refusal(request: ContextRequest, message: bytes) -> ContextReply | None:
    """Return the answer to a request that no responder could take, as it is encoded in ``message``; else None."""
    detail = ""
    if len(message) > MAX_CONTEXT_BYTES:
        detail = (
            f"the request has {len(message)} bytes and a bus takes {MAX_CONTEXT_BYTES}: send only the context "
            "variables that rules read"
        )
    elif len(message) > _SURELY_READ_BYTES or message.count(b"[") + message.count(b"{") > _SURELY_READ_LEVELS:
        try:
            ContextRequest.model_validate_json(message)
        except ValidationError:
            detail = "the responder could not read the request: its context is nested too deeply, or a number too long"
    return ContextReply(id=request.id, reason="invalid_request", detail=detail, partial=True) if detail else None


def seconds_left(request: ContextRequest) -> float:
    """Return how long it is to the request's deadline, at least 0."""
    return max(0.0, request.deadline_ms / 1000 - time.time())


def read_reply(request: ContextRequest, body: bytes) -> ContextReply:
    """Return the answer that came for ``request``.

    Raises ``TimeoutError`` when it is late, and ``BusUnavailable`` when it is no answer.
    """
    try:
        reply = ContextReply.model_validate_json(body)
    except ValidationError as error:
        raise BusUnavailable("the responder's answer breaks the contract; do both run the same version?") from error
    if time.time() * 1000 >= request.deadline_ms:
        raise TimeoutError
    return reply

"""How a client reaches the bus: one protocol, one driver a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from graphweft_contracts import ContextReply, ContextRequest

__all__ = ("Outgoing", "Transport")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One encoded event and the key that chooses its partition."""

    key: str
    fields: Mapping[bytes, bytes]


class Transport(Protocol):
    """Puts events on the bus and asks for context.

    Order: events of one ``append`` that share a key keep their order, and a later ``append`` comes after an earlier
    one that returned. Delivery: ``append`` returns when the bus has the events; after ``BusUnavailable`` some of them
    may be on the bus, and appending all of them again is right, for consumers drop the second of two equal
    identities. The creator closes it with ``aclose``.
    """

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """Put the events on the bus; return their positions (``partition:offset``). Raises ``BusUnavailable``."""
        ...

    async def request(self, request: ContextRequest) -> ContextReply:
        """Return the answer to ``request``. Raises ``TimeoutError`` at its deadline, or ``BusUnavailable``."""
        ...

    async def aclose(self) -> None:
        """Give connections back; a second call does nothing."""
        ...

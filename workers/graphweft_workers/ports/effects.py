"""The port of the effects stream: what took effect, for whoever wants to follow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from graphweft_contracts.effects import Effects


class EffectStream(Protocol):
    """Messages about effects, in the order in which they were appended; the bus keeps the last ones."""

    async def append(self, messages: Sequence[Effects], *, keep: int) -> None:
        """Append messages in order. A bus that trims by number keeps about the last ``keep``, and never fewer.

        Raises ``BusUnavailable``: then some may be there, and a second call may repeat them.
        """
        ...

"""What a summariser promises, and how it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from graphweft_contracts import Transient
from graphweft_contracts.memory import ExtractedFact, ExtractedPreference, MemoryRole, MemoryScope


class SummariserUnavailable(Transient):
    """The summariser cannot be asked, is busy or is set up wrongly; it says nothing about the messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One memory, as a summariser reads it."""

    id: str
    role: MemoryRole
    text: str
    time: datetime
    """When it was said; knows its zone."""
    author_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What memories come to. ``memory_ids`` of facts and preferences are ids of these memories."""

    text: str
    """Not empty."""
    model: str
    """Who wrote it: not always the one that was asked, see ``OpenAISummariser``."""
    facts: tuple[ExtractedFact, ...] = ()
    preferences: tuple[ExtractedPreference, ...] = ()


class Summariser(Protocol):
    """Condenses parts of conversations. Belongs to one event loop; calls may run at once."""

    @property
    def model(self) -> str:
        """The name that is recorded beside summaries."""
        ...

    async def summarise(self, messages: Sequence[Remembered], *, scope: MemoryScope) -> Summary:
        """Return the summary of messages of one conversation, at least one, in their order.

        Facts and preferences are only those of what the role ``user`` has said. Raises ``SummariserUnavailable``;
        whatever the messages say, there is a summary of them.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections; a second call does nothing."""
        ...

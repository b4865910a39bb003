"""The protocol of summarisers, and their error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from graphweft_contracts import Transient
from graphweft_contracts.memory import ExtractedFact, ExtractedPreference, MemoryRole, MemoryScope


class SummariserUnavailable(Transient):
    """The summariser is unreachable, busy or misconfigured; the messages are not the cause."""


class ConversationFailed(SummariserUnavailable):
    """The summariser fails for this conversation while it answers others, which can go on; a later try succeeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryText:
    """A memory, as a summariser reads it."""

    id: str
    role: MemoryRole
    text: str
    time: datetime
    """When it was said; with a time zone."""
    author_name: str | None = None
    has_statements: bool = False
    """Whether what the user stated in it is kept by itself, so that a summary need not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A summary of memories. ``memory_ids`` of its facts and preferences are ids of these memories."""

    text: str
    """Not empty."""
    model: str
    """The model that wrote it; it may differ from ``Summariser.model``, see ``OpenAISummariser``."""
    facts: tuple[ExtractedFact, ...] = ()
    preferences: tuple[ExtractedPreference, ...] = ()


class Summariser(Protocol):
    """Summarizes parts of conversations. Belongs to one event loop; calls may run concurrently."""

    @property
    def model(self) -> str:
        """The name that is stored with summaries."""
        ...

    async def summarise(self, messages: Sequence[MemoryText], *, scope: MemoryScope) -> Summary:
        """Return the summary of messages of one conversation: at least one message, in order.

        Facts and preferences come from messages of the role ``user`` only. Raises ``SummariserUnavailable`` and
        ``ConversationFailed``; what the messages say never makes it fail for good.
        """
        ...

    async def aclose(self) -> None:
        """Close connections. A second call does nothing."""
        ...

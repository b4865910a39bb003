"""What a model may reach. The operator says it once for all; no argument of a tool goes beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graphweft.memory import chat_of
from graphweft_contracts import MemoryScope
from graphweft_contracts.search import IndexType


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One app, one scope of memories in it and, where ``workflow`` is given, the context of some agents in one chat."""

    app_id: str
    scope: MemoryScope
    workflow: str | None = None
    agents: tuple[str, ...] = ()
    """Whose context may be asked for; at least one where there is a workflow."""
    chat_id: str | None = None
    """By default the chat that memories of the scope go to."""
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Context variables of each request for context."""
    index_type: IndexType | None = None
    """How memories are searched where there is something to search for; None: as the responder can."""
    budget_ms: int = 2_000
    """Longest that a tool takes."""
    max_tokens: int = 2_000
    """Most tokens of what a tool returns; a call may ask for fewer."""
    writes: bool = True

    @property
    def chat(self) -> str:
        """The chat of requests for context."""
        return self.chat_id or chat_of(self.scope)

"""The data that a model can reach. The operator sets it at the start; no tool argument extends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graphweft.memory import chat_of
from graphweft_contracts import MemoryScope
from graphweft_contracts.search import IndexType


@dataclass(frozen=True, slots=True, kw_only=True)
class McpScope:
    """One app, one scope of memories in it and, with ``workflow``, the context of some agents in one chat."""

    app_id: str
    scope: MemoryScope
    any_of: tuple[MemoryScope, ...] = ()
    """Further scopes that can be read, such as that of a team. Only those of ``scope`` can be changed."""
    workflow: str | None = None
    agents: tuple[str, ...] = ()
    """Agents whose context can be requested; at least one with a workflow."""
    chat_id: str | None = None
    """Chat of context requests; by default the chat of the scope's memories."""
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Context variables of each request for context."""
    index_type: IndexType | None = None
    """How memories are searched by a query; None leaves the choice to the responder."""
    budget_ms: int = 2_000
    """Maximum time of a tool call."""
    max_tokens: int = 2_000
    """Maximum number of tokens in a result; a call can ask for fewer."""
    writes: bool = True
    erases: bool = True
    """Whether memories can be forgotten, if anything can be written."""

    @property
    def chat(self) -> str:
        """The chat of context requests."""
        return self.chat_id or chat_of(self.scope)

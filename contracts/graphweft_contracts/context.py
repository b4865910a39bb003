"""Asking for context before an agent's turn, and the answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from graphweft_contracts.events import AppId, Name

__all__ = ("Block", "ContextReply", "ContextRequest", "Format", "Missing", "ReasonCode")

ReasonCode = Literal[
    "bus_unavailable",
    "condition_error",
    "graph_unavailable",
    "internal_error",
    "invalid_request",
    "missing_param",
    "no_rules",
    "overloaded",
    "query_error",
    "timeout",
]
"""Why a block, or the whole answer, is missing. A bounded set: it labels metrics."""

Format = Literal["list", "single", "json", "markdown"]


class ContextRequest(BaseModel):
    """Asks for everything that the injection rules of a workflow say about one agent's next turn."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    app_id: AppId
    workflow: Name
    agent: Name
    chat_id: Name
    user_id: Name | None = None
    context: dict[str, Any] = Field(default_factory=dict, description="Context variables: `$context.*` in rules.")
    deadline_ms: int = Field(description="Unix time in milliseconds after which nobody reads the answer any more.")
    reply_to: str = Field(default="", description="Channel of the asking process; set by the transport.")


class Block(BaseModel):
    """The result of one injection query, under the name that its rule gives it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="`inject_as` of the query.")
    format: Format
    value: Any = Field(description="list: rows; single: first row or null; json, markdown: a string.")
    rows: int = Field(ge=0, description="Rows in the block after `max_results`.")
    rule: str
    query: str


class Missing(BaseModel):
    """A block that is not there, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    rule: str
    query: str
    reason: ReasonCode
    detail: str = Field(default="", description="For people: what was wrong, where (file:line), what to do.")


class ContextReply(BaseModel):
    """The context that is ready. ``partial`` says that something is missing; ``reason`` is set when nothing came."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    blocks: tuple[Block, ...] = ()
    missing: tuple[Missing, ...] = ()
    text: str = Field(default="", description="The blocks as the agent reads them, for its system message.")
    partial: bool = False
    reason: ReasonCode | None = None
    detail: str = ""
    elapsed_ms: float = Field(default=0.0, ge=0, description="Milliseconds, as the asking side measured them.")

    @property
    def injected(self) -> dict[str, Any]:
        """Block values by name: what ``before_agent_turn`` of the rule contract returns."""
        return {block.name: block.value for block in self.blocks}

"""Context requests before an agent's turn, and their replies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from graphweft_contracts.events import AppId, Name
from graphweft_contracts.search import SearchQuery
from graphweft_contracts.trace_context import TRACEPARENT_PATTERN, TRACESTATE_PATTERN

ReasonCode = Literal[
    "bus_unavailable",
    "condition_error",
    "disabled",
    "embedder_unavailable",
    "graph_unavailable",
    "internal_error",
    "invalid_request",
    "missing_param",
    "no_rules",
    "overloaded",
    "query_error",
    "timeout",
    "token_budget",
]
"""Why a block, or the whole reply, is missing. A bounded set, because metrics use it as a label."""

Format = Literal["list", "single", "json", "markdown", "results", "facts", "memory"]


class ContextRequest(BaseModel):
    """Asks for everything that the injection rules of a workflow say about one agent's next turn, or for one search.

    With ``search`` no rules are asked, so ``workflow`` and ``agent`` say only who asks. The answer has one block with
    the name ``search``, or one entry in ``missing`` that says why there is none.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    id: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    app_id: AppId
    workflow: Name
    agent: Name
    chat_id: Name
    user_id: Name | None = None
    context: dict[str, Any] = Field(default_factory=dict, description="Context variables: `$context.*` in rules.")
    deadline_ms: int = Field(description="Unix time in milliseconds after which nobody reads the answer any more.")
    max_tokens: int | None = Field(default=None, ge=1, description="Most tokens of the text; None: no limit.")
    after: Annotated[str, StringConstraints(pattern=r"^[0-9]+:[0-9]+(-[0-9]+)?$", max_length=64)] | None = Field(
        default=None,
        description="Position of an event, as `emit` returns it: the answer waits, within the deadline, until the "
        "graph holds its effect.",
    )
    explain: bool = Field(default=False, description="Say of each block how it came about.")
    search: SearchQuery | None = Field(default=None, description="Asks for exactly this search, and for no rules.")
    traceparent: Annotated[str, StringConstraints(pattern=TRACEPARENT_PATTERN)] | None = Field(
        default=None, description="The span that asks, in the form of W3C Trace Context."
    )
    tracestate: Annotated[str, StringConstraints(pattern=TRACESTATE_PATTERN)] | None = Field(
        default=None, description="More of the trace, in the form of W3C Trace Context."
    )
    reply_to: str = Field(default="", description="Channel of the asking process; set by the transport.")


class Explanation(BaseModel):
    """How a block came about."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    place: str = Field(description="Where the rule's query stands: `file:line:column`.")
    cypher: str = Field(description="The query as it went to the graph.")
    params: dict[str, Any] = Field(default_factory=dict, description="The values that it was given.")
    found: int = Field(ge=0, description="Rows that the graph returned, before `max_results` and token budgets.")
    elapsed_ms: float = Field(ge=0, description="Milliseconds from asking the graph, or the cache, to the rows.")
    cached: bool = Field(default=False, description="The rows come from the cache; the graph has not changed since.")
    events: tuple[str, ...] = Field(
        default=(), description="Values of the properties `event_id` and `event_ids` in the rows: what rules recorded."
    )


class Block(BaseModel):
    """The result of one injection query, under the name that its rule gives it."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    name: str = Field(description="`inject_as` of the query.")
    format: Format
    value: Any = Field(description="list: rows; single: first row or null; the others: a string.")
    rows: int = Field(ge=0, description="Rows in the block after `max_results` and token budgets.")
    rule: str
    query: str
    tokens: int = Field(default=0, ge=0, description="Tokens of the block in the text, its heading included.")
    cut: int = Field(default=0, ge=0, description="Rows left out to keep within a token budget.")
    age_ms: int | None = Field(
        default=None, ge=0, description="The graph gave no rows in time, and these are the last ones, of so long ago."
    )
    explanation: Explanation | None = None


class Missing(BaseModel):
    """A block that is not there, and why."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    name: str
    rule: str
    query: str
    reason: ReasonCode
    detail: str = Field(default="", description="For people: what was wrong, where (file:line), what to do.")


class ContextReply(BaseModel):
    """The context that is ready. ``partial`` says that something is missing; ``reason`` is set when nothing came."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    id: str
    context_id: str = Field(
        default="",
        description="Name of this answer; `agent.turn_complete` may echo it, so that rules can learn what helped.",
    )
    blocks: tuple[Block, ...] = ()
    missing: tuple[Missing, ...] = ()
    text: str = Field(default="", description="The blocks as the agent reads them, for its system message.")
    tokens: int = Field(default=0, ge=0, description="Tokens of the text.")
    stale_by: int | None = Field(
        default=None,
        ge=1,
        description="Events up to `after` whose effect the graph did not hold yet, at least; None: it held all.",
    )
    partial: bool = False
    reason: ReasonCode | None = None
    detail: str = ""
    elapsed_ms: float = Field(default=0.0, ge=0, description="Milliseconds, as the asking side measured them.")
    rules: str = Field(
        default="", description="Hash of the rule set that matched the request; empty without one, and for failures."
    )

    @property
    def injected(self) -> dict[str, Any]:
        """Block values by name, as ``before_agent_turn`` of the rule contract returns them."""
        return {block.name: block.value for block in self.blocks}

    @property
    def results(self) -> list[dict[str, Any]]:
        """The rows of the block ``search``, best first; empty for a request without a search."""
        value = self.injected.get("search")
        return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]

"""The body of ``POST /v1/context``."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from graphweft.timing import DEFAULT_BUDGET_MS
from graphweft_contracts import MemoryScope, SearchQuery
from graphweft_contracts.events import AppId, Name
from graphweft_contracts.search import MOST_RESULTS
from graphweft_workers.gateway.limits import whole
from graphweft_workers.gateway.patterns import POSITION
from graphweft_workers.gateway.problems import MAX_FAULTS

_MAX_BUDGET_MS: Final = 10_000


class SearchQuestion(SearchQuery):
    """A search in the memories of a scope, or in an index of the graph.

    A request brings no Cypher: one expression can occupy a thread of a graph server for seconds, whatever the time
    limit. Only the author of a rule can write Cypher.
    """

    retrieval_query: None = Field(  # pyright: ignore[reportIncompatibleVariableOverride] - the model is frozen
        default=None, description="Not over HTTP: write it in a rule of the workflow."
    )
    params: dict[str, Any] = Field(default_factory=dict, max_length=0, description="Empty: there is no Cypher.")

    model_config = ConfigDict(strict=True)

    top_k: Annotated[
        int, Field(ge=1, le=MOST_RESULTS, description="Maximum number of results."), BeforeValidator(whole)
    ] = 5

    @model_validator(mode="before")
    @classmethod
    def _limit_unknown(cls, value: Any) -> Any:
        if isinstance(value, dict) and "memory" in value:
            members = cast("dict[str, Any]", value)
            value = members | {"memory": _limit_unknown(MemoryScope, members["memory"])}
            scopes: Any = members.get("any_of")
            if isinstance(scopes, list):
                listed: list[Any] = scopes  # pyright: ignore[reportUnknownVariableType]
                value["any_of"] = [_limit_unknown(MemoryScope, each) for each in listed]
        return _limit_unknown(cls, value)


class ContextQuestion(BaseModel):
    """Asks for the context of one agent's next turn, or for the results of one search. A search uses no rules."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    agent: Name
    workflow: Name
    chat_id: Name
    app_id: AppId | None = Field(default=None, description="The token's app; another one is refused.")
    user_id: Name | None = None
    context: dict[str, Any] = Field(default_factory=dict, description="Context variables: `$context.*` in rules.")
    budget_ms: Annotated[
        int,
        Field(ge=1, le=_MAX_BUDGET_MS, description="Maximum time for the reply, in milliseconds."),
        BeforeValidator(whole),
    ] = DEFAULT_BUDGET_MS
    max_tokens: Annotated[int, Field(ge=1), BeforeValidator(whole)] | None = Field(
        default=None, description="Maximum number of tokens in the text; null: no limit."
    )
    after: Annotated[str, StringConstraints(pattern=POSITION, max_length=64)] | None = Field(
        default=None,
        description="Position of an event, as `/v1/events` returns it. The reply waits, within the budget, until the "
        "graph holds the effect of this event.",
    )
    explain: bool = Field(default=False, description="Add to each block how it was made.")
    search: SearchQuestion | None = Field(
        default=None,
        description="Run this search and no rules. `agent`, `workflow` and `chat_id` then only name the requester.",
    )

    @model_validator(mode="before")
    @classmethod
    def _limit_unknown(cls, value: Any) -> Any:
        return _limit_unknown(cls, value)


def _limit_unknown(model: type[BaseModel], value: Any) -> Any:
    """Drop all unknown members but the first ones: to report 100,000 of them takes a second."""
    if not isinstance(value, dict):
        return value
    members = cast("dict[str, Any]", value)
    unknown = islice((name for name in members if name not in model.model_fields), MAX_FAULTS)
    kept = {*model.model_fields, *unknown}
    return {name: content for name, content in members.items() if name in kept}

"""``POST /search``: facts of groups, as clients of Graphiti's server ask for them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from graphweft import Client
from graphweft_contracts import ContextReply, MemoryScope
from graphweft_contracts.memory import ScopeName
from graphweft_contracts.search import MOST_RESULTS
from graphweft_workers.gateway.limits import whole
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.gateway.redaction import public

MAX_GROUPS = 20
"""Each group is searched separately."""


class FactsQuestion(BaseModel):
    """Asks for the facts of some groups that match a text. Unknown members are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)

    group_ids: Annotated[list[ScopeName], Field(min_length=1, max_length=MAX_GROUPS)] = Field(
        description="The groups, as `/messages` names them."
    )
    query: Annotated[str, StringConstraints(max_length=200_000)] = Field(
        description="Text to search for, by words; empty: the latest facts."
    )
    max_facts: Annotated[int, Field(ge=1, le=MOST_RESULTS), BeforeValidator(whole)] = Field(
        default=10, description="Maximum number of facts, for all groups together."
    )


class Fact(BaseModel):
    """A fact that is valid now. Times are in UTC."""

    uuid: str
    name: str = Field(description="The predicate; for a fact of an episode, the type of the relation.")
    fact: str
    valid_at: str | None = Field(description="Start of its validity.")
    invalid_at: str | None = Field(description="End of its validity.")
    created_at: str | None = Field(description="Time at which its first episode or message was recorded.")
    expired_at: None = Field(default=None, description="Always null: the search returns current facts only.")


class Facts(BaseModel):
    """The facts, the best first."""

    facts: list[Fact]


async def find_facts(client: Client, app_id: str, question: FactsQuestion, *, budget_ms: int) -> Facts:
    """Search all groups concurrently within ``budget_ms`` milliseconds, and return the best facts of all of them.

    Raises ``Problem`` when a search fails, so an empty list means that there are no facts.
    """
    replies = await asyncio.gather(
        *(
            client.search(
                question.query,
                memory=MemoryScope(user_id=group),
                of="facts",
                top_k=question.max_facts,
                app_id=app_id,
                budget_ms=budget_ms,
            )
            for group in dict.fromkeys(question.group_ids)
        )
    )
    rows = [each for reply in replies for each in enumerate(_rows(reply))]
    rows.sort(key=_best_first)
    return Facts(facts=[_fact(row) for _, row in rows[: question.max_facts]])


def _best_first(found: tuple[int, dict[str, Any]]) -> tuple[float, str]:
    """Sort key: by score; facts without a score by their place in the group, so the latest of each group come first."""
    place, row = found
    return (float(place) if row["score"] is None else -row["score"], row["id"])


def _rows(reply: ContextReply) -> list[dict[str, Any]]:
    if reply.reason is None:
        return reply.results
    raise Problem(
        503,
        "search-failed",
        f"the search failed ({reply.reason}): {public(reply).detail or 'try again later'}",
        headers={"Retry-After": "2"},
        reason=reply.reason,
    )


def _fact(row: dict[str, Any]) -> Fact:
    return Fact(
        uuid=row["id"],
        name=row["predicate"],
        fact=row["text"],
        valid_at=row["valid_at"],
        invalid_at=row["invalid_at"],
        created_at=row["created_at"],
    )

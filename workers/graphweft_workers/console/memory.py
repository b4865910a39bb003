"""The page *Memory*: scopes, memories, facts with their validity, and the search that a runtime would do."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from graphweft_contracts import MemoryScope
from graphweft_contracts.memory import SCOPES, ScopeName
from graphweft_contracts.search import Searched
from graphweft_workers.console.access import Viewer
from graphweft_workers.console.context import BUDGET_MS, reply_dict
from graphweft_workers.console.questions import AppQuestion
from graphweft_workers.console.sources import Sources
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.gateway.redaction import without_addresses
from graphweft_workers.reports.values import shown
from graphweft_workers.retrieval.listing import MOST_SCANNED, list_facts, list_memories, list_relations, list_scopes

_READ_S: Final = 2.0
_SCOPES: Final = 100

type Text = Annotated[str, Field(max_length=10_000)]


class ScopesQuestion(AppQuestion):
    """Asks which scopes there are."""


class ScopeQuestion(AppQuestion):
    """Asks for what is remembered in a scope, the latest first."""

    application_id: ScopeName | None = None
    agent_id: ScopeName | None = None
    user_id: ScopeName | None = None
    thread_id: ScopeName | None = None
    limit: int = Field(default=50, ge=1, le=200)

    def scope(self) -> MemoryScope:
        """Return the scope. Raises ``Problem`` without any."""
        given = {name: value for name in SCOPES if (value := getattr(self, name)) is not None}
        if not given:
            raise Problem(422, "no-scope", "give at least one of user, thread, agent and application")
        return MemoryScope(**given)


class MemorySearchQuestion(ScopeQuestion):
    """Asks a search within a scope."""

    text: Text
    of: Searched = "all"
    limit: int = Field(default=10, ge=1, le=100)


async def scopes(sources: Sources, viewer: Viewer, question: ScopesQuestion) -> dict[str, Any]:
    """Return the scopes of the first memories of an app, those with the most memories first.

    A limit that left some out is among the result; the others are null.
    """
    app_id = viewer.app(question.app)
    given = {"scan": MOST_SCANNED + 1, "limit": _SCOPES + 1}  # one more of each tells that there are more
    graph = await sources.graph_of(app_id)
    rows = (await graph.read(app_id, list_scopes(), given, timeout_s=_READ_S)).dicts()
    return {
        "scopes": [shown(row, redacts=False) for row in rows[:_SCOPES]],
        "scopes_limit": _SCOPES if len(rows) > _SCOPES else None,
        "memories_limit": MOST_SCANNED if sum(row["memories"] for row in rows) > MOST_SCANNED else None,
    }


async def remembered(sources: Sources, viewer: Viewer, question: ScopeQuestion) -> dict[str, Any]:
    """Return memories and facts of a scope; facts that no longer hold are among them."""
    app_id, scope = viewer.app(question.app), question.scope().given
    graph = await sources.graph_of(app_id)
    given = {**scope, "limit": question.limit}

    async def rows(statement: str) -> list[dict[str, Any]]:
        table = await graph.read(app_id, statement, given, timeout_s=_READ_S)
        return [shown(row, redacts=sources.redacts) for row in table.dicts()]

    facts = [*await rows(list_facts(scope)), *await rows(list_relations(scope))]
    facts.sort(key=lambda row: str(row["valid_from"] or ""), reverse=True)
    return {"memories": await rows(list_memories(scope)), "facts": facts[: question.limit], "limit": question.limit}


async def search(sources: Sources, viewer: Viewer, question: MemorySearchQuestion) -> dict[str, Any]:
    """Return what a runtime would get for a search within a scope."""
    app_id = viewer.app(question.app)
    try:
        reply = await sources.client.search(
            question.text,
            memory=question.scope(),
            of=question.of,
            top_k=question.limit,
            app_id=app_id,
            budget_ms=BUDGET_MS,
            explain=True,
        )
    except ValueError as error:
        raise Problem(422, "invalid-question", str(error)) from None
    results = [shown(row, redacts=sources.redacts) for row in reply.results]
    return reply_dict(without_addresses(reply), redacts=sources.redacts) | {"results": results}

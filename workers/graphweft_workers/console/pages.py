"""All questions of the console, and the function that answers each."""

from __future__ import annotations

from typing import Any, Final

from graphweft_workers.console import letters, memory, rules
from graphweft_workers.console.access import Viewer
from graphweft_workers.console.app import Page
from graphweft_workers.console.context import TurnQuestion, context, names
from graphweft_workers.console.events import EventQuestion, event
from graphweft_workers.console.graph import GraphQuestion, NodeQuestion, NodeSearch, graph_page, node, search
from graphweft_workers.console.history import (
    SECONDS,
    PastContextQuestion,
    PastQuestion,
    WhyQuestion,
    past,
    past_context,
    why,
)
from graphweft_workers.console.live import LiveQuestion, live
from graphweft_workers.console.operation import operation
from graphweft_workers.console.questions import AppQuestion
from graphweft_workers.console.rule_faults import rule_faults
from graphweft_workers.console.session import session
from graphweft_workers.console.sources import Sources


async def _operation(sources: Sources, viewer: Viewer, question: AppQuestion) -> dict[str, Any]:
    status, layout = await sources.status(), await sources.bus.partitions.layout()
    return operation(status, layout, viewer.apps(question.app), all_apps=viewer.all_apps, uses=viewer.uses)


def _user_of(question: memory.ScopeQuestion) -> str | None:
    return question.user_id


PAGES: Final = (
    Page(path="/api/session", question=AppQuestion, answer=session),
    Page(path="/api/live", question=LiveQuestion, answer=live),
    Page(path="/api/event", question=EventQuestion, answer=event, seconds=10.0),
    Page(path="/api/graph", question=GraphQuestion, answer=graph_page),
    Page(path="/api/graph/search", question=NodeSearch, answer=search),
    Page(path="/api/graph/node", question=NodeQuestion, answer=node),
    Page(path="/api/graph/why", question=WhyQuestion, answer=why, seconds=SECONDS),
    Page(path="/api/graph/past", question=PastQuestion, answer=past, seconds=SECONDS),
    Page(path="/api/context", question=TurnQuestion, answer=context, user=lambda question: question.user),
    Page(
        path="/api/context/past",
        question=PastContextQuestion,
        answer=past_context,
        seconds=SECONDS,
        user=lambda question: question.user,
    ),
    Page(path="/api/context/names", question=AppQuestion, answer=names),
    Page(path="/api/memory", question=memory.ScopeQuestion, answer=memory.remembered, user=_user_of),
    Page(path="/api/memory/scopes", question=memory.ScopesQuestion, answer=memory.scopes),
    Page(path="/api/memory/search", question=memory.MemorySearchQuestion, answer=memory.search, user=_user_of),
    Page(path="/api/letters", question=letters.LettersQuestion, answer=letters.letters),
    Page(path="/api/letters/show", question=letters.LetterQuestion, answer=letters.letter),
    Page(path="/api/letters/retry", question=letters.LetterActionQuestion, answer=letters.retry, seconds=30.0),
    Page(
        path="/api/letters/correct",
        question=letters.LetterCorrectionQuestion,
        answer=letters.correct_letter,
        seconds=30.0,
    ),
    Page(path="/api/letters/drop", question=letters.LetterActionQuestion, answer=letters.drop, seconds=30.0),
    Page(path="/api/rules", question=AppQuestion, answer=rules.rules_page),
    Page(path="/api/rules/faults", question=AppQuestion, answer=rule_faults),
    Page(path="/api/rules/try", question=rules.TryQuestion, answer=rules.try_event),
    Page(path="/api/operation", question=AppQuestion, answer=_operation),
)

"""The page *Context*: what an agent gets before a turn, from a responder, with the reasons."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import uuid4

from pydantic import Field

from graphweft_contracts import ContextReply, Explanation
from graphweft_contracts.events import Name
from graphweft_workers.apps import no_rules
from graphweft_workers.console.access import Viewer
from graphweft_workers.console.questions import AppQuestion
from graphweft_workers.console.sources import Sources
from graphweft_workers.gateway.redaction import without_addresses
from graphweft_workers.reports.scan import ScanLimits, ends, newest_first
from graphweft_workers.reports.values import shown

BUDGET_MS: Final = 4_000
_CHARS: Final = 200_000
"""Characters of the text of a context that are shown."""
_RECENT: Final = 300
"""Entries in which names of chats, users and agents are looked for."""
_SIZE: Final = 8 * 1024**2
"""Bytes of these entries."""
_NAMES: Final = 50
_SHOWN: Final = {"name", "format", "rows", "rule", "query", "tokens", "cut", "age_ms"}


class TurnQuestion(AppQuestion):
    """Asks for the context of one turn, as a runtime would."""

    workflow: Name
    agent: Name
    chat: Name
    user: Name | None = None
    variables: dict[str, Any] = Field(default_factory=dict[str, Any], max_length=100)
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


async def context(sources: Sources, viewer: Viewer, question: TurnQuestion) -> dict[str, Any]:
    """Return the text as the model reads it, its blocks, how each was made, and what is missing."""
    app_id = viewer.app(question.app)
    if not viewer.uses(app_id, question.workflow):
        return without_rules(question.workflow, redacts=sources.redacts)
    reply = await sources.client.context(
        agent=question.agent,
        chat_id=question.chat,
        app_id=app_id,
        workflow=question.workflow,
        user_id=question.user,
        context=question.variables,
        budget_ms=BUDGET_MS,
        max_tokens=question.max_tokens,
        explain=True,
    )
    return reply_dict(without_addresses(reply), redacts=sources.redacts)


def without_rules(workflow: str, *, redacts: bool) -> dict[str, Any]:
    """Return the answer for a workflow without rules, or with rules that the viewer may not see."""
    return reply_dict(ContextReply(id=uuid4().hex, reason="no_rules", detail=no_rules(workflow)), redacts=redacts)


def reply_dict(reply: ContextReply, *, redacts: bool) -> dict[str, Any]:
    """Return a reply for the page. The responder has redacted its text; parameters are redacted here."""
    found = reply.model_dump(mode="json", exclude={"blocks", "text", "id"})
    blocks = [
        {
            **block.model_dump(mode="json", include=_SHOWN),
            "value": shown(block.value, redacts=redacts),
            "explanation": None if block.explanation is None else _explanation(block.explanation, redacts=redacts),
        }
        for block in reply.blocks
    ]
    text = reply.text[:_CHARS]
    return {
        **shown(found, redacts=False),
        "text": text,
        "text_is_cut": len(text) < len(reply.text),
        "blocks": blocks,
    }


def _explanation(how: Explanation, *, redacts: bool) -> dict[str, Any]:
    """Return how a block was made; only the values of its parameters are data."""
    found: dict[str, Any] = shown(how.model_dump(mode="json", exclude={"params"}), redacts=False)
    return found | {"params": shown(how.params, redacts=redacts)}


async def names(sources: Sources, viewer: Viewer, question: AppQuestion) -> dict[str, Any]:
    """Return names to choose from: workflows and agents of the active rules, and what recent events name."""
    app_id = viewer.app(question.app)
    decoder = await sources.decoder()
    workflows: dict[str, set[str]] = {}
    rules = await sources.current_rules(decoder.activations, app_id)
    for name in rules.workflows:
        if viewer.uses(app_id, name) and rules.problem(name) is None:
            flow = rules.workflows[name]
            workflows[name] = {agent for each in flow.injection_rules for agent in each.rule.agents}
    own = (await sources.bus.partitions.layout()).partitions_of(app_id)
    reached = await ends(sources.bus, own)
    chats: dict[str, str | None] = {}
    users: dict[str, None] = {}
    agents: dict[str, None] = {}
    async for partition, entry in ScanLimits(entries=_RECENT, size=_SIZE).within(
        newest_first(sources.bus.log, reached)
    ):
        event = (await decoder.see(partition, entry)).event
        if event is None or event.appid != app_id:
            continue
        chats.setdefault(event.chatid, event.userid)
        if event.userid is not None:
            users.setdefault(event.userid)
        for field in ("agent_name", "agent"):
            if isinstance(agent := event.data.get(field), str) and len(agent) <= 256:
                agents.setdefault(agent)
    return {
        "workflows": {name: sorted(found) for name, found in sorted(workflows.items())},
        "agents": list(agents)[:_NAMES],
        "chats": [{"chat": chat, "user": user} for chat, user in list(chats.items())[:_NAMES]],
        "users": list(users)[:_NAMES],
    }

"""The past: which events wrote a node, the graph as it was, and a context of then. Each replays the log, in turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints

from graphweft_contracts import InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.moments import Moment
from graphweft_rules.cypher.node_writes import NodeTarget
from graphweft_workers.console.access import Viewer
from graphweft_workers.console.context import TurnQuestion, reply_dict, without_rules
from graphweft_workers.console.graph import GraphQuestion, picture_dict, picture_of
from graphweft_workers.console.questions import AppQuestion, slow
from graphweft_workers.console.sources import Sources
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.gateway.redaction import without_addresses
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.node_state import NodeReader
from graphweft_workers.replay.recording import RecordResult
from graphweft_workers.replay.why import Why
from graphweft_workers.reports.values import shown
from graphweft_workers.reports.why import WhyReport
from graphweft_workers.wiring.past_graph import replay_past
from graphweft_workers.wiring.rules import logged_rules
from graphweft_workers.wiring.second_graph import scratch_graph

_REPLAY_S: Final = 30.0
"""A longer replay is for the command line."""
_TURN_S: Final = 40.0
"""Longest wait for the replay of another app, and the deletion of its graph."""
SECONDS: Final = _TURN_S + _REPLAY_S
_WRITES: Final = 20

type Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class WhyQuestion(AppQuestion):
    """Asks which events wrote a node: exactly by a replay, or which may have."""

    label: Name
    key: Name
    value: Annotated[str, StringConstraints(max_length=2_000)] | int
    exact: bool = False


class PastQuestion(GraphQuestion):
    """Asks for a part of the graph as it was."""

    time: Moment = Field(strict=False)


class PastContextQuestion(TurnQuestion):
    """Asks for the context of one turn as it would have been."""

    time: Moment = Field(strict=False)


async def why(sources: Sources, viewer: Viewer, question: WhyQuestion) -> dict[str, Any]:
    """Return the events that wrote a node, the rules that did it, and with ``exact`` what each changed."""
    app_id = viewer.app(question.app)
    target = NodeTarget(label=question.label, keys={question.key: (question.value,)}, property=None, relationship=None)
    async with _replay_turn(sources, app_id):
        log, live = _app_log(sources, app_id), sources.graph
        await log.refuse_preludes()
        rules = logged_rules(sources.settings, sources.bus, without_lost=True)
        work = Why(log, rules, limit=_WRITES)
        NodeReader(target, await work.keys(), live, app_id)  # refuses names that no query can hold
        found = await work.find(target, exact=question.exact)
        recorded: RecordResult | None = None
        if question.exact and found.rows:
            async with scratch_graph(sources.settings, log, rules) as graph:
                recorded = await work.record(target, graph, found)
        older = await log.older()
    told = WhyReport(target=target, found=found, recorded=recorded, older=older).to_dict()
    told["writes"] = [
        each
        for each in told["writes"]
        if each["workflow"] is None or viewer.uses(app_id, each["workflow"])
    ]  # fmt: skip
    wanted = ("entries", "lost", "exact", "total", "writes", "not_recorded", "like_live", "older")
    return {name: shown(told[name], redacts=sources.redacts) for name in wanted if name in told}


async def past(sources: Sources, viewer: Viewer, question: PastQuestion) -> dict[str, Any]:
    """Return a part of the graph as it was at a time."""
    app_id = viewer.app(question.app)
    _check_time(question.time)
    async with (
        _replay_turn(sources, app_id),
        replay_past(sources.settings, _app_log(sources, app_id), question.time) as then,
    ):
        found = await picture_of(then.graph, app_id, question, redacts=sources.redacts)
        return picture_dict(found) | {"as_of": then.as_json()}


async def past_context(sources: Sources, viewer: Viewer, question: PastContextQuestion) -> dict[str, Any]:
    """Return the context that an agent would have got at a time: from the graph and by the rules of then."""
    app_id = viewer.app(question.app)
    if not viewer.uses(app_id, question.workflow):
        return without_rules(question.workflow, redacts=sources.redacts)
    _check_time(question.time)
    fields: dict[str, Any] = {"app_id": app_id, "workflow": question.workflow, "agent": question.agent}
    fields |= {"chat_id": question.chat, "user_id": question.user, "context": question.variables}
    fields |= {"max_tokens": question.max_tokens, "explain": True}
    async with (
        _replay_turn(sources, app_id),
        replay_past(sources.settings, _app_log(sources, app_id), question.time) as then,
    ):
        reply = await then.context(sources.settings, fields)
        found = reply_dict(without_addresses(reply), redacts=sources.redacts)
        return found | {"as_of": then.as_json()}


def _app_log(sources: Sources, app_id: str) -> AppLog:
    return AppLog(bus=sources.bus, app_id=app_id, live=sources.graph)


def _check_time(time: datetime) -> None:
    if time > SYSTEM_CLOCK.now():
        raise Problem(422, "invalid-question", "the time lies in the future: choose an earlier one")


@asynccontextmanager
async def _replay_turn(sources: Sources, app_id: str) -> AsyncGenerator[None]:
    """Let one replay run at a time, and one of each app wait, so that no app keeps the others out.

    Raises ``Problem`` while another one of the app runs or waits, and for what cannot be replayed.
    """
    if app_id in sources.replayed:
        raise _busy("another question about this app replays the log, or waits for its turn: ask again in a while")
    sources.replayed.add(app_id)
    try:
        try:
            async with asyncio.timeout(_TURN_S):
                await sources.replaying.acquire()
        except TimeoutError:
            raise _busy("other questions replay the log: ask again in a while") from None
        try:
            async with asyncio.timeout(_REPLAY_S):
                yield
        except TimeoutError:
            raise Problem(504, "too-slow", slow(_REPLAY_S)) from None
        except InvalidSettings as error:
            raise Problem(422, "no-replay", str(error)) from None
        finally:
            sources.replaying.release()
    finally:
        sources.replayed.discard(app_id)


def _busy(detail: str) -> Problem:
    return Problem(503, "busy", detail, headers={"Retry-After": "5"})

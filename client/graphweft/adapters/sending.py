"""What an adapter does in its own thread: redact, publish, ask. Nothing here raises."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import uuid4

from pydantic import ValidationError

from graphweft.adapters.turns import Chat, Told
from graphweft.adapters.vocabulary import CONTEXT_REQUEST
from graphweft.client import Client
from graphweft.plain import plain
from graphweft_contracts import ContextReply, Event, ReasonCode, wire

__all__ = ("AdapterStats", "Redact", "Sender", "no_context")

logger = logging.getLogger("graphweft.adapters")

type Redact = Callable[[str, dict[str, Any]], Mapping[str, Any] | None]
"""``(type, data) -> data``, or None to hold it back. It gets a copy and may change it; ``data["context"]`` holds the
context variables. ``type`` is that of an event, or ``context.request`` for what a request for context says. The ids
that events are ordered and told apart by are not shown: give the adapter pseudonyms where they must not leave.
"""

_CONFIRM_S: Final = 5.0
"""How long the position of an event is waited for, in the background; a turn waits for it within its budget only."""


_MOST_SAID: Final = 1_000
"""Warnings of one adapter. Providers may be made without end; what they lack is counted all the same."""
_NO_EMBEDDER: Final = (
    "set GRAPHWEFT_EMBEDDER where the responder and the memory worker run, or search with index_type='fulltext'"
)
_NEXT_STEPS: Final[Mapping[ReasonCode, str]] = {
    "bus_unavailable": "start the bus, or correct GRAPHWEFT_BUS_URL or GRAPHWEFT_DATA; `graphweft doctor` looks at it",
    "condition_error": "correct the condition; `graphweft lint` checks it",
    "embedder_unavailable": "see that the endpoint of GRAPHWEFT_EMBEDDER answers the responder",
    "graph_unavailable": "start the graph server; `graphweft doctor` looks at it",
    "internal_error": "look into the log of the process that failed",
    "invalid_request": "correct what is named here",
    "missing_param": "put that value into the context variables, or drop it from the rule",
    "no_rules": "add rules for the workflow to the folder of the responder, or name a workflow that has some",
    "overloaded": "run more responders",
    "query_error": "correct the query or the index that is named here",
    "timeout": "run a responder that is quick enough, or give a larger budget_ms",
    "token_budget": "give a larger max_tokens, or let the rules bring less",
}


@dataclass(slots=True)
class AdapterStats:
    """What became of callbacks, beside what the client's own stats say of the events that it was given."""

    published: int = 0
    """Events given to the client."""
    dropped: int = 0
    """Events for which there was no room, because the adapter's own thread did not keep up, or after it was closed."""
    withheld: int = 0
    """Events and requests that the redaction hook held back."""
    redaction_failures: int = 0
    """Events and requests that were not sent because the redaction hook raised, or returned no mapping."""
    invalid: int = 0
    """Events that break the contract; the log names the field."""
    unplaced: int = 0
    """Callbacks without an app_id or chat_id."""
    asked: int = 0
    """Requests for context, at most one a turn."""
    without_context: int = 0
    """Of them those that no context came for; the log names each reason once."""
    missing_context: dict[ReasonCode, int] = field(default_factory=dict[ReasonCode, int])
    """By reason, turns that lacked context: all of it, or a block."""
    searches: int = 0
    """Searches of a provider of memory and knowledge."""
    missing_results: dict[ReasonCode, int] = field(default_factory=dict[ReasonCode, int])
    """By reason, searches that lacked results: all of them, or those of a part that was not searched. One that looked
    everywhere and found nothing lacks none. The log names each reason once for each provider."""
    errors: int = 0
    """Callbacks that failed in the adapter itself. The runtime was not told."""


class Sender:
    """Uses ``client`` on the event loop that runs ``publish`` and ``ask``; counting is safe from any thread."""

    def __init__(
        self, client: Client, *, source: str, redact: Redact | None, max_tokens: int | None, read_own_writes: bool
    ) -> None:
        self._client = client
        self._source = source
        self._redact = redact
        self._max_tokens = max_tokens
        self._read_own_writes = read_own_writes
        self._counting = threading.Lock()
        self._said: set[Hashable] = set()
        self.stats = AdapterStats()

    def publish(self, told: Told, time: datetime, position: Future[str | None]) -> None:
        """Give the event to the client, and its position, once it is known, to ``position``: None if it never is."""
        try:
            data = self.redacted(told.type, {**told.data, "context": told.context})
            if data is None:
                position.set_result(None)
                return
            chat = told.chat
            event = Event.create(
                told.type,
                app_id=chat.app_id,
                chat_id=chat.chat_id,
                workflow=chat.workflow,
                user_id=chat.user_id,
                data=data,
                id=told.id,
                source=self._source,
                time=told.time or time,
            )
        except ValidationError as error:
            self.count("invalid")
            logger.error("event %s breaks the contract and is not sent: %s", told.type, wire.explain(error))
            position.set_result(None)
            return
        except Exception as error:  # noqa: BLE001 - the loop goes on
            self.failed("publish", error)
            position.set_result(None)
            return
        self.count("published")
        emitting = asyncio.get_running_loop().create_task(self._client.emit(event, wait_s=_CONFIRM_S))
        emitting.add_done_callback(partial(_settle, position))

    async def ask(
        self,
        chat: Chat,
        agent: str,
        context: Mapping[str, Any],
        before: Future[str | None] | None,
        deadline_s: float,
    ) -> ContextReply:
        """Return the context for a turn before ``deadline_s``, with the effect of the event at position ``before``.

        The position is waited for up to half of the time that is left.
        """
        return await self._reply(chat, agent, context, before, deadline_s)

    def answered(self, reply: ContextReply) -> None:
        """Count what the context of a turn lacks, and say each reason once."""
        if reply.reason is not None:
            self.count("without_context")
        what = "turns without context" if reply.reason is not None else "turns with a part of their context missing"
        self._lacks(self.stats.missing_context, what, reply, None)

    def searched(self, what: str, reply: ContextReply, who: Hashable) -> None:
        """Count what the results of a search lack, and say each reason once for each ``who``."""
        self.count("searches")
        lacking = "are not answered" if reply.reason is not None else "are incomplete"
        self._lacks(self.stats.missing_results, f"searches of {what} {lacking}", reply, who)

    def without_context(self, error: Exception) -> ContextReply:
        """Return the answer for a turn that the adapter itself failed for, and count that."""
        self.failed("context", error)
        return no_context("internal_error", f"the adapter failed: {type(error).__name__}")

    def failed(self, where: str, error: Exception) -> None:
        """Count a failure of the adapter's own; the agent goes on."""
        self.count("errors")
        self.say_once(f"the adapter failed in {where} with {type(error).__name__}; the agent goes on")
        logger.debug("the adapter failed in %s", where, exc_info=error)

    def count(self, name: str) -> None:
        """Raise the count of that name by one."""
        with self._counting:
            setattr(self.stats, name, getattr(self.stats, name) + 1)

    def say_once(self, message: str, detail: str = "", *, who: Hashable = None) -> None:
        """Log a warning once for each ``who``, with the detail that it had the first time."""
        key = (message, who)
        if key not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(key)
            logger.warning("%s%s", message, f" ({detail})" if detail else "")

    def redacted(self, type: str, data: dict[str, Any]) -> dict[str, Any] | None:
        """Return what may be sent, or None for nothing."""
        if self._redact is None:
            return data
        try:
            shown = self._redact(type, plain(data))
            if shown is None:
                self.count("withheld")
                return None
            return {"context": {}, **dict(shown)}
        except Exception as error:  # noqa: BLE001 - it fails closed
            self.count("redaction_failures")
            self.say_once(f"the redaction hook raised {error.__class__.__name__}: nothing is sent where it does")
            return None

    def redacted_request(self, data: dict[str, Any]) -> dict[str, Any] | ContextReply:
        """Return what a request may say, or the reply where the redaction hook lets nothing of it through."""
        failures = self.stats.redaction_failures
        shown = self.redacted(CONTEXT_REQUEST, data)
        if shown is not None:
            return shown
        if self.stats.redaction_failures > failures:
            return no_context("internal_error", "the redaction hook failed, so nothing was asked")
        return no_context("disabled", "the redaction hook held the request back")

    def _lacks(self, counts: dict[ReasonCode, int], what: str, reply: ContextReply, who: Hashable) -> None:
        missing: dict[ReasonCode, str] = {each.reason: each.detail for each in reversed(reply.missing)}
        if reply.reason is not None:
            missing[reply.reason] = reply.detail
        for reason, detail in missing.items():
            with self._counting:
                counts[reason] = counts.get(reason, 0) + 1
            self.say_once(f"{what}: {reason}", "; ".join(filter(None, (detail, _next_step(reason, detail)))), who=who)

    async def _reply(
        self,
        chat: Chat,
        agent: str,
        context: Mapping[str, Any],
        before: Future[str | None] | None,
        deadline_s: float,
    ) -> ContextReply:
        if chat.workflow is None:
            return no_context(
                "invalid_request",
                "workflow_name is needed, by which rules are chosen: pass it to the adapter or put it into the context",
            )
        try:
            data = self.redacted_request({"agent_name": agent, "context": context})
            if isinstance(data, ContextReply):
                return data
            after: str | None = None
            if self._read_own_writes and before is not None:
                waiting = asyncio.wrap_future(before)
                await asyncio.wait({waiting}, timeout=max(0.0, deadline_s - time.monotonic()) / 2)
                after = waiting.result() if waiting.done() and not waiting.cancelled() else None
            reply = await self._client.context(
                agent=agent,
                chat_id=chat.chat_id,
                app_id=chat.app_id,
                workflow=chat.workflow,
                user_id=chat.user_id,
                context=data["context"],
                budget_ms=int(max(0.0, deadline_s - time.monotonic()) * 1000),
                max_tokens=self._max_tokens,
                after=after,
            )
            return ContextReply.model_validate(dict(reply))  # a transport of somebody's own may give anything
        except Exception as error:  # noqa: BLE001 - the turn goes on
            return self.without_context(error)


def _next_step(reason: ReasonCode, detail: str) -> str:
    """Return what an operator does about a reason; empty where the detail says it."""
    return _NO_EMBEDDER if "embedder is required" in detail else _NEXT_STEPS.get(reason, "")


def no_context(reason: ReasonCode, detail: str) -> ContextReply:
    """Return an empty answer."""
    return ContextReply(id=uuid4().hex, reason=reason, detail=detail, partial=True)


def _settle(position: Future[str | None], emitting: asyncio.Task[str | None]) -> None:
    done = not emitting.cancelled() and emitting.exception() is None
    position.set_result(emitting.result() if done else None)

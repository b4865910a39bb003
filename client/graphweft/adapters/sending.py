"""What an adapter does in its own thread: redact, publish, ask. Nothing here raises."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
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
        self._said: set[str] = set()
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
        self.count("asked")
        reply = await self._reply(chat, agent, context, before, deadline_s)
        if reply.reason is not None:
            self.count("without_context")
            self.say_once(f"turns without context: {reply.reason}", reply.detail)
        return reply

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

    def say_once(self, message: str, detail: str = "") -> None:
        """Log a warning, with the detail that it had the first time."""
        if message not in self._said:
            self._said.add(message)
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
            failures = self.stats.redaction_failures
            data = self.redacted(CONTEXT_REQUEST, {"agent_name": agent, "context": context})
            if data is None:
                if self.stats.redaction_failures > failures:
                    return no_context("internal_error", "the redaction hook failed, so nothing was asked")
                return no_context("disabled", "the redaction hook held the request back")
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


def no_context(reason: ReasonCode, detail: str) -> ContextReply:
    """Return an empty answer."""
    return ContextReply(id=uuid4().hex, reason=reason, detail=detail, partial=True)


def _settle(position: Future[str | None], emitting: asyncio.Task[str | None]) -> None:
    done = not emitting.cancelled() and emitting.exception() is None
    position.set_result(emitting.result() if done else None)

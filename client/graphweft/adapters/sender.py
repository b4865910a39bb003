"""The part of an adapter that runs in its own thread: redact, publish, request context. Nothing here raises."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol, TypeAlias
from uuid import uuid4

from pydantic import ValidationError

from graphweft.adapters.events import CONTEXT_REQUEST
from graphweft.adapters.turn_book import Chat, EmittedEvent
from graphweft.json_copy import json_copy
from graphweft.refusal_log import RefusalLog
from graphweft.timing import CLIENT_TIMING, AdapterTiming
from graphweft.transport import Outcome, with_bus_step
from graphweft_contracts import ContextReply, Event, ReasonCode, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.plurals import counted

logger = logging.getLogger("graphweft.adapters")

Redact: TypeAlias = Callable[[str, dict[str, Any]], Mapping[str, Any] | None]
"""``(type, data) -> data``, or None to withhold it. The hook receives a copy, which it may change. ``data["context"]``
holds the context variables. ``type`` is the type of an event, or ``context.request`` for a context request. The ids of
app, chat and user are not shown to the hook; pass pseudonyms to the adapter if they must not be sent.
"""

_MAX_WARNINGS: Final = 1_000
"""Warnings that one adapter logs. A program may make any number of providers; counts continue beyond the limit."""
_MAX_FORMS: Final = 50
"""Forms of parts that are counted by name."""
_NEXT_STEPS: Final[Mapping[ReasonCode, str]] = {
    "condition_error": "correct the condition; `graphweft lint` checks it",
    "embedder_unavailable": "check that the endpoint of GRAPHWEFT_EMBEDDER answers the responder",
    "graph_unavailable": "start the graph server; `graphweft doctor` checks it",
    "internal_error": "read the log of the process that failed",
    "invalid_request": "correct the value named here",
    "missing_param": "add the value to the context variables, or remove it from the rule",
    "no_rules": "add rules for the workflow to the responder's folder, or name a workflow that has rules",
    "overloaded": "run more responders",
    "query_error": "correct the query or the index named here",
    "timeout": "run a faster responder, or raise budget_ms",
    "token_budget": "raise max_tokens, or let the rules return less",
}


class EventClient(Protocol):
    """What is used of a ``Client``."""

    async def emit_each(self, events: Sequence[Event], *, wait_s: float = ...) -> list[Outcome | None]:
        """See ``Client``."""
        ...

    async def context(
        self,
        *,
        agent: str,
        chat_id: str,
        app_id: str | None = ...,
        workflow: str | None = ...,
        user_id: str | None = ...,
        context: Mapping[str, Any] | None = ...,
        budget_ms: int | None = ...,
        max_tokens: int | None = ...,
        after: str | None = ...,
    ) -> ContextReply:
        """See ``Client``."""
        ...


@dataclass(slots=True)
class AdapterStats:
    """Counts of callbacks and requests. ``ClientStats`` counts what happens to the published events."""

    published: int = 0
    """Events passed to the client, of which ``refused`` were not sent."""
    refused: int = 0
    """Events that the bus or the gateway refused for good, or that found the client's buffer full: those known
    within some seconds. The log names each reason once, and ``ClientStats`` counts all."""
    dropped: int = 0
    """Events dropped because the adapter's thread was too slow, or after the adapter was closed."""
    withheld: int = 0
    """Events and requests that the redaction hook withheld."""
    redaction_failures: int = 0
    """Events and requests that were not sent because the redaction hook raised, or returned no mapping."""
    invalid: int = 0
    """Events that violate the contract; the log names each faulty field once."""
    unplaced: int = 0
    """Callbacks without an app_id or chat_id."""
    asked: int = 0
    """Context requests, at most one for each turn."""
    without_context: int = 0
    """Requests without any context; each reason is logged once."""
    stale_context: int = 0
    """Turns whose context lacks the effect of earlier events of the chat: workers had not applied them when it was
    read. It is logged once."""
    missing_context: dict[ReasonCode, int] = field(default_factory=dict[ReasonCode, int])
    """Turns without context, or with a block missing, by reason."""
    refused_context: int = 0
    """Turns without context because the model's provider refused the request with it, and took it without."""
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Parts of messages that adapters do not keep, by their form, such as ``image_url``. Each form is logged once."""
    searches: int = 0
    """Searches of memory and knowledge providers."""
    missing_results: dict[ReasonCode, int] = field(default_factory=dict[ReasonCode, int])
    """Searches that failed entirely or in part, by reason. A complete search without hits is not counted. Each reason
    is logged once for each provider."""
    errors: int = 0
    """Callbacks that failed inside the adapter. The runtime did not see the error."""


class Sender:
    """Uses ``client`` on the event loop that runs ``publish`` and ``ask``. Counting is thread-safe."""

    def __init__(
        self, client: EventClient, *, source: str, redact: Redact | None, max_tokens: int | None, read_own_writes: bool,
        clock: Clock = SYSTEM_CLOCK, timing: AdapterTiming = CLIENT_TIMING.adapters,
    ) -> None:  # fmt: skip
        self._client = client
        self._clock = clock
        self._timing = timing
        self._source = source
        self._redact = redact
        self._max_tokens = max_tokens
        self._read_own_writes = read_own_writes
        self._counting = threading.Lock()
        self._warned: set[Hashable] = set()
        self._refusals = RefusalLog(logger)
        self.stats = AdapterStats()

    def publish(self, emitted: EmittedEvent, time: datetime, position: Future[str | None]) -> None:
        """Pass the event to the client. ``position`` receives its position, or None if the bus does not confirm it."""
        event = self.event_of(emitted, time)
        if event is None:
            position.set_result(None)
            return
        emitting = asyncio.get_running_loop().create_task(
            self._client.emit_each([event], wait_s=self._timing.confirm_s)
        )
        emitting.add_done_callback(partial(self._settle, position))

    def event_of(self, emitted: EmittedEvent, time: datetime) -> Event | None:
        """Return the event to send, which is counted, or None if it is invalid or withheld."""
        try:
            data = self.redacted(emitted.type, {**emitted.data, "context": emitted.context})
            if data is None:
                return None
            chat = emitted.chat
            event = Event.create(
                emitted.type,
                app_id=chat.app_id,
                chat_id=chat.chat_id,
                workflow=chat.workflow,
                user_id=chat.user_id,
                data=data,
                id=emitted.id,
                source=self._source,
                time=emitted.time or time,
            )
        except ValidationError as error:
            self.count("invalid")
            self._refusals.note(emitted.type, f"it violates the contract: {wire.explain(error)}")
            return None
        except Exception as error:  # noqa: BLE001 - the loop continues
            self.failed("publish", error)
            return None
        self.count("published")
        return event

    def _settle(self, position: Future[str | None], emitting: asyncio.Task[list[Outcome | None]]) -> None:
        """Set the position of an event, None if it is not known, and count a refusal."""
        done = not emitting.cancelled() and emitting.exception() is None
        [outcome] = emitting.result() if done else [None]
        if isinstance(outcome, Exception):
            self.count("refused")
        position.set_result(outcome if isinstance(outcome, str) else None)

    async def ask(
        self,
        chat: Chat,
        agent: str,
        context: Mapping[str, Any],
        before: Future[str | None] | asyncio.Future[str | None] | None,
        deadline_s: float,
        *,
        max_tokens: int | None = None,
    ) -> ContextReply:
        """Return the context of a turn by ``deadline_s``, with the effect of the event at position ``before``.

        Waiting for that position takes at most half of the remaining time.
        """
        if chat.workflow is None:
            return no_context(
                "invalid_request",
                "workflow_name is required to select rules: pass it to the adapter, or as a context variable",
            )
        try:
            data = self.redacted_request({"agent_name": agent, "context": context})
            if isinstance(data, ContextReply):
                return data
            after: str | None = None
            if self._read_own_writes and before is not None:
                waiting = asyncio.wrap_future(before)
                await asyncio.wait({waiting}, timeout=max(0.0, deadline_s - self._clock.monotonic()) / 2)
                after = waiting.result() if waiting.done() and not waiting.cancelled() else None
            reply = await self._client.context(
                agent=agent,
                chat_id=chat.chat_id,
                app_id=chat.app_id,
                workflow=chat.workflow,
                user_id=chat.user_id,
                context=data["context"],
                budget_ms=int(max(0.0, deadline_s - self._clock.monotonic()) * 1000),
                max_tokens=max_tokens or self._max_tokens,
                after=after,
            )
            return ContextReply.model_validate(dict(reply))  # a custom transport may return anything
        except Exception as error:  # noqa: BLE001 - the turn continues
            return self.without_context(error)

    def answered(self, reply: ContextReply, budget_ms: float) -> None:
        """Count the missing parts of a turn's context, which had ``budget_ms``, and log each reason once."""
        if reply.reason is not None:
            self.count("without_context")
        if reply.stale_by is not None:
            self.count("stale_context")
            self.warn_once(
                "a turn's context lacks what the last events wrote: workers had not applied them when it was read",
                f"{counted(reply.stale_by, 'event')} behind after {reply.elapsed_ms:.0f} ms; of a budget of "
                f"{budget_ms:.0f} ms a part is left for the queries: raise budget_ms, or see with `graphweft status` "
                "whether workers are behind",
            )
        what = "turns without context" if reply.reason is not None else "turns with incomplete context"
        self._count_missing(self.stats.missing_context, what, reply, None)

    def searched(self, what: str, reply: ContextReply, who: Hashable) -> None:
        """Count the missing parts of a search's results, and log each reason once for each ``who``."""
        self.count("searches")
        state = "have no answer" if reply.reason is not None else "are incomplete"
        self._count_missing(self.stats.missing_results, f"searches of {what} {state}", reply, who)

    def without_context(self, error: Exception) -> ContextReply:
        """Count a failure of the adapter, and return the reply for the turn."""
        self.failed("context", error)
        return no_context("internal_error", f"the adapter failed: {type(error).__name__}")

    def failed(self, where: str, error: Exception) -> None:
        """Count a failure of the adapter, and log it once; the agent continues."""
        self.count("errors")
        self.warn_once(f"the adapter failed in {where} with {type(error).__name__}; the agent continues")
        logger.debug("the adapter failed in %s", where, exc_info=error)

    def count(self, name: str) -> None:
        """Increase one of the stats by one."""
        with self._counting:
            setattr(self.stats, name, getattr(self.stats, name) + 1)

    def left_out(self, forms: Iterable[str]) -> None:
        """Count parts of messages that no event and no memory holds, by their form, and log each form once."""
        for form in forms:
            with self._counting:
                name = form if form in self.stats.left_out or len(self.stats.left_out) < _MAX_FORMS else "others"
                self.stats.left_out[name] = self.stats.left_out.get(name, 0) + 1
            self.warn_once(f"parts of messages are left out of events and memories: {name}")

    def warn_once(self, message: str, detail: str = "", *, who: Hashable = None) -> None:
        """Log a warning once for each ``who``, with the detail of the first time."""
        key = (message, who)
        if key not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(key)
            logger.warning("%s%s", message, f" ({detail})" if detail else "")

    def redacted(self, type: str, data: dict[str, Any]) -> dict[str, Any] | None:
        """Return ``data`` after the redaction hook, or None if nothing may be sent."""
        if self._redact is None:
            return data
        try:
            shown = self._redact(type, json_copy(data))
            if shown is None:
                self.count("withheld")
                return None
            return {"context": {}, **dict(shown)}
        except Exception as error:  # noqa: BLE001 - it fails closed
            self.count("redaction_failures")
            self.warn_once(f"the redaction hook raised {error.__class__.__name__}: the event or request is not sent")
            return None

    def redacted_request(self, data: dict[str, Any]) -> dict[str, Any] | ContextReply:
        """Return the data of a request after the redaction hook, or a reply if nothing may be sent."""
        failures = self.stats.redaction_failures
        shown = self.redacted(CONTEXT_REQUEST, data)
        if shown is not None:
            return shown
        if self.stats.redaction_failures > failures:
            return no_context("internal_error", "the redaction hook failed, so the request was not sent")
        return no_context("disabled", "the redaction hook withheld the request")

    def _count_missing(self, counts: dict[ReasonCode, int], what: str, reply: ContextReply, who: Hashable) -> None:
        missing: dict[ReasonCode, str] = {each.reason: each.detail for each in reversed(reply.missing)}
        if reply.reason is not None:
            missing[reply.reason] = reply.detail
        for reason, detail in missing.items():
            with self._counting:
                counts[reason] = counts.get(reason, 0) + 1
            self.warn_once(f"{what}: {reason}", _with_next_step(reason, detail), who=who)


def _with_next_step(reason: ReasonCode, detail: str) -> str:
    """Return the detail with the next step for the operator."""
    if reason == "bus_unavailable":
        return with_bus_step(detail)
    names_step = "embedder is required" in detail or (reason == "invalid_request" and "`graphweft " in detail)
    step = "" if names_step else _NEXT_STEPS.get(reason, "")
    return "; ".join(filter(None, (detail, step)))


def no_context(reason: ReasonCode, detail: str) -> ContextReply:
    """Return an empty reply."""
    return ContextReply(id=uuid4().hex, reason=reason, detail=detail, partial=True)

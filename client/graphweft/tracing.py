"""The trace that events and requests belong to: that of the program's current span, if it makes spans at all.

OpenTelemetry's API is imported only if the program has imported it before, as one that makes spans has. For all others
it costs one look-up. The client makes spans only inside a recorded trace; it never begins one. Its spans hold names of
operations, ids and counts, and nothing of the content of events, requests and replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from graphweft.outbox import EncodedEvent
from graphweft_contracts.trace_context import TraceContext

if TYPE_CHECKING:
    from graphweft_contracts.context import ContextReply
    from graphweft_contracts.events import Event

logger = logging.getLogger("graphweft.client")

_API: Final = "opentelemetry.trace"
LIBRARY: Final = "graphweft"
"""The library in the spans of graphweft."""
EVENTS: Final = "graphweft.events"
"""The event log in spans, whatever the bus calls it."""
OPERATION: Final = "gen_ai.operation.name"
STORE: Final = "gen_ai.memory.store.id"
RECORDS: Final = "gen_ai.memory.record.count"
CONVERSATION: Final = "gen_ai.conversation.id"
AGENT: Final = "gen_ai.agent.name"
APP: Final = "graphweft.app_id"
REASON: Final = "graphweft.reason"

SpanValue: TypeAlias = "str | int | float | bool"
_T = TypeVar("_T")

_given: Final[ContextVar[TraceContext | None]] = ContextVar("graphweft_trace", default=None)


@contextlib.contextmanager
def within(trace: TraceContext | None) -> Generator[None]:
    """Let what is sent in the block belong to a span that this program does not make itself."""
    token = _given.set(trace)
    try:
        yield
    finally:
        _given.reset(token)


def current_trace() -> TraceContext | None:
    """Return the span that what is sent now belongs to: that of ``within``, or else the program's current one."""
    given = _given.get()
    if given is not None or _API not in sys.modules:
        return given
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        found: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(found)
    except Exception as error:
        logger.debug("the current span is not known", exc_info=error)
        return None
    return TraceContext.of(found.get("traceparent"), found.get("tracestate"))


def with_trace(event: Event) -> Event:
    """Return the event with the current trace, unless it names one."""
    if event.traceparent is not None:
        return event
    trace = current_trace()
    return event if trace is None else event.model_copy(update=trace._asdict())


def task_apart(work: Coroutine[Any, Any, _T], *, name: str) -> asyncio.Task[_T]:
    """Start a task outside the current span, for work that outlasts it."""
    return apart().run(asyncio.create_task, work, name=name)


def apart() -> contextvars.Context:
    """Return a copy of the current context that is within no span. All else stays, such as that no spans are wanted."""
    copied = contextvars.copy_context()
    copied.run(_leave)
    return copied


def _leave() -> None:
    _given.set(None)
    if _API in sys.modules:
        try:
            from opentelemetry import context, trace

            context.attach(trace.set_span_in_context(trace.INVALID_SPAN))
        except Exception as error:
            logger.debug("the current span stays", exc_info=error)


class ClientSpan(Protocol):
    """A span of the client, while it is open."""

    def replied(self, reply: ContextReply) -> None:
        """Say how a request ended."""
        ...


class _NoSpan:
    def replied(self, reply: ContextReply) -> None:
        """Do nothing: there is no span."""


_NO_SPAN: Final[AbstractContextManager[ClientSpan]] = contextlib.nullcontext(_NoSpan())


def sending(events: Sequence[Event | EncodedEvent], system: str) -> AbstractContextManager[ClientSpan]:
    """Return the span of sending events to a bus of a kind; what is sent in it names it."""
    if not _is_sampled():
        return _NO_SPAN

    def attributes() -> dict[str, SpanValue]:
        given = events[0]
        one = given.event if isinstance(given, EncodedEvent) else given
        about: dict[str, SpanValue] = (
            {"messaging.message.id": one.id, "graphweft.event_type": one.type, APP: one.appid}
            if len(events) == 1
            else {"messaging.batch.message_count": len(events)}
        )
        return {
            "messaging.system": system,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": EVENTS,
            **about,
        }

    return _span(f"send {EVENTS}", "PRODUCER", attributes)


def asking(fields: Mapping[str, Any], app_id: str | None) -> AbstractContextManager[ClientSpan]:
    """Return the span of a context request with these fields, or of a search."""
    if not _is_sampled():
        return _NO_SPAN
    search = fields["search"]
    if search is None:
        return _span(
            "get_context", "CLIENT",
            lambda: {APP: app_id or "", CONVERSATION: fields["chat_id"], AGENT: fields["agent"]},
        )  # fmt: skip
    given: Any = search
    memory: object = given.get("memory") if isinstance(search, dict) else getattr(given, "memory", None)
    name = "retrieval" if memory is None else "search_memory"
    store: dict[str, SpanValue] = {} if memory is None else {STORE: app_id or ""}
    return _span(name, "CLIENT", lambda: {APP: app_id or "", OPERATION: name, **store})


def changing_memory(operation: str, app_id: str, records: int | None = None) -> AbstractContextManager[ClientSpan]:
    """Return the span of ``create_memory`` or ``delete_memory``: of the event that asks for it."""
    if not _is_sampled():
        return _NO_SPAN
    count: dict[str, SpanValue] = {} if records is None else {RECORDS: records}
    return _span(operation, "CLIENT", lambda: {OPERATION: operation, STORE: app_id, **count})


def _is_sampled() -> bool:
    if _API not in sys.modules:
        return False
    try:
        from opentelemetry import trace

        return trace.get_current_span().get_span_context().trace_flags.sampled
    except Exception as error:
        logger.debug("the current span is not known", exc_info=error)
        return False


@contextlib.contextmanager
def _span(name: str, kind: str, attributes: Callable[[], dict[str, SpanValue]]) -> Generator[ClientSpan]:
    from opentelemetry import trace

    try:
        made = trace.get_tracer(LIBRARY).start_span(name, kind=trace.SpanKind[kind], attributes=attributes())
    except Exception as error:
        logger.debug("a span cannot be made", exc_info=error)
        yield _NoSpan()
        return
    # The texts of errors may quote what was sent.
    with trace.use_span(made, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        yield _OpenSpan(made)


class _OpenSpan:
    def __init__(self, span: Any) -> None:
        self._span = span

    def replied(self, reply: ContextReply) -> None:
        """See ``ClientSpan``."""
        self._span.set_attributes(reply_values(reply))


def reply_values(reply: ContextReply) -> dict[str, SpanValue]:
    """Return what the span of a request says of its reply."""
    values: dict[str, SpanValue] = {
        "graphweft.blocks": len(reply.blocks), "graphweft.missing": len(reply.missing),
        "graphweft.tokens": reply.tokens,
    }  # fmt: skip
    if "search" in reply.injected:
        values[RECORDS] = len(reply.results)
    if reply.reason is not None:
        values[REASON] = reply.reason
    return values

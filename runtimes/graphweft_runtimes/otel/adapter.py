"""OpenTelemetry: GenAI spans of any instrumented runtime become events as they start and end. It gives no context.

Rejected: a span exporter alone. It sees spans in batches after they have ended, tools before their agents. Programs
often set the attributes of an agent's span just after its start. So the start event is emitted when the first child
span starts, or when the span ends, with the time of the span's start.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import logging
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from typing_extensions import Self

from graphweft.adapters.core import Adapter, Stamp
from graphweft.adapters.events import (
    MODEL_CALL_COMPLETE,
    TOOL_CALL_COMPLETE,
    TOOL_CALL_START,
    TURN_COMPLETE,
    TURN_START,
    WORKFLOW_COMPLETE,
    WORKFLOW_ERROR,
    WORKFLOW_START,
)
from graphweft.adapters.genai import (
    APP_ID,
    ATTRIBUTES,
    OPERATION,
    RESOURCE_ATTRIBUTES,
    SOURCE,
    Conversations,
    Kind,
    Span,
    SpanEvent,
    SpanPlace,
    events_of,
    time_of,
)
from graphweft.adapters.turn_book import EmittedEvent, TurnBook
from graphweft.adapters.values import milliseconds
from graphweft.background_loop import renew_after_fork
from graphweft.tracing import within
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.trace_context import TraceContext
from graphweft_runtimes.runtime_adapter import RuntimeAdapter
from graphweft_runtimes.versions import require

logger = logging.getLogger("graphweft.adapters")

_MAX_OPEN: Final = 10_000
"""Open spans that are kept; some spans never end."""

_OWN: Final[Mapping[tuple[Kind | None, str], str]] = {
    ("workflow", "start"): WORKFLOW_START,
    ("workflow", "end"): WORKFLOW_COMPLETE,
    ("agent", "start"): TURN_START,
    ("agent", "end"): TURN_COMPLETE,
    ("tool", "start"): TOOL_CALL_START,
    ("tool", "end"): TOOL_CALL_COMPLETE,
    ("model", "end"): MODEL_CALL_COMPLETE,
}
"""The event of each moment. Further events of a moment are those of turns and tools that it closes."""

_Key: TypeAlias = tuple[int, int]


@dataclass(slots=True, eq=False)
class _Open:
    """An open span. ``place`` is known once its start was processed."""

    span: Any
    above: _Open | None
    place: SpanPlace | None = None
    started: bool = False


class GraphweftSpanProcessor(RuntimeAdapter):
    """A ``SpanProcessor`` that emits events of agents. ``settings`` are those of ``Adapter``.

    ``app_id`` and ``workflow_name`` default to the resource attributes ``graphweft.app_id`` and
    ``graphweft.workflow_name``; chat, user and workflow come from the spans. Its methods never raise, and only
    ``shutdown`` and ``force_flush`` wait. Raises ``InvalidSettings`` without a supported version of the SDK.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Return an instance that is also a ``SpanProcessor`` of the SDK."""
        base: Any = _sdk().SpanProcessor
        made: Any = cls if issubclass(cls, base) else type(cls.__name__, (cls, base), {"__module__": cls.__module__})
        self: Self = object.__new__(made)
        return self

    def __init__(self, adapter: Adapter | None = None, **settings: Any) -> None:
        super().__init__(adapter, SOURCE, settings)
        self._again: Callable[[], Adapter] | None = None
        if adapter is None and "client" not in settings:
            self._again = partial(Adapter, **{"source": SOURCE, **settings})
        self._process = os.getpid()
        self._lock = threading.RLock()
        renew_after_fork(self, threading.RLock)
        self._open: BoundedDict[_Key, _Open] = BoundedDict(_MAX_OPEN)
        self._conversations = Conversations()
        self._quiet = _quiet()
        self._failed = False

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Emit the start of the parent span, and of this span if its operation is known."""
        with self._guarded():
            above = self._above(span)
            if above is not None:
                self._emit_start(above)
            mine = _Open(span=span, above=above)
            self._open[_key(span.context)] = mine
            if OPERATION in (span.attributes or {}):
                self._emit_start(mine)

    def on_end(self, span: Any) -> None:
        """Emit the end of the span, and its start if that was not emitted yet."""
        with self._guarded():
            mine = self._open.pop(_key(span.context), None) or _Open(span=span, above=self._above(span))
            mine.span = span
            self._emit_start(mine)
            self._emit_end(mine)
            mine.span = mine.above = None  # children may still be open

    def emit_ended(self, spans: Sequence[Any]) -> None:
        """Emit the events of ended spans that ``on_start`` did not see; turns and calls have no numbers then."""
        with self._guarded():
            read = [_read(span) for span in spans]
            for span in read:
                self._place(span, None)
            app_id = str(read[0].resource.get(APP_ID, "")) if read else ""
            for event in events_of(read, lambda trace_id: self._conversations.find(app_id, trace_id)):
                step = partial(TurnBook.emit, type=event.type)
                self._record(event.span, event.place, step, _named(event), data=event.data)

    def shutdown(self) -> None:
        """Close open turns as abandoned, send buffered events, and close."""
        self.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait until all events are on the bus; return False if that takes longer."""
        return self.core.flush(timeout_millis / 1000)

    def _above(self, span: Any) -> _Open | None:
        return None if span.parent is None else self._open.get(_key(span.parent))

    def _emit_start(self, opened: _Open) -> None:
        if opened.started or opened.span is None:
            return
        span = _read(opened.span)
        opened.place = place = self._place(span, opened.above)
        if span.kind is None:  # a later attribute may name its kind
            return
        opened.started = True
        stamp = _stamp(span, "start")
        match span.kind:
            case "workflow" if place.workflows == 1:
                self._record(span, place, TurnBook.start_run, stamp)
            case "agent":
                self._record(span, place, partial(TurnBook.start_turn, agent=_agent(place), run=place.run), stamp)
            case "tool":
                step = partial(
                    TurnBook.start_tool, tool=span.tool, call_id=span.call_id, agent=_agent(place), run=place.run
                )
                self._record(span, place, step, stamp, arguments=span.arguments)
            case _:
                pass

    def _emit_end(self, opened: _Open) -> None:
        span, place = _read(opened.span), opened.place
        if not opened.started or place is None:
            return
        failure, stamp = span.failure, _stamp(span, "end")
        match span.kind:
            case "workflow" if place.workflows == 1 and failure is None:
                self._record(span, place, TurnBook.end_run, stamp, outputs=span.response)
            case "workflow" if place.workflows == 1 and failure is not None:
                self._record(span, place, partial(TurnBook.fail_run, failure=failure), stamp)
            case "agent":
                step = partial(TurnBook.end_turn, agent=_agent(place), run=place.run, failure=failure)
                self._record(span, place, step, stamp, response=span.response)
            case "tool":
                ended = partial(TurnBook.end_tool, tool=span.tool, call_id=span.call_id, success=failure is None)
                error = None if failure is None else failure.error_message or failure.error_type
                self._record(span, place, ended, stamp, result=span.result, error=error)
            case "model":
                call = partial(TurnBook.model_call, agent=_agent(place), run=place.run, success=failure is None)
                self._record(span, place, call, stamp, about=span.model_fields())
            case _:
                pass

    def _place(self, span: Span, above: _Open | None) -> SpanPlace:
        app_id = str(span.resource.get(APP_ID, ""))
        if span.conversation:
            self._conversations.add(app_id, span.trace_id, span.conversation)
        known = self._conversations.find(app_id, span.trace_id)
        return SpanPlace.of(span, None if above is None else above.place, known)

    def _record(
        self, span: Span, place: SpanPlace, step: Callable[..., list[EmittedEvent]], stamp: Stamp, **values: Any
    ) -> None:
        ids = {
            "app_id": span.resource.get(APP_ID),
            "chat_id": place.chat_id,
            "workflow_name": place.workflow,
            "user_id": place.user_id,
        }
        variables = {name: value for name, value in ids.items() if value is not None}
        record = partial(self._core().record, variables, step, stamp, **values)
        self._quiet.copy().run(_within, span.trace, record)

    def _core(self) -> Adapter:
        """Return the core, and make a new one after a fork, where the thread is gone."""
        if self._process != os.getpid() and self._again is not None:
            self._process, self.core = os.getpid(), self._again()
        return self.core

    @contextlib.contextmanager
    def _guarded(self) -> Generator[None]:
        try:
            with self._lock:
                yield
        except Exception as error:  # the program continues whatever happens here
            if not self._failed:
                self._failed = True
                logger.warning("a span is not recorded: %s; further failures are not logged", error, exc_info=error)


def _stamp(span: Span, moment: Literal["start", "end"]) -> Stamp:
    """Return a stamp that sets the time of all events of a moment, and the id and duration of the span's own event."""
    time = time_of(span.start_ns if moment == "start" else span.end_ns)
    own = _OWN.get((span.kind, moment))

    def stamp(events: list[EmittedEvent]) -> list[EmittedEvent]:
        last = max((number for number, event in enumerate(events) if event.type == own), default=-1)
        return [stamped(event, mine=number == last) for number, event in enumerate(events)]

    def stamped(event: EmittedEvent, *, mine: bool) -> EmittedEvent:
        data, id = dict(event.data), None
        if not data.get("agent_name", True):  # a call outside of agents
            del data["agent_name"]
        if mine:
            id = span.event_id(moment)
            if own in {TURN_START, TURN_COMPLETE} and span.agent_id is not None:
                data["agent_id"] = span.agent_id
            if own in {TURN_COMPLETE, TOOL_CALL_COMPLETE}:
                data["duration_ms"] = milliseconds(span.duration_s)
            if own == WORKFLOW_COMPLETE:
                data["duration"] = round(span.duration_s, 6)
        elif event.type == WORKFLOW_ERROR and span.failure is not None:
            id = span.error_id(span.failure, event.chat.chat_id)
        return replace(event, data=data, id=id, time=time)

    return stamp


def _within(trace: TraceContext | None, record: Callable[[], None]) -> None:
    with within(trace):
        record()


def _named(event: SpanEvent) -> Stamp:
    """Return a stamp that sets the id and time of a single event."""
    return lambda events: [replace(one, id=event.id, time=time_of(event.time_ns)) for one in events]


def _agent(place: SpanPlace) -> str:
    """Return the agent's name, or "" for none: None would mean the latest open turn."""
    return place.agent or ""


def _key(context: Any) -> _Key:
    return (context.trace_id, context.span_id)


def _sdk() -> Any:
    require("opentelemetry.sdk.version", extra="otel", lowest="1.27", below="2")
    return importlib.import_module("opentelemetry.sdk.trace")


def _quiet() -> contextvars.Context:
    """Return a context without the program's trace, in which instrumented libraries make no spans.

    The adapter's own traffic with the bus runs in it.
    """
    context: Any = importlib.import_module("opentelemetry.context")
    made = contextvars.Context()
    if key := getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", None):
        made.run(lambda: context.attach(context.set_value(str(key), True)))
    return made


def _read(span: Any) -> Span:
    """Return the current values of an SDK span. It reads by key only: other threads may write to the span."""
    attributes: Mapping[str, Any] = span.attributes or {}
    resource: Mapping[str, Any] = span.resource.attributes
    exception: Mapping[str, Any] = {}
    for event in span.events:
        if event.name == "exception":
            exception = event.attributes or {}
    return Span(
        trace_id=f"{span.context.trace_id:032x}",
        span_id=f"{span.context.span_id:016x}",
        parent_id=None if span.parent is None else f"{span.parent.span_id:016x}",
        name=span.name,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        attributes={name: attributes[name] for name in ATTRIBUTES if name in attributes},
        resource={name: resource[name] for name in RESOURCE_ATTRIBUTES if name in resource},
        failed=span.status.status_code.name == "ERROR",
        status_message=span.status.description,
        exception_type=exception.get("exception.type"),
        exception_message=exception.get("exception.message"),
    )

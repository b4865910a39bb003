"""OpenTelemetry: GenAI spans of any instrumented runtime become events, as they begin and end. It gives no context.

Rejected: a span exporter alone. It sees spans when they have ended, in batches, those of tools before those of their
agents. What an agent's span says of itself is often set just after its start, so such a span is told when the first
one below it begins, or when it ends, with the time of its own start.
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
from typing import Any, Final, Literal, Self

from graphweft.adapters.background import renew_after_fork
from graphweft.adapters.core import Adapter, Stamp
from graphweft.adapters.genai import (
    APP_ID,
    ATTRIBUTES,
    OPERATION,
    RESOURCE_ATTRIBUTES,
    SOURCE,
    Conversations,
    Kind,
    Place,
    Span,
    SpanEvent,
    events_of,
    time_of,
)
from graphweft.adapters.runtime import RuntimeAdapter
from graphweft.adapters.turns import Told, TurnBook
from graphweft.adapters.values import milliseconds
from graphweft.adapters.versions import require
from graphweft.adapters.vocabulary import (
    MODEL_CALL_COMPLETE,
    TOOL_CALL_COMPLETE,
    TOOL_CALL_START,
    TURN_COMPLETE,
    TURN_START,
    WORKFLOW_COMPLETE,
    WORKFLOW_ERROR,
    WORKFLOW_START,
)

__all__ = ("GraphweftSpanProcessor",)

logger = logging.getLogger("graphweft.adapters")

_OPEN: Final = 10_000
"""Open spans that are kept; beyond that the one that is open longest is forgotten, as one that never ends."""

_OWN: Final[Mapping[tuple[Kind | None, str], str]] = {
    ("workflow", "start"): WORKFLOW_START,
    ("workflow", "end"): WORKFLOW_COMPLETE,
    ("agent", "start"): TURN_START,
    ("agent", "end"): TURN_COMPLETE,
    ("tool", "start"): TOOL_CALL_START,
    ("tool", "end"): TOOL_CALL_COMPLETE,
    ("model", "end"): MODEL_CALL_COMPLETE,
}
"""The event of each moment; what else comes of one is about turns and tools that are closed by it."""

type _Key = tuple[int, int]


@dataclass(slots=True, eq=False)
class _Open:
    """A span that has begun. ``place`` is known once its start was told, or would have been."""

    span: Any
    above: _Open | None
    place: Place | None = None
    told: bool = False


class GraphweftSpanProcessor(RuntimeAdapter):
    """A ``SpanProcessor`` that publishes what agents do. ``settings`` are those of ``Adapter``.

    ``app_id`` is the resource attribute ``graphweft.app_id`` where the settings do not say it, ``workflow_name``
    likewise; chat, user and workflow are what the spans say. Nothing here raises or waits, but ``shutdown`` and
    ``force_flush``. Raises ``InvalidSettings`` where there is no SDK of OpenTelemetry that it knows.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Return one that is a ``SpanProcessor`` of the SDK, too, whatever belongs to that."""
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
        self._open: dict[_Key, _Open] = {}
        self._conversations = Conversations()
        self._quiet = _quiet()
        self._failed = False

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Tell of a span that says at its start what it is, and of the one around it."""
        with self._guarded():
            above = self._above(span)
            if above is not None:
                self._tell_start(above)
            mine = _Open(span=span, above=above)
            self._open[_key(span.context)] = mine
            if len(self._open) > _OPEN:
                del self._open[next(iter(self._open))]
            if OPERATION in (span.attributes or {}):
                self._tell_start(mine)

    def on_end(self, span: Any) -> None:
        """Tell of the span's end, and of its start where that was not told yet."""
        with self._guarded():
            mine = self._open.pop(_key(span.context), None) or _Open(span=span, above=self._above(span))
            mine.span = span
            self._tell_start(mine)
            self._tell_end(mine)
            mine.span = mine.above = None  # spans below may still be open

    def tell_ended(self, spans: Sequence[Any]) -> None:
        """Tell of spans that have all ended, none of which was seen before; turns and calls have no numbers then."""
        with self._guarded():
            read = [_read(span) for span in spans]
            for span in read:
                self._place(span, None)
            app_id = str(read[0].resource.get(APP_ID, "")) if read else ""
            for event in events_of(read, lambda trace_id: self._conversations.find(app_id, trace_id)):
                step = partial(TurnBook.tell, type=event.type)
                self._record(event.span, event.place, step, _named(event), data=event.data)

    def shutdown(self) -> None:
        """Send what is buffered, and end. Turns that are open are told as abandoned."""
        self.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait until all that was told is on the bus; return False when that takes longer."""
        return self.core.flush(timeout_millis / 1000)

    def _above(self, span: Any) -> _Open | None:
        return None if span.parent is None else self._open.get(_key(span.parent))

    def _tell_start(self, opened: _Open) -> None:
        if opened.told or opened.span is None:
            return
        span = _read(opened.span)
        opened.place = place = self._place(span, opened.above)
        if span.kind is None:  # it may say so later
            return
        opened.told = True
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

    def _tell_end(self, opened: _Open) -> None:
        span, place = _read(opened.span), opened.place
        if not opened.told or place is None:
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

    def _place(self, span: Span, above: _Open | None) -> Place:
        app_id = str(span.resource.get(APP_ID, ""))
        if span.conversation:
            self._conversations.add(app_id, span.trace_id, span.conversation)
        known = self._conversations.find(app_id, span.trace_id)
        return Place.of(span, None if above is None else above.place, known)

    def _record(self, span: Span, place: Place, step: Callable[..., list[Told]], stamp: Stamp, **values: Any) -> None:
        ids = {
            "app_id": span.resource.get(APP_ID),
            "chat_id": place.chat_id,
            "workflow_name": place.workflow,
            "user_id": place.user_id,
        }
        variables = {name: value for name, value in ids.items() if value is not None}
        self._quiet.copy().run(partial(self._core().record, variables, step, stamp, **values))

    def _core(self) -> Adapter:
        """Return the core: after a fork another one, for threads stay behind."""
        if self._process != os.getpid() and self._again is not None:
            self._process, self.core = os.getpid(), self._again()
        return self.core

    @contextlib.contextmanager
    def _guarded(self) -> Generator[None]:
        try:
            with self._lock:
                yield
        except Exception as error:  # the program goes on whatever happens here
            if not self._failed:
                self._failed = True
                logger.warning("a span is not told: %s; further ones are not named here", error, exc_info=error)


def _stamp(span: Span, moment: Literal["start", "end"]) -> Stamp:
    """Return what gives all that comes of a moment its time, and the span's own event its id and how long it took."""
    time = time_of(span.start_ns if moment == "start" else span.end_ns)
    own = _OWN.get((span.kind, moment))

    def stamp(told: list[Told]) -> list[Told]:
        last = max((number for number, one in enumerate(told) if one.type == own), default=-1)
        return [stamped(one, mine=number == last) for number, one in enumerate(told)]

    def stamped(told: Told, *, mine: bool) -> Told:
        data, id = dict(told.data), None
        if not data.get("agent_name", True):  # a call of no agent's
            del data["agent_name"]
        if mine:
            id = span.event_id(moment)
            if own in {TURN_START, TURN_COMPLETE} and span.agent_id is not None:
                data["agent_id"] = span.agent_id
            if own in {TURN_COMPLETE, TOOL_CALL_COMPLETE}:
                data["duration_ms"] = milliseconds(span.duration_s)
            if own == WORKFLOW_COMPLETE:
                data["duration"] = round(span.duration_s, 6)
        elif told.type == WORKFLOW_ERROR and span.failure is not None:
            id = span.error_id(span.failure, told.chat.chat_id)
        return replace(told, data=data, id=id, time=time)

    return stamp


def _named(event: SpanEvent) -> Stamp:
    """Return what gives the one event that is told its own id and time."""
    return lambda told: [replace(one, id=event.id, time=time_of(event.time_ns)) for one in told]


def _agent(place: Place) -> str:
    """Return the agent's name for the book, "" for none: it would take the latest turn's otherwise."""
    return place.agent or ""


def _key(context: Any) -> _Key:
    return (context.trace_id, context.span_id)


def _sdk() -> Any:
    require("opentelemetry.sdk.version", extra="otel", lowest="1.27", below="2")
    return importlib.import_module("opentelemetry.sdk.trace")


def _quiet() -> contextvars.Context:
    """Return a context in which the program's own trace is not seen, and instrumented libraries make no spans.

    What runs in it is our own traffic with the bus, which belongs to no agent.
    """
    context: Any = importlib.import_module("opentelemetry.context")
    made = contextvars.Context()
    if key := getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", None):
        made.run(lambda: context.attach(context.set_value(str(key), True)))
    return made


def _read(span: Any) -> Span:
    """Return what a span of the SDK says by now; nothing is iterated, for other threads may write to it."""
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

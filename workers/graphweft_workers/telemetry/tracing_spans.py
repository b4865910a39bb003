"""The spans of the roles. The names follow OpenTelemetry's semantic conventions of August 2026: messaging, database and
``gen_ai`` (https://github.com/open-telemetry/semantic-conventions/tree/v1.45.0/docs); those of ``graphweft.`` are ours.

A batch is one span, which links to the spans that sent its events. It is part of their trace only if they are all of
one. Spans hold ids, names, counts and reasons from bounded sets: nothing of what events, rows and answers say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from graphweft.tracing import AGENT, APP, CONVERSATION, EVENTS, OPERATION, STORE, reply_values
from graphweft_contracts.trace_context import TraceContext
from graphweft_workers.support.log_context import EventCarrier
from graphweft_workers.telemetry import tracing
from graphweft_workers.telemetry.tracing import OFF, Link, OpenSpan, SpanValue, Tracer

if TYPE_CHECKING:
    from graphweft_contracts import ContextReply, ContextRequest

_MOST_LINKS: Final = 128
"""Links of a span: the SDK's own limit."""
_PARTITION: Final = "messaging.destination.partition.id"
_COUNT: Final = "messaging.batch.message_count"
_REQUESTS: Final = "graphweft.context.requests"

_OPERATIONS: Final[Mapping[str, str]] = {"/chat/completions": "chat", "/embeddings": "embeddings"}
"""By the path of a request to a model."""


class Rows(Protocol):
    """A write of some rows."""

    @property
    def rows(self) -> Sequence[object]:
        """The rows."""
        ...


class NamedQuery(Protocol):
    """A query of a rule, for one request."""

    @property
    def rule(self) -> str:
        """The id of the rule."""
        ...

    @property
    def query(self) -> _WithId:
        """The query."""
        ...


class _WithId(Protocol):
    @property
    def id(self) -> str: ...


# Events


def received(
    partition: int, group: str, batches: Iterable[Sequence[EventCarrier]], *, began: float | None
) -> AbstractContextManager[OpenSpan]:
    """Return the span of a batch of a partition that was decoded and matched since ``began``, a Unix time.

    None: it waited until now, decoded. Without an event that has an effect there is no span.
    """
    tracer = tracing.tracer()
    if tracer is None:
        return OFF
    events = [each for batch in batches for each in batch]
    if not events:
        return OFF
    began_ns = None if began is None else int(began * 1e9)
    return _batch(tracer, "receive", events, partition=partition, group=group, began_ns=began_ns)


def processed(
    app_id: str, partition: int, group: str, events: Sequence[EventCarrier]
) -> AbstractContextManager[OpenSpan]:
    """Return the span of applying a batch of one app."""
    tracer = tracing.tracer()
    if tracer is None:
        return OFF
    return _batch(tracer, "process", events, partition=partition, group=group, values={APP: app_id})


def handled(partition: int, group: str, events: Sequence[EventCarrier]) -> AbstractContextManager[OpenSpan]:
    """Return the span of a job's work on a batch of a partition."""
    tracer = tracing.tracer()
    if tracer is None:
        return OFF
    return _batch(tracer, "process", events, partition=partition, group=group)


def _batch(
    tracer: Tracer,
    operation: Literal["receive", "process"],
    events: Sequence[EventCarrier],
    *,
    partition: int,
    group: str,
    values: Mapping[str, SpanValue] | None = None,
    began_ns: int | None = None,
) -> AbstractContextManager[OpenSpan]:
    links = list(_links(events))
    traces = {None if (name := each.plain.traceparent) is None else name[3:35] for each in events}
    return tracer.span(
        f"{operation} {EVENTS}",
        "CLIENT" if operation == "receive" else "CONSUMER",
        {
            "messaging.system": tracer.names.bus,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": EVENTS,
            "messaging.consumer.group.name": group,
            _PARTITION: str(partition),
            _COUNT: len(events),
            **(values or {}),
        },
        parent=links[-1].trace if links and len(traces) == 1 else None,
        links=links,
        began_ns=began_ns,
    )


def _links(events: Sequence[EventCarrier]) -> Iterator[Link]:
    """Yield the spans that sent the last events, each once, in order."""
    found: dict[str, Link] = {}
    for each in reversed(events):
        event = each.plain
        if event.traceparent is None or event.traceparent in found:
            continue
        if (trace := TraceContext.of(event.traceparent, event.tracestate)) is not None:
            found[event.traceparent] = Link(trace=trace, values={"messaging.message.id": event.id})
        if len(found) == _MOST_LINKS:
            break
    return reversed(found.values())


# The graph


def written(app_id: str, partition: int, writes: Sequence[Rows]) -> AbstractContextManager[OpenSpan]:
    """Return the span of writes to the graph of an app."""
    tracer = tracing.tracer()
    if tracer is None:
        return OFF
    rows = sum(len(write.rows) for write in writes)
    return _graph(tracer, app_id, "apply", "apply", {"db.operation.batch.size": rows, _PARTITION: str(partition)})


def queried(app_id: str, bound: NamedQuery, *, cached: bool = False) -> AbstractContextManager[OpenSpan]:
    """Return the span of one query of a context request."""
    tracer = tracing.tracer()
    if tracer is None:
        return OFF
    return _graph(tracer, app_id, "read", f"read {bound.rule}/{bound.query.id}", {"graphweft.cached": cached})


def _graph(
    tracer: Tracer, app_id: str, operation: str, summary: str, values: Mapping[str, SpanValue]
) -> AbstractContextManager[OpenSpan]:
    names = tracer.names
    return tracer.span(
        summary,
        "CLIENT",
        {
            "db.system.name": names.graph,
            "db.namespace": names.graph_of(app_id),
            "db.operation.name": operation,
            "db.query.summary": summary,
            **values,
        },
    )


# Context


def answered(request: ContextRequest) -> AbstractContextManager[OpenSpan]:
    """Return the span of a responder's work on a request."""
    tracer = tracing.tracer()
    if tracer is None:
        return OFF
    values: dict[str, SpanValue] = {
        "messaging.system": tracer.names.bus,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": _REQUESTS,
        "messaging.message.id": request.id,
        APP: request.app_id,
    }
    if request.search is None:
        values |= {CONVERSATION: request.chat_id, AGENT: request.agent, "graphweft.workflow": request.workflow}
    elif request.search.memory is not None:
        values |= {OPERATION: "search_memory", STORE: request.app_id}
    trace = TraceContext.of(request.traceparent, request.tracestate)
    links = () if trace is None else (Link(trace=trace),)
    return tracer.span(f"process {_REQUESTS}", "CONSUMER", values, parent=trace, links=links)


def replied(span: OpenSpan, reply: ContextReply) -> None:
    """Say what a request gets."""
    if tracing.tracer() is None:
        return
    span.set(reply_values(reply))


# Models


def asked_model(path: str, body: Mapping[str, Any], url: str) -> AbstractContextManager[OpenSpan]:
    """Return the span of a request to a model: to a path below a URL, with the protocol of OpenAI."""
    tracer = tracing.tracer()
    if tracer is None:
        return OFF
    operation, model, place = _OPERATIONS.get(path, "other"), str(body.get("model", "")), urlsplit(url)
    values: dict[str, SpanValue] = {
        OPERATION: operation,
        "gen_ai.provider.name": "openai",  # by its protocol; who speaks it is not known
        "gen_ai.request.model": model,
        "server.address": place.hostname or "",
    }
    if place.port is not None:
        values["server.port"] = place.port
    if isinstance(texts := body.get("input"), list):
        values["graphweft.texts"] = len(cast("list[object]", texts))
    return tracer.span(f"{operation} {model}", "CLIENT", values)


def model_used(span: OpenSpan, path: str, answer: bytes) -> None:
    """Say how many tokens a chat took, if its answer does."""
    if tracing.tracer() is None or _OPERATIONS.get(path) != "chat":
        return
    try:
        usage = _Usage.model_validate_json(answer).usage
    except ValidationError:  # who reads the answer reports it
        return
    values = {"gen_ai.usage.input_tokens": usage.prompt_tokens, "gen_ai.usage.output_tokens": usage.completion_tokens}
    span.set({name: count for name, count in values.items() if count is not None})


class _Tokens(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Usage(BaseModel):
    usage: _Tokens = _Tokens()


# HTTP


def served(method: str, route: str, trace: TraceContext | None) -> AbstractContextManager[OpenSpan]:
    """Return the span of an HTTP request to a route."""
    tracer = tracing.tracer()
    if tracer is None:
        return OFF
    values: dict[str, SpanValue] = {"http.request.method": method, "http.route": route, "url.path": route}
    return tracer.span(f"{method} {route}", "SERVER", values, parent=trace)

"""The port of traces: what the roles say of their work. While tracing is off, each span costs one look-up.

There is one tracer of a process, like its loggers; ``processes.traced`` sets it. The spans themselves are in
``tracing_spans``, and OpenTelemetry's SDK is in ``tracing_sdk`` alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from graphweft_contracts.trace_context import TraceContext

type SpanKind = Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
type SpanValue = str | int | float | bool


class OpenSpan(Protocol):
    """A span, while it is open."""

    def set(self, values: Mapping[str, SpanValue]) -> None:
        """Add attributes."""
        ...

    def fail(self, kind: str) -> None:
        """Mark the span as failed. ``kind`` is a name from a bounded set, and never the text of an error."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A span that caused another one, in a trace of its own perhaps."""

    trace: TraceContext
    values: Mapping[str, SpanValue] = field(default_factory=dict[str, SpanValue])


class Tracer(Protocol):
    """Makes spans. ``names`` are those of the servers, for attributes."""

    @property
    def names(self) -> ServerNames:
        """The names of the servers."""
        ...

    def span(
        self,
        name: str,
        kind: SpanKind,
        values: Mapping[str, SpanValue],
        *,
        parent: TraceContext | None = None,
        links: Sequence[Link] = (),
        began_ns: int | None = None,
    ) -> AbstractContextManager[OpenSpan]:
        """Return a span that lasts as long as its block, and is the current one there, also for the log.

        ``parent`` is a span of another process; by default it is the current one. ``began_ns`` is a Unix time at which
        the span began before its block. An error that leaves the block marks the span as failed, by its type.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNames:
    """What the servers are called in spans."""

    bus: str
    """The product that carries events."""
    graph: str
    """The product that holds graphs."""
    graph_template: str
    """The name of an app's graph, with ``{app_id}``."""

    def graph_of(self, app_id: str) -> str:
        """Return the name of an app's graph."""
        return self.graph_template.replace("{app_id}", app_id)


class _NoSpan:
    def set(self, values: Mapping[str, SpanValue]) -> None:
        """Do nothing: there is no span."""

    def fail(self, kind: str) -> None:
        """Do nothing: there is no span."""


OFF: Final[AbstractContextManager[OpenSpan]] = contextlib.nullcontext(_NoSpan())
"""The span of a process that makes none."""


class _Process:
    tracer: Tracer | None = None


def tracer() -> Tracer | None:
    """Return the tracer of this process; None while tracing is off."""
    return _Process.tracer


@contextlib.contextmanager
def using(tracer: Tracer) -> Generator[None]:
    """Make spans by a tracer until the block ends. A second role of the process makes its spans by the first one."""
    before = _Process.tracer
    _Process.tracer = before or tracer
    try:
        yield
    finally:
        _Process.tracer = before

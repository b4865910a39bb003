"""What the engine needs of a graph: write once, in order; read without writing; list everything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from graphweft_contracts import QueryFailed

__all__ = ("INTERNAL_PREFIX", "START", "Applied", "Edge", "GraphStore", "Mark", "Node", "Table", "Write")

INTERNAL_PREFIX: Final = "__"
"""Labels that start so are ours: not in digests, refused in rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far one partition's events have taken effect in one graph.

    All writes of events before ``offset`` are in the graph, and of the event at ``offset`` the first ``done``, or all
    of them when ``done`` is 0. The event under way is named by itself: told as "the next that has any", other rules
    after a crash would take another event for it. An empty offset stands before the first event.
    """

    offset: str = ""
    done: int = 0


START: Final = Mark()


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One query with effect, to run exactly when the graph stands at ``before``; the graph then stands at ``after``.

    ``statement`` binds every value through ``params``; ``returns`` says whether it ends in RETURN.
    """

    statement: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    returns: bool = False
    before: Mark
    after: Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """How far a sequence of writes got: ``count`` took effect; ``failure`` is why the next one did not, if one.

    Fewer than all without a failure: the rest was not tried, and is to be given again.
    """

    count: int
    failure: QueryFailed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of a reading query. Values are JSON-like, temporal values are Python's."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as it is listed; ``id`` is the server's and means nothing outside one listing."""

    id: int
    labels: tuple[str, ...]
    properties: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A relationship as it is listed."""

    start: int
    end: int
    type: str
    properties: Mapping[str, Any]


class GraphStore(Protocol):
    """One graph per app on one server.

    Order and effect: ``apply`` runs writes one after the other; each takes effect together with the move of the mark,
    or not at all, and only while the mark stands at its ``before``. So a second worker, a repeated call and a call
    that resumes after a crash change nothing that is done. Every method raises ``GraphUnavailable`` when the server is
    away; what was sent then may or may not have taken effect, and the mark tells. The creator closes with ``aclose``.
    """

    async def check(self) -> None:
        """Raise ``GraphUnavailable`` unless the server answers and can do what we need."""
        ...

    async def prepare(self, app_id: str, keys: Iterable[tuple[str, str]]) -> None:
        """Make sure that the app's graph has an index on every (label, property) of ``keys``. Safe to repeat.

        Raises ``QueryFailed``, as ``mark`` does, when what stands in the place of the app's graph is none.
        """
        ...

    async def mark(self, app_id: str, partition: int) -> Mark:
        """Return the mark of ``partition`` in the app's graph, which is made when it does not exist."""
        ...

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> Applied:
        """Run the writes in order; stop at the first that the server refuses for good.

        Raises ``Displaced`` when the graph does not stand where the first write expects it.
        """
        ...

    async def skip(self, app_id: str, partition: int, write: Write) -> None:
        """Move the mark over ``write`` without its effect. Raises ``Displaced`` like ``apply``."""
        ...

    async def durable(self) -> None:
        """Return when every write that was acknowledged before this call is on disk."""
        ...

    async def read(self, app_id: str, statement: str, params: Mapping[str, Any], *, timeout_s: float) -> Table:
        """Run a query that the server itself keeps from writing. Raises ``QueryFailed``. No graph: no rows."""
        ...

    def nodes(self, app_id: str) -> AsyncIterator[Node]:
        """List all nodes, ours included."""
        ...

    def edges(self, app_id: str) -> AsyncIterator[Edge]:
        """List all relationships."""
        ...

    async def aclose(self) -> None:
        """Give connections back; a second call does nothing."""
        ...

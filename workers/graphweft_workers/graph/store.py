"""What the engine needs of a graph: write once, in order; read without writing; list everything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from graphweft_contracts import QueryFailed

if TYPE_CHECKING:  # a command that reads a count need not wait for the rules to load
    from graphweft_rules.batching import BatchForm, Dialect
    from graphweft_rules.cypher import Cypher
    from graphweft_rules.indexes import SearchIndex

INTERNAL_PREFIX: Final = "__"
"""Labels that start so are ours: not in digests, refused in rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far one partition's events have taken effect in one graph.

    All rows of the events up to ``offset`` are in the graph, and of the plan under way the first ``done`` rows. A plan
    is an order of the rows of a range of events behind ``offset``; ``plan`` is its short name, empty when none is under
    way. An empty offset stands before the first event.
    """

    offset: str = ""
    plan: str = ""
    done: int = 0


START: Final = Mark()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A partition's mark in a graph and the note that stands beside it."""

    mark: Mark = START
    note: str = ""
    """What the engine needs to go on with the plan under way; text that only the engine reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Rows of one mutation, to take effect exactly when the graph stands at ``before``; then it stands at ``after``.

    Either all rows take effect, as if each were a query of its own in their order, or none. There is more than one row
    only where the form lets rows share a query. Without ``query`` only the mark moves.
    """

    query: Cypher | None = None
    form: BatchForm | None = None
    """How rows share a query, where the set of rules allows more than ``query`` by itself; see ``form_for``."""
    rows: Sequence[Mapping[str, Any]] = ()
    """For each row the values of all parameters of ``query.statement``."""
    before: Mark
    after: Mark
    note: str | None = None
    """The note to stand beside the mark from now on; None leaves the one that is there."""

    def form_for(self, dialect: Dialect) -> BatchForm | None:
        """Return how rows share a query on a kind of server; None when only the mark moves."""
        return self.form or (self.query.form(dialect) if self.query else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """How far a sequence of writes got: ``count`` took effect; ``failure`` is why the next one did not, if one.

    Fewer than all without a failure: the rest was not tried, and is to be given again.
    """

    count: int
    failure: QueryFailed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a server does not take a query, before any event: see ``GraphStore.check_query``."""

    reason: str
    """The server's words, on one line."""
    place: tuple[int, int] | None = None
    """Line and column of ``query.statement``, from 1; None when the server's place says nothing about it."""
    fails: bool = True
    """Whether the query will fail each time. False: a plugin may be missing here, or the server's words are not known
    to us, or many rows take longer than they would together."""


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

    dialect: Dialect
    """What rows may share a query here: which of a mutation's forms the store runs."""
    settle_s: float
    """Seconds after a mark is first seen by which readers see all its effects too; 0: they show together."""

    async def check(self) -> str:
        """Return the name of the server's present run, for ``durable``.

        Raises ``GraphUnavailable`` unless the server answers and can do what we need.
        """
        ...

    async def check_query(self, query: Cypher, form: BatchForm | None = None) -> Refusal | None:
        """Ask the server whether it takes a query, without running it or touching any app's graph.

        With ``form`` the query is one that ``apply`` runs, in all texts that it may send; without, one for ``read``.
        The server sees no values, so what depends on them is not looked at. None: nothing is wrong as far as it says.

        Raises ``GraphUnavailable``, and ``QueryFailed`` when the server does not let queries be checked.
        """
        ...

    async def prepare(self, app_id: str, keys: Iterable[tuple[str, str]], indexes: Iterable[SearchIndex] = ()) -> None:
        """Make sure that the app's graph has an index on every (label, property) of ``keys``, and those for search.

        Safe to repeat. An index for search that is there already stays as it is.

        Raises ``QueryFailed``, as ``progress`` does, when what stands in the place of the app's graph is none.
        """
        ...

    async def progress(self, app_id: str, partition: int) -> Progress:
        """Return how far ``partition`` is in the app's graph, which is made when it does not exist."""
        ...

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> Applied:
        """Run the writes in order; stop at the first that the server refuses for good.

        Each write's ``before`` is the ``after`` of the one in front of it. Raises ``Displaced`` when the graph does
        not stand where the first write expects it.
        """
        ...

    async def durable(self, run: str) -> None:
        """Return when every write that was acknowledged since ``check`` named ``run`` is on disk.

        Raises ``GraphUnavailable`` when the server was started again since then: it may have lost some of them.
        """
        ...

    async def read(
        self, app_id: str, statement: str, params: Mapping[str, Any], *, timeout_s: float, enough: int | None = None
    ) -> Table:
        """Run a query that the server itself keeps from writing. No graph: no rows.

        Raises ``QueryFailed``: with the code ``timeout`` after ``timeout_s``, and also when there are more than 10,000
        rows, or 200,000 values with those in lists and maps; to whom the first ``enough`` rows are enough gets these
        then, if they are not too much themselves. Who is cancelled or gives up leaves the query to the server; how many
        of an app a server is given at once is the store's to see to.
        """
        ...

    async def marks(self, app_id: str, *, timeout_s: float) -> Mapping[int, Mark]:
        """Return the marks of all partitions in the app's graph, by one small query that changes nothing.

        Equal marks mean an equal graph, as far as it is written by ``apply`` alone. No graph: empty, and it is not
        made. Raises ``GraphUnavailable`` also when it takes longer than ``timeout_s``, and when a mark was overwritten;
        ``QueryFailed`` as ``progress`` does.
        """
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

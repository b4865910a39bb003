"""The ports of the graph store: exactly-once writes in order, read-only queries, and graphs as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from graphweft_contracts import Fenced, GraphUnavailable, QueryFailed

if TYPE_CHECKING:  # a command that reads a count need not wait for the rules to load
    from graphweft_rules.cypher.batch_query import BatchQuery
    from graphweft_rules.cypher.indexes import SearchIndex
    from graphweft_rules.cypher.query import Cypher
    from graphweft_workers.ports.dialect import GraphDialect
    from graphweft_workers.ports.event_log import CommittedPosition

INTERNAL_PREFIX: Final = "__"
"""The prefix of graphweft's own labels. Digests leave them out, and rules may not use them."""

NOT_DUMPED: Final = frozenset({"__Progress", "__App", "__Basis", "__Position"})
"""The labels of nodes about a graph itself: checkpoints, the owner of a database, how it was made, and positions."""


class PlaceTaken(QueryFailed):
    """The place where the app's graph would be holds that of another app: this app has none, and cannot get one."""


class OtherGraph(PlaceTaken):
    """The place is the app's own, and somebody has put a graph of another app there. Nothing is read or written."""

    owner: str = ""
    """The other app: for operators only, since texts for an app never name another one."""

    @classmethod
    def at(cls, place: str, app_id: str, owner: str) -> OtherGraph:
        """Return the error for a place, in words."""
        error = cls(
            f"{place} holds the graph of another app, under the name of app {app_id!r}: somebody has restored, copied "
            f"or renamed it. Put the graph of {app_id!r} back, or remove this one from the graph server: then the "
            f"workers make that of {app_id!r} again from the log (the operator finds which app it is in the log and "
            "with `graphweft doctor`)"
        )
        error.owner = owner
        return error


class MarksLost(GraphUnavailable):
    """The app's graph is there, and nodes of graphweft's own are gone from it. The next event makes them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How far one partition's events have taken effect in one graph.

    All rows of the events up to ``offset`` are in the graph, and the first ``done`` rows of the current plan. A plan
    orders the rows of a range of events after ``offset``. ``plan`` is its short name, empty without a current plan. An
    empty offset comes before the first event.
    """

    offset: str = ""
    plan: str = ""
    done: int = 0


START: Final = Checkpoint()
PARTIAL: Final = Checkpoint(plan="loading")
"""Of a graph that holds a part only, because it is being loaded or deleted: nobody continues it."""


def is_new(checkpoints: Mapping[int, Checkpoint]) -> bool:
    """Tell whether no event has taken effect in a graph yet, by all of its checkpoints."""
    return all(each == START for each in checkpoints.values())


def overwritten(app_id: str, partition: object) -> GraphUnavailable:
    """Return the error for a checkpoint that a rule has overwritten."""
    return GraphUnavailable(f"the checkpoint of partition {partition} in the graph of {app_id!r} was overwritten")


def moved_by_another(app_id: str, partition: int) -> Fenced:
    """Return the error for a checkpoint that is not where this worker has left it."""
    return Fenced(
        f"partition {partition} of app {app_id!r} was moved by another worker, or its graph was replaced",
        retry_after_s=0.05,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A partition's checkpoint in a graph, and the note that is stored with it."""

    checkpoint: Checkpoint = START
    note: str = ""
    """Text that the engine needs to continue the current plan. Only the engine reads it."""


type WriteLimit = Literal["short", "long", "full"]
"""``short`` is less than a context request waits, ``long`` a few seconds, ``full`` what the store has as its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Rows of one mutation that take effect only if the checkpoint equals ``before``, and move it to ``after``.

    All rows take effect, as if each were a query of its own in their order, or none does. There are several rows only
    where the batch query lets rows share a query. Without ``query`` only the checkpoint moves.
    """

    query: Cypher | None = None
    batch_query: BatchQuery | None = None
    """How rows share a query, where the rule set allows more than the query alone; see ``batch_query_for``."""
    rows: Sequence[Mapping[str, Any]] = ()
    """For each row, the values of all parameters of ``query.statement``."""
    before: Checkpoint
    after: Checkpoint
    note: str | None = None
    """The note to store with the checkpoint; None keeps the present one."""
    limit: WriteLimit = "full"
    """How long it may take where nobody else can use the server meanwhile; elsewhere each has the full time."""

    def batch_query_for(self, dialect: GraphDialect) -> BatchQuery | None:
        """Return how rows share a query on a kind of server; None if only the checkpoint moves."""
        return self.batch_query or (self.query.batch_query(dialect) if self.query else None)

    def numbered_rows(self, columns: Sequence[str]) -> list[list[Any]]:
        """Return each row as its number and the values of columns. Raises ``QueryFailed`` if a row lacks one."""
        try:
            if len(self.rows) == 1:
                return [[0, *map(self.rows[0].__getitem__, columns)]]
            values = [list(map(itemgetter(name), self.rows)) for name in columns]
        except KeyError as error:
            raise QueryFailed(f"the query has no value for its parameter {error.args[0]!r}") from error
        return list(map(list, zip(range(len(self.rows)), *values, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """The result of a sequence of writes: ``count`` took effect; ``failure`` says why the next one did not, if any.

    If ``count`` is less than all and there is no failure, the rest was not tried: give it again.
    """

    count: int
    failure: QueryFailed | None = None
    held_s: Sequence[float] = field(default=(), compare=False)
    """By write, with the one that failed: for how long the server may have done nothing else. Empty if it can.

    What a write waited for those of other apps does not count.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionMove:
    """What the server is to say of a partition from now on, beside the graphs: up to where they are complete.

    It takes effect only if the server says ``before`` until then.
    """

    partition: int
    before: CommittedPosition | None
    """None: the server says nothing of the partition."""
    after: CommittedPosition
    """The graphs of all apps hold the events up to here. The note is kept with it."""
    reached: Mapping[str, str] = field(default_factory=dict[str, str])
    """By app: an offset that the checkpoint of its graph has reached; apps that are not named keep theirs."""

    def refused(self) -> GraphUnavailable:
        """Return the error for a server that does not say ``before``."""
        return GraphUnavailable(
            f"the graph server does not say of partition {self.partition} what it said before: it was emptied, "
            "restored or replaced. The worker reads the events again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a server refuses a query; see ``GraphStore.check_query``."""

    reason: str
    """The server's words, on one line."""
    place: tuple[int, int] | None = None
    """Line and column in ``query.statement``, from 1; None if the server names no place in it."""
    fails: bool = True
    """Whether the query fails each time. False: a plugin may be missing, the server's message is unknown, or only the
    query for many rows is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of a read-only query. Values are JSON-like; dates and times are Python's."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def dicts(self) -> list[dict[str, Any]]:
        """Return each row as its values by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A listed node. ``id`` is the server's and is valid within one listing only."""

    id: int
    labels: tuple[str, ...]
    properties: Mapping[str, Any]

    @property
    def is_internal(self) -> bool:
        """Whether it is graphweft's own."""
        return any(label.startswith(INTERNAL_PREFIX) for label in self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A listed relationship."""

    start: int
    end: int
    type: str
    properties: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaItem:
    """An index or a constraint. Fulltext and vector indexes are one for each property."""

    kind: str
    """Such as ``fulltext index``, ``unique constraint``."""
    label: str
    """The label, or ``relationship`` and the type."""
    properties: tuple[str, ...]

    @property
    def is_constraint(self) -> bool:
        """Whether it limits what can be written."""
        return self.kind.endswith("constraint")

    def __str__(self) -> str:
        """Return it in words: ``fulltext index on Doc.text``."""
        return f"{self.kind} on {self.label}.{', '.join(self.properties)}"


class WholeGraphs(Protocol):
    """Graphs as a whole: where they are, and all that is in them."""

    can_exchange: bool
    """Whether ``exchange`` can be used."""
    rewrites: bool
    """Whether queries are written anew for these graphs, so that ``obstacle`` may find a reason."""

    async def graph_id(self, app_id: str) -> str:
        """Return the id of the app's graph, empty without a graph. Two stores have equal ids only for the same graph.

        Raises ``GraphUnavailable``, and ``QueryFailed`` like ``progress``.
        """
        ...

    async def place(self, app_id: str) -> str:
        """Return a name of the place of the app's graph, with or without a graph. Equal names mean the same place.

        The same place may have two names, by two URLs of one server; ``graph_id`` tells these apart once there is a
        graph. Raises ``GraphUnavailable``.
        """
        ...

    async def drop(self, app_id: str) -> None:
        """Delete the app's graph with everything in it; without one, do nothing. Raises ``GraphUnavailable``.

        ``GraphStore.reached`` names the app no more.
        """
        ...

    async def exchange(self, app_id: str, other: str, expected: Mapping[int, Checkpoint]) -> bool:
        """Exchange the places of the app's graph and of the graph with the ``graph_id`` ``other``, in one step.

        Readers find either graph, never none. Nothing happens, and it returns False, unless ``expected`` are the
        checkpoints of the app's graph: as they are then, for the caller may change them while this waits. Only stores
        that say ``can_exchange`` do it, for graphs of one server.
        """
        ...

    async def schema(self, app_id: str) -> frozenset[SchemaItem]:
        """Return the indexes and constraints of the app's graph, without those of graphweft's own nodes.

        Equal ones are equal values on all servers. A second graph has those of the live graph if it has them as soon as
        it takes its place. Raises ``GraphUnavailable``.
        """
        ...

    async def node_counts(self, app_id: str) -> Mapping[str, int]:
        """Return how many nodes the app's graph has, by label; without graphweft's own, and without labels of none.

        Servers know the counts without reading the nodes. Raises ``GraphUnavailable``.
        """
        ...

    async def obstacle(self, query: Cypher) -> str:
        """Return why a mutation that runs in a live graph cannot run in these graphs; empty if it can.

        Raises ``GraphUnavailable``.
        """
        ...

    def nodes(self, app_id: str) -> AsyncIterator[Node]:
        """List all nodes, graphweft's own included."""
        ...

    def edges(self, app_id: str) -> AsyncIterator[Edge]:
        """List all relationships."""
        ...

    def dump(self, app_id: str) -> AsyncIterator[bytes]:
        """Yield all nodes and relationships but those about the graph itself, each as a line in the store's own form.

        The lines keep every value, also where listings show a similar one. Nobody may write meanwhile. Raises
        ``QueryFailed`` for a value that cannot be kept.
        """
        ...

    async def load(self, app_id: str, lines: Iterable[bytes], *, partition: int, mark: Checkpoint) -> None:
        """Write what a store for servers of the same kind dumped. Nodes about the graph itself may be there.

        Each query writes only while the checkpoint of ``partition`` is ``mark``; otherwise ``Fenced`` is raised, so two
        loads with different marks never write to one graph. It makes no indexes. If it is interrupted, a part is
        written.
        """
        ...


class GraphWrites(Protocol):
    """Writes that take effect exactly once.

    ``apply`` runs writes one after the other. Each takes effect together with the move of the checkpoint, or not at
    all, and only while the checkpoint equals its ``before``. So a second worker, a repeated call and a call after a
    crash apply nothing twice.
    """

    runs_again: bool
    """Whether a refused write makes the server run those before it in the same call a second time."""

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        """Run the writes in order; stop at the first one that the server refuses for good.

        Each write's ``before`` is the ``after`` of the previous one. Raises ``Fenced`` if the checkpoint does not equal
        the first ``before``. A write that the server refuses in any case may be returned as such before that is known;
        a write that takes effect must follow before anything else does.
        """
        ...


class PartitionGraph(GraphWrites, Protocol):
    """What the events of partitions are applied to: writes, checkpoints and indexes."""

    dialect: GraphDialect
    """The Cypher of the server."""

    async def prepare(self, app_id: str, keys: Iterable[tuple[str, str]], indexes: Iterable[SearchIndex] = ()) -> None:
        """Create the missing indexes: one for every (label, property) of ``keys``, and the search indexes.

        Safe to repeat; an existing search index is not changed. Raises ``QueryFailed`` if the name of the app's graph
        is taken by something that is not a graph, and ``OtherGraph`` if the graph says that it is another app's.
        """
        ...

    async def progress(self, app_id: str, partition: int) -> Progress:
        """Return the progress of ``partition`` in the app's graph; create the graph if needed.

        From then on the graph says that it is the app's, wherever it goes. Raises like ``prepare``.
        """
        ...

    async def checkpoints(self, app_id: str, *, timeout_s: float) -> Mapping[int, Checkpoint]:
        """Return the checkpoints of all partitions in the app's graph by one small read-only query.

        Equal checkpoints mean an equal graph if only ``apply`` writes to it. Without a graph the result is empty.
        Raises ``GraphUnavailable`` also after ``timeout_s`` and for an overwritten checkpoint, ``MarksLost`` if the
        graph has to say whose it is and does not, ``QueryFailed`` like ``progress``, and ``OtherGraph`` if the graph
        says that it is another app's.
        """
        ...


class GraphStore(PartitionGraph, Protocol):
    """One graph per app on one server.

    Every method raises ``GraphUnavailable`` when the server is unavailable; a write that was sent then may or may not
    have taken effect, and the checkpoint says which. The creator closes the store.

    Code that changes what a method does implements the narrowest port that its caller takes, and forwards no others.
    """

    whole: WholeGraphs
    """The graphs as a whole, of all apps of this store."""
    settle_s: float
    """Seconds after which readers that see a checkpoint see all its effects; 0: they see both at once."""
    without_turn: Counter[str]
    """By app, how many reads of this store ended because slow reads had to wait for writes, or for each other."""

    async def check(self) -> str:
        """Return the id of the server's current run, for ``durable``.

        Raises ``GraphUnavailable`` if the server does not answer or lacks a feature that graphweft needs.
        """
        ...

    async def check_query(self, query: Cypher, batch_query: BatchQuery | None = None) -> Refusal | None:
        """Ask the server whether it accepts a query; run nothing and touch no app's graph. Return None if it does.

        With ``batch_query`` all texts are checked that ``apply`` may send; without it, the text that ``read`` sends.
        The server gets no values, so faults that depend on values are not found.

        Raises ``GraphUnavailable``, and ``QueryFailed`` if the server does not allow queries to be checked.
        """
        ...

    async def durable(self, run: str, move: PositionMove | None = None) -> None:
        """Return when all writes that were acknowledged since ``check`` returned ``run`` are on disk, and the move too.

        A copy of the server's data that holds the move holds these writes. Raises ``GraphUnavailable`` if the server
        has restarted since, so that it may have lost some of them, or if it does not say ``move.before``: then its
        data is not what it was.
        """
        ...

    async def positions(self) -> Mapping[int, CommittedPosition] | None:
        """Return what the last ``PositionMove`` of each partition said; None if this store keeps no positions.

        Data that is older says something older. Raises ``GraphUnavailable``.
        """
        ...

    async def reached(self, partition: int) -> Mapping[str, str]:
        """Return, by app, the offset that the checkpoint of the app's graph has reached: see ``PositionMove``.

        A checkpoint before it is one of an older graph, or of a new one in the place of a lost one. Raises
        ``GraphUnavailable``.
        """
        ...

    async def read(
        self,
        app_id: str,
        statement: str,
        params: Mapping[str, Any],
        *,
        timeout_s: float,
        enough: int | None = None,
        elements: bool = False,
        to_end: bool = False,
    ) -> Table:
        """Run a query that the server prevents from writing. Without a graph there are neither columns nor rows.

        Nodes and relationships are maps of their properties. With ``elements``, a node is a map of id, labels and
        properties; a relationship one of id, type, start, end and properties, where start and end are ids of nodes; a
        path one of nodes and relationships. Ids are the server's.

        Raises ``QueryFailed`` with the code ``timeout`` after ``timeout_s``, and for more than 10,000 rows or 200,000
        values, counting those in lists and maps. With ``enough`` it returns the first ``enough`` rows instead, if
        these are within the limits. Raises ``OtherGraph`` at the latest a second after another app's graph has come to
        this place. Cancelling does not stop the query on the server. The store limits concurrent queries of
        one app.

        With ``to_end`` it may return after ``timeout_s``, when the server does: for a task that nobody has to wait for,
        and that is not cancelled before the store is closed.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections; a second call does nothing."""
        ...

"""The differences between the Cypher of graph servers. A driver supplies a ``GraphDialect``.

The fragments of searches name the node ``n`` and only read. Search terms consist of letters and digits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from graphweft_rules.cypher.batch_query import BatchQuery
from graphweft_rules.cypher.clauses import Outline
from graphweft_rules.cypher.indexes import IndexKind, SearchIndex
from graphweft_rules.cypher.problems import QueryProblem, Role

Similarity = Literal["cosine", "euclidean"]
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_SHORTEST: Final = 3
"""The shortest prefix that is searched for: shorter ones match too much."""

type Fragment = tuple[str, dict[str, object]]
"""Cypher, and values of its parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSide:
    """The fulltext index of a target."""

    index: str
    """The server's name of the index; a server without names of indexes uses the label."""
    properties: tuple[str, ...]
    """The indexed text properties."""
    terms: str | None = None
    """The property with the terms (``graphweft_workers.text.terms``), with blanks; None: they come from the text."""
    length: str | None = None
    """The property with the number of terms."""
    scopes: str | None = None
    """The property with a term for each scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSide:
    """The vectors of a target."""

    property: str
    index: str | None = None
    """The server's name of the vector index, where indexes have names. None: there is no index."""
    model: str | None = None
    """The property that names the model; None: one model made all vectors."""
    size: str | None = None
    """The property with the length of a node's vector, which nodes may lack: servers compare only equal lengths."""
    dimensions: int | None = None
    similarity: Similarity = "cosine"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTarget:
    """Nodes that can be searched. They are fetched by the property ``key``, or without one by the server's id."""

    labels: tuple[str, ...]
    """A node has one of them. There are several only where a fulltext index covers several labels."""
    kind: str | None = None
    """The value of the column ``kind``; None: there is no such column."""
    key: str | None = None
    time: str | None = None
    """The property that orders nodes, latest first; text or number."""
    shown: tuple[str, ...] = ()
    """Columns after text, score and kind: properties, or names in ``expressions``."""
    expressions: Mapping[str, str] = _NONE
    """Expressions for columns that are not properties of ``node``; they may use the variables of ``joined``."""
    joined: str = ""
    """Cypher that continues from ``node`` and ``__gw_hit`` and keeps one row for each."""
    says: str = "text"
    """The property that is shown as text."""
    known_by: str | None = None
    """A property that all of these nodes have. Nodes without it are a user's own, and not searched."""
    scope: Mapping[str, str] = _NONE
    """Properties that the nodes must have, with their values."""
    origin: str = ""
    """The pattern from a node ``{node}`` to its origin, a node with the properties ``{scope}``."""
    origin_scope: Mapping[str, str] = _NONE
    """Properties that one origin must have, with their values."""
    valid_at: str | None = None
    """Search only nodes that are valid at this time (UTC, ``utc_text``); None: all nodes."""
    valid_since: str | None = None
    """Search nodes that were valid at any time from this one up to ``valid_at``; None: at ``valid_at`` only."""
    validity: tuple[str, str] = ("valid_at", "invalid_at")
    """The properties with the start and the end of validity; null means no limit."""
    filters: tuple[tuple[str, Any], ...] = ()
    """Further conditions on a node ``{node}``, each with the parameter ``{value}``, and its value."""
    turn: tuple[str, ...] = ()
    """Expressions of the conversation, the role and the author of ``n``, if nodes are turns of conversations."""
    text: TextSide | None = None
    vector: VectorSide | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The properties that may be shown as text; the first that a node has is used."""
        others = self.text.properties if self.text and not self.text.terms else ()
        return tuple(dict.fromkeys((self.says, *others)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedIndex:
    """A fulltext or vector index on nodes, as a server lists it."""

    kind: IndexKind
    name: str
    """The server's name, or the driver's where indexes have no names."""
    labels: tuple[str, ...]
    properties: tuple[str, ...]
    dimensions: int | None = None
    similarity: Similarity = "cosine"
    is_built: bool = True
    """Whether it is complete. A search in one that is being built may find nothing."""


def of_another_length(
    listed: Iterable[ListedIndex], wanted: Iterable[SearchIndex]
) -> list[tuple[ListedIndex, SearchIndex]]:
    """Return the listed vector indexes whose vectors have another length than the wanted one, each with that one."""
    of_property = {(index.label, index.properties[0]): index for index in wanted if index.kind == "vector"}
    vectors = (each for each in listed if each.kind == "vector")
    return [
        (each, index)
        for each in vectors
        if (index := of_property.get((each.labels[0], each.properties[0]))) and index.dimensions != each.dimensions
    ]


class GraphDialect(ABC):
    """The Cypher of one kind of graph server. A value without state."""

    name: str
    """A short name in lower case, as settings and ``lint --explain`` write it."""
    title: str
    """The product's name as its makers write it, for messages."""
    list_indexes: str
    """The query that lists the fulltext and vector indexes on nodes; ``read_indexes`` reads its rows."""
    one_parameter: bool
    """Whether many parameters should be sent as the entries of one map."""
    one_row: bool
    """Whether many short rows should be asked for as one list of lists."""
    no_node: int | str
    """A value of the type of ``node_id`` that no node has."""

    @abstractmethod
    def batch_query(self, query: Outline, params: Iterable[str], *, shared: frozenset[str] | None = None) -> BatchQuery:
        """Return how rows of a mutation share a query: see ``graphweft_rules.cypher.batch_query.Dialect``."""

    def problems(self, query: Outline, role: Role) -> Iterable[QueryProblem]:
        """Return the problems that a rule's query has on this kind of server: see ``Dialect``."""
        return ()

    @abstractmethod
    def read_indexes(self, rows: Iterable[Sequence[Any]]) -> list[ListedIndex]:
        """Return the indexes in the rows of ``list_indexes``."""

    @abstractmethod
    def node_id(self, variable: str) -> str:
        """Return the expression for the server's own id of a node or relationship."""

    @abstractmethod
    def is_node_id(self, value: object) -> bool:
        """Return whether a value has the type of ``node_id``."""

    @abstractmethod
    def short_text(self, value: str, limit: int) -> str:
        """Return the expression for the first ``limit`` characters of a value if it is text or a whole number."""

    @abstractmethod
    def first_text(self, values: Sequence[str]) -> str:
        """Return the expression for the first value that is text or a whole number, as a whole, or an empty text."""

    @abstractmethod
    def cut_text(self, text: str, limit: int) -> str:
        """Return the expression for the first ``limit`` characters of a variable that is text."""

    @abstractmethod
    def subquery(self, parts: Sequence[str], imported: Sequence[str]) -> str:
        """Return a subquery: the union of the parts, which may use the imported variables."""

    @abstractmethod
    def quoted(self, name: str) -> str:
        """Return a label or property, quoted."""

    @abstractmethod
    def within(self, target: SearchTarget) -> Fragment:
        """Return Cypher that binds at least the nodes of a scope; the caller adds the conditions."""

    @abstractmethod
    def holding(self, text: TextSide, target: SearchTarget) -> str:
        """Return Cypher that binds the nodes that the fulltext index finds by ``$__gw_question``."""

    @abstractmethod
    def question(self, text: TextSide, scope: Mapping[str, str], terms: Sequence[str]) -> str:
        """Return a fulltext query for nodes that contain one of the terms and belong to all of the scopes."""

    @abstractmethod
    def near(self, target: SearchTarget, vector: VectorSide) -> Fragment:
        """Return Cypher that binds about ``$__gw_wide`` nodes nearest to ``$__gw_vector``, by the vector index."""

    @abstractmethod
    def score(self, vector: VectorSide) -> str:
        """Return the expression for the similarity of ``n`` and ``$__gw_vector``, from 0 to 1.

        Cosine: ``(1 + cos) / 2``. Euclidean: ``1 / (1 + distance ** 2)``.
        """

    def equal(self, found: str, wanted: str) -> str:
        """Return the condition that a property equals a text, which is not empty."""
        return f"{found} = {wanted}"

    def sure(self, target: SearchTarget) -> list[str]:
        """Return the conditions that a node found by an index belongs to the target."""
        return []

    def label(self, target: SearchTarget) -> str:
        """Return the labels as a pattern writes them."""
        return "|".join(self.quoted(name) for name in target.labels)

    def beginnings(self, term: str) -> str | None:
        """Return the prefix of the words that are stemmed to the term; None if it is too short to search for.

        A user's index does not stem, or stems differently. The caller drops nodes that match by the prefix only.
        """
        start = term[:-1] if term.endswith(("e", "i")) else term
        return start if len(start) >= _SHORTEST else None

"""The only queries that a retrieval runs, and what their parameters may be (checked on FalkorDB 4.22 and Neo4j 5.26).

No part of a query comes from outside: labels, properties and relationship types stand here, everything else is a bound
parameter. All of them only read, and each is bounded by itself:

- a node's relationships of each type are read up to ``$scan``, in the order in which the server finds them, so a node
  with 100,000 neighbours costs no more than one with ``$scan``, and one type does not crowd out the others;
- only behind that bound is anything filtered and sorted. On FalkorDB the bound has to be in a subquery of its own: it
  moves a filter from behind ``WITH … LIMIT`` in front of it, and then looks at every neighbour (1,070 ms in the place
  of 1.3 ms for 100,000).

Rejected: a path of variable length. Both servers find every path before they can bound anything but their number, and
with a hub all that can be found in one step is what the server happens to find first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from graphweft_rules.batching import Dialect
from graphweft_rules.packs.memory import MEMORY_LABEL
from graphweft_workers.graphrag.caps import LIMIT_CAP, MOST_DOCUMENTS, MOST_NAMES

__all__ = ("KEYS", "LONGEST", "LONGEST_NAME", "MOST_SCANNED", "RELATIONSHIPS", "TEMPLATES", "Template", "checked")

RELATIONSHIPS: Final = ("REFERENCES", "CONTAINS", "MENTIONS", "DEPENDS_ON", "RELATED_TO", "SUPERSEDES", "AMENDS")
"""The types that are followed, in both directions; no others."""
_ENTITY: Final = "Entity"
_DOCUMENT: Final = "Document"
KEYS: Final = frozenset(
    {
        (_ENTITY, "id"),
        (_ENTITY, "name"),
        (_ENTITY, "name_key"),
        (_DOCUMENT, "id"),
        (_DOCUMENT, "name"),
        ("Chunk", "id"),
        (MEMORY_LABEL, "id"),
    }
)
"""(label, property) by which nodes are looked up: for ``GraphStore.prepare``, for without an index each is a scan."""
LONGEST: Final = 1_500
"""Characters of a description that leave the server."""
LONGEST_NAME: Final = 500
MOST_SCANNED: Final = 1_000
"""Relationships of one type that are looked at, of one node."""
_LONGEST_ID: Final = 512
_FOUND: Final = 500
"""Nodes that one lookup gives: as many as that only where many have the same name."""

type Template = Literal["documents", "names", "neighbours", "between"]


class _Forms:
    """How one kind of server is asked."""

    def __init__(self, dialect: Dialect) -> None:
        self._falkordb = dialect == "falkordb"

    def handle(self, variable: str) -> str:
        """What a node is fetched by; it means something on this server only."""
        return f"id({variable})" if self._falkordb else f"elementId({variable})"

    def text(self, value: str, most: int) -> str:
        """Return a property where it is text or a whole number; servers write other numbers in ways of their own."""
        if self._falkordb:
            return f"CASE WHEN typeOf({value}) IN ['String', 'Integer'] THEN left(toStringOrNull({value}), {most}) END"
        return f"CASE WHEN {value} IS :: STRING OR {value} IS :: INTEGER THEN left(toString({value}), {most}) END"

    def first(self, variable: str, names: Sequence[str], most: int) -> str:
        return f"coalesce({', '.join(self.text(f'{variable}.{name}', most) for name in names)}, '')"

    def name(self, variable: str) -> str:
        return self.first(variable, ("name", "title", "id"), LONGEST_NAME)

    def key(self, variable: str) -> str:
        return self.first(variable, ("id", "uuid", "name"), LONGEST_NAME)

    def fact(self, variable: str) -> str:
        return self.first(variable, ("fact", "description", "text"), LONGEST)

    def node(self, variable: str) -> str:
        """Return the columns of a node: see ``rows.Node``."""
        return ", ".join(
            (
                f"{self.handle(variable)} AS handle",
                f"{variable}:{_ENTITY} AS entity",
                f"{variable}:{_ENTITY} OR {variable}:{_DOCUMENT} AS shown",
                f"{self.key(variable)} AS key",
                f"{self.name(variable)} AS name",
                f"{self.first(variable, ('type',), LONGEST_NAME)} AS kind",
                f"{self.first(variable, ('description', 'summary'), LONGEST)} AS description",
            )
        )

    def lookup(self, places: Sequence[tuple[str, str, str]]) -> str:
        """Return nodes by label, property and parameter: what was found, the node."""
        parts = (
            f"MATCH (n:{label}) WHERE n.{name} IN ${parameter} RETURN n, n.{name} AS found LIMIT {_FOUND}"
            for label, name, parameter in places
        )
        return f"CALL {{ {' UNION ALL '.join(parts)} }} RETURN found, {self.node('n')}"

    def inside(self, body: Sequence[str], *imported: str) -> str:
        """Return a subquery that is the union of its parts."""
        if self._falkordb:
            return f"CALL {{ {' UNION ALL '.join(f'WITH {", ".join(imported)} {part}' for part in body)} }}"
        return f"CALL ({', '.join(imported)}) {{ {' UNION ALL '.join(body)} }}"

    def documents(self) -> str:
        """Nodes with one of ``$ids``: the id, the node."""
        places = [(_ENTITY, "id"), (_ENTITY, "name"), (_DOCUMENT, "id"), (_DOCUMENT, "name")]
        places += [("Chunk", "id"), (MEMORY_LABEL, "id")]
        return self.lookup([(label, name, "ids") for label, name in places])

    def names(self) -> str:
        """Entities with one of ``$names``, or of ``$keys``: what was found, the node."""
        return self.lookup([(_ENTITY, "name", "names"), (_ENTITY, "name_key", "keys")])

    def neighbours(self) -> str:
        """Of each of ``$handles`` up to ``$each`` relationships of each type, and what is at their other end."""
        each = self.inside([f"MATCH (a)-[r:{kind}]-(b) RETURN r, b LIMIT $scan" for kind in RELATIONSHIPS], "a")
        return (
            f"UNWIND $handles AS source MATCH (a) WHERE {self.handle('a')} = source {each} "
            f"WITH source, a, r, b WHERE b:{_ENTITY} OR b:{_DOCUMENT} "
            f"WITH source, r, b, type(r) AS type, startNode(r) = a AS out, {self.fact('r')} AS fact, "
            f"{self.name('b')} AS name, {self.key('b')} AS key ORDER BY name, out, fact, key "
            "WITH source, type, collect([r, b, out, fact])[0..$each] AS taken UNWIND taken AS one "
            "WITH source, type, one[0] AS r, one[1] AS b, one[2] AS out, one[3] AS fact "
            f"RETURN source, {self.handle('r')} AS link, type, out, fact, {self.node('b')}"
        )

    def between(self) -> str:
        """Relationships from one of ``$handles`` to another, of each pair up to ``$each``."""
        found = f"MATCH (a)-[r:{'|'.join(RELATIONSHIPS)}]->(b) RETURN r LIMIT $each"
        return (
            f"UNWIND $handles AS source MATCH (a) WHERE {self.handle('a')} = source "
            f"UNWIND $handles AS target WITH a, source, target WHERE source <> target "
            f"MATCH (b) WHERE {self.handle('b')} = target WITH a, b, source, target {self.inside([found], 'a', 'b')} "
            f"RETURN source, target, {self.handle('r')} AS link, type(r) AS type, {self.fact('r')} AS fact"
        )

    def all(self) -> Mapping[Template, str]:
        return {
            "documents": self.documents(),
            "names": self.names(),
            "neighbours": self.neighbours(),
            "between": self.between(),
        }


TEMPLATES: Final[Mapping[Dialect, Mapping[Template, str]]] = {
    "falkordb": _Forms("falkordb").all(),
    "neo4j": _Forms("neo4j").all(),
}
"""Every query there is."""


def checked(dialect: Dialect, template: Template, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a query with its parameters. Raises ``ValueError`` for a template or parameters that are not allowed."""
    known = TEMPLATES.get(dialect, {})
    if template not in known:
        msg = f"{template!r} is no query of a retrieval; there are {', '.join(known)}"
        raise ValueError(msg)
    wanted = _PARAMETERS[template]
    if params.keys() != wanted.keys():
        msg = f"the query {template!r} has the parameters {', '.join(wanted)}, not {', '.join(params)}"
        raise ValueError(msg)
    for name, is_allowed in wanted.items():
        if not is_allowed(params[name], dialect):
            msg = f"the parameter {name!r} of the query {template!r} is beyond its bounds"
            raise ValueError(msg)
    return known[template], dict(params)


type _Check = Callable[[Any, Dialect], bool]


def _is_number(most: int) -> _Check:
    return lambda value, _: type(value) is int and 1 <= value <= most


def _is_list(most: int, is_member: _Check) -> _Check:
    return lambda value, dialect: (
        type(value) is list and len(value) <= most and all(is_member(each, dialect) for each in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    )


def _is_text(value: Any, _: Dialect) -> bool:
    return type(value) is str and 0 < len(value) <= _LONGEST_ID


def _is_id(value: Any, dialect: Dialect) -> bool:
    return _is_text(value, dialect) or (type(value) is int and -(2**63) <= value < 2**63)


def _is_handle(value: Any, dialect: Dialect) -> bool:
    return (type(value) is int and value >= 0) if dialect == "falkordb" else _is_text(value, dialect)


_PARAMETERS: Final[Mapping[Template, Mapping[str, _Check]]] = {
    "documents": {"ids": _is_list(MOST_DOCUMENTS, _is_id)},
    "names": {"names": _is_list(MOST_NAMES, _is_text), "keys": _is_list(MOST_NAMES, _is_text)},
    "neighbours": {
        "handles": _is_list(LIMIT_CAP, _is_handle),
        "scan": _is_number(MOST_SCANNED),
        "each": _is_number(LIMIT_CAP),
    },
    "between": {"handles": _is_list(LIMIT_CAP, _is_handle), "each": _is_number(LIMIT_CAP)},
}

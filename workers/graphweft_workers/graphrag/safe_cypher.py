"""The only queries that a retrieval runs, and what their parameters may be (checked on FalkorDB 4.22 and Neo4j 5.26).

No part of a query comes from outside: labels, properties and relationship types stand here, everything else is a bound
parameter. All of them only read, and each is bounded by itself:

- a node's relationships of each type are read up to ``$scan``, in the order in which the server finds them, so a node
  with 100,000 neighbours costs no more than one with ``$scan``, and one type does not crowd out the others;
- in front of that bound stands only what says who may see a thing and whether it holds now, for else what belongs to
  others would keep out what one may see. A hub of 100,000 neighbours that all belong to others takes up to a second
  that way, which the timeout of the query bounds;
- everything else is filtered and sorted behind the bound. On FalkorDB the bound has to be in a subquery of its own: it
  moves a filter from behind ``WITH … LIMIT`` in front of it;
- of equal names or ids, each has its own bound, and what belongs to who asks comes before what is everybody's.

Rejected: a path of variable length. Both servers find every path before they can bound anything but their number, and
with a hub all that can be found in one step is what the server happens to find first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from graphweft_contracts.memory import SCOPES
from graphweft_rules.batching import Dialect
from graphweft_rules.packs.memory import MEMORY_LABEL
from graphweft_workers.graphrag.caps import LIMIT_CAP, MOST_DOCUMENTS, MOST_NAMES, MOST_NAMESAKES

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
LONGEST_LABEL: Final = 64
"""Characters of a relationship's own type."""
MOST_SCANNED: Final = 200
"""Relationships of one type that are looked at, of one node."""
_LONGEST_ID: Final = 512
_SAME: Final = 500
"""Nodes of the same name or id that are put in order."""
_LONGEST_SCOPE: Final = 256

_TOGETHER: Final = "asked"
"""On Neo4j the parameters are the entries of one: it plans a query anew, in half a second, when a parameter is null for
once, or a list or a text has ten times the size, and does not look into maps for that."""
_NOW_PATTERN: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
type Template = Literal["documents", "names", "neighbours", "between"]


def _unscoped(variable: str) -> str:
    return f"coalesce({', '.join(f'{variable}.{name}' for name in SCOPES)}) IS NULL"


def _visible(variable: str) -> str:
    """Return the condition that who asks may see a node or a relationship: ``null`` is a scope that is not given.

    It belongs to nobody; or it belongs to nobody else in any scope that is given, and to who asks in one of them.
    Spelt out with IS NULL it would take Neo4j twice as long to plan.
    """
    fits = " AND ".join(f"coalesce({variable}.{name} = ${name}, true)" for name in SCOPES)
    equal = " OR ".join(f"{variable}.{name} = ${name}" for name in SCOPES)
    return f"{fits} AND ({_unscoped(variable)} OR {equal})"


_HOLDS: Final = "(r.invalid_at IS NULL OR r.invalid_at > $now) AND (r.valid_at IS NULL OR r.valid_at <= $now)"
"""The condition that a relationship is true at ``$now``. Times are text in UTC; what is anything else is not true."""


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
            # `left` reads past the end of a text that has fewer characters than it asks for, but more bytes.
            text = f"toStringOrNull({value})"
            cut = f"CASE WHEN size({text}) > {most} THEN left({text}, {most}) ELSE {text} END"
            return f"CASE WHEN typeOf({value}) IN ['String', 'Integer'] THEN {cut} END"
        return f"CASE WHEN {value} IS :: STRING OR {value} IS :: INTEGER THEN left(toString({value}), {most}) END"

    def first(self, variable: str, names: Sequence[str], most: int) -> str:
        return f"coalesce({', '.join(self.text(f'{variable}.{name}', most) for name in names)}, '')"

    def name(self, variable: str) -> str:
        return self.first(variable, ("name", "title", "id"), LONGEST_NAME)

    def key(self, variable: str) -> str:
        return self.first(variable, ("id", "uuid", "name"), LONGEST_NAME)

    def kind(self, variable: str) -> str:
        return self.first(variable, ("type",), LONGEST_NAME)

    def description(self, variable: str) -> str:
        return self.first(variable, ("description", "summary"), LONGEST)

    def fact(self, variable: str) -> str:
        return self.first(variable, ("fact", "description", "text"), LONGEST)

    def label(self, variable: str) -> str:
        return self.first(variable, ("name",), LONGEST_LABEL + 1)

    def node(self, variable: str) -> str:
        """Return the columns of a node: see ``rows.Node``."""
        return ", ".join(
            (
                f"{self.handle(variable)} AS handle",
                f"{variable}:{_ENTITY} AS entity",
                f"{variable}:{_ENTITY} OR {variable}:{_DOCUMENT} AS shown",
                f"{self.key(variable)} AS key",
                f"{self.name(variable)} AS name",
                f"{self.kind(variable)} AS kind",
                f"{self.description(variable)} AS description",
                f"NOT {_unscoped(variable)} AS own",
            )
        )

    def lookup(self, places: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> str:
        """Return nodes by parameter, label and property: what was found, the node. Of each value there are up to 10."""
        columns = (self.name("n"), self.key("n"), self.kind("n"), self.description("n"))
        parts: list[str] = []
        for parameter, keys in places:
            found = [f"MATCH (n:{label}) WHERE n.{name} = wanted RETURN n, n.{name} AS found" for label, name in keys]
            best = (
                f"{self.inside(found, 'wanted')} WITH n, found WHERE {_visible('n')} "
                f"WITH n, found, NOT {_unscoped('n')} AS own ORDER BY own DESC LIMIT {_SAME} "
                f"WITH n, found, own ORDER BY own DESC, {', '.join(columns)} LIMIT {2 * MOST_NAMESAKES} RETURN n, found"
            )
            parts.append(f"UNWIND ${parameter} AS wanted {self.inside([best], 'wanted')} RETURN found, n")
        return f"CALL {{ {' UNION ALL '.join(parts)} }} RETURN found, {self.node('n')}"

    def inside(self, body: Sequence[str], *imported: str) -> str:
        """Return a subquery that is the union of its parts."""
        if self._falkordb:
            return f"CALL {{ {' UNION ALL '.join(f'WITH {", ".join(imported)} {part}' for part in body)} }}"
        return f"CALL ({', '.join(imported)}) {{ {' UNION ALL '.join(body)} }}"

    def documents(self) -> str:
        """Nodes with one of ``$ids``: the id, the node."""
        keys = [(_ENTITY, "id"), (_ENTITY, "name"), (_DOCUMENT, "id"), (_DOCUMENT, "name")]
        return self.lookup([("ids", [*keys, ("Chunk", "id"), (MEMORY_LABEL, "id")])])

    def names(self) -> str:
        """Entities with one of ``$names``, or of ``$keys``: what was found, the node."""
        return self.lookup([("names", [(_ENTITY, "name")]), ("keys", [(_ENTITY, "name_key")])])

    def neighbours(self) -> str:
        """Of each of ``$handles`` up to ``$each`` relationships of each type, and what is at their other end.

        Of all these up to ``$most``, in turns: the first of each node and type, then the second, and so on. A row costs
        more on its way than a relationship that is looked at.
        """
        seen = f"{_visible('b')} AND {_visible('r')} AND {_HOLDS}"
        each = self.inside(
            [f"MATCH (a)-[r:{kind}]-(b) WHERE {seen} RETURN r, b LIMIT $scan" for kind in RELATIONSHIPS], "a"
        )
        return (
            "UNWIND range(0, size($handles) - 1) AS place WITH place, $handles[place] AS source "
            f"MATCH (a) WHERE {self.handle('a')} = source AND {_visible('a')} {each} "
            f"WITH place, source, a, r, b WHERE b:{_ENTITY} OR b:{_DOCUMENT} "
            f"WITH place, source, r, b, type(r) AS type, startNode(r) = a AS out, {self.fact('r')} AS fact, "
            f"{self.name('b')} AS name, {self.key('b')} AS key ORDER BY name, out, fact, key "
            "WITH place, source, type, collect([r, b, out, fact])[0..$each] AS taken "
            "UNWIND range(0, size(taken) - 1) AS turn WITH place, source, type, turn, taken[turn] AS one "
            "ORDER BY turn, place, type LIMIT $most "
            "WITH source, type, one[0] AS r, one[1] AS b, one[2] AS out, one[3] AS fact "
            f"RETURN source, {self.handle('r')} AS link, type, out, fact, {self.label('r')} AS label, {self.node('b')}"
        )

    def between(self) -> str:
        """Relationships from one of ``$handles`` to another, of each pair up to ``$each``."""
        found = f"MATCH (a)-[r:{'|'.join(RELATIONSHIPS)}]->(b) WHERE {_visible('r')} AND {_HOLDS} RETURN r LIMIT $each"
        return (
            f"UNWIND $handles AS source MATCH (a) WHERE {self.handle('a')} = source AND {_visible('a')} "
            f"UNWIND $handles AS target WITH a, source, target WHERE source <> target "
            f"MATCH (b) WHERE {self.handle('b')} = target AND {_visible('b')} "
            f"WITH a, b, source, target {self.inside([found], 'a', 'b')} "
            f"RETURN source, target, {self.handle('r')} AS link, type(r) AS type, {self.fact('r')} AS fact, "
            f"{self.label('r')} AS label"
        )

    def all(self) -> Mapping[Template, str]:
        texts: dict[Template, str] = {
            "documents": self.documents(),
            "names": self.names(),
            "neighbours": self.neighbours(),
            "between": self.between(),
        }
        return texts if self._falkordb else {name: text.replace("$", f"${_TOGETHER}.") for name, text in texts.items()}


TEMPLATES: Final[Mapping[Dialect, Mapping[Template, str]]] = {
    "falkordb": _Forms("falkordb").all(),
    "neo4j": _Forms("neo4j").all(),
}
"""Every query there is."""


def checked(dialect: Dialect, template: Template, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a query, and its parameters as the server takes them.

    Raises ``ValueError`` for a template or parameters that are not allowed.
    """
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
    return known[template], {_TOGETHER: dict(params)} if dialect == "neo4j" else dict(params)


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


def _is_scope(value: Any, _: Dialect) -> bool:
    return value is None or (type(value) is str and 0 < len(value) <= _LONGEST_SCOPE)


def _is_time(value: Any, _: Dialect) -> bool:
    return type(value) is str and _NOW_PATTERN.fullmatch(value) is not None


_SCOPED: Final[Mapping[str, _Check]] = dict.fromkeys(SCOPES, _is_scope)
_TIMED: Final[Mapping[str, _Check]] = {**_SCOPED, "now": _is_time}
_PARAMETERS: Final[Mapping[Template, Mapping[str, _Check]]] = {
    "documents": {"ids": _is_list(MOST_DOCUMENTS, _is_id), **_SCOPED},
    "names": {"names": _is_list(MOST_NAMES, _is_text), "keys": _is_list(MOST_NAMES, _is_text), **_SCOPED},
    "neighbours": {
        "handles": _is_list(LIMIT_CAP, _is_handle),
        "scan": _is_number(MOST_SCANNED),
        "each": _is_number(LIMIT_CAP),
        "most": _is_number(LIMIT_CAP),
        **_TIMED,
    },
    "between": {"handles": _is_list(LIMIT_CAP, _is_handle), "each": _is_number(LIMIT_CAP), **_TIMED},
}

"""The only queries that a retrieval runs, and the limits of their parameters.

All text of a query is fixed here; outside values are bound parameters. Queries only read, and each is bounded:

- A node's relationships of a type are read up to ``$scan``, in the order of the server. So a hub costs no more than
  another node, and one type does not displace the others.
- Before this limit stand only the filters by scope and validity, so hidden data displaces nothing. A hub with 100,000
  hidden neighbours takes up to a second, which the query timeout bounds.
- Other filters and the order follow the limit, which is in a subquery, because some servers move filters in front of
  ``WITH … LIMIT``.
- Equal names or ids have a limit of their own, with nodes of the scope before shared ones.

Paths of variable length are not used: servers enumerate all paths before they can limit them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal

from graphweft_contracts.memory import SCOPES
from graphweft_workers.features.graphrag.caps import (
    LIMIT_CAP,
    MOST_DOCUMENTS,
    MOST_MENTIONS,
    MOST_NAMES,
    MOST_NAMESAKES,
)
from graphweft_workers.features.graphrag.rows import NODE_COLUMNS
from graphweft_workers.ports.dialect import GraphDialect
from graphweft_workers.ports.graph_store import Table
from graphweft_workers.retrieval.records import EPISODE, MEMORY_LABEL

RELATIONSHIPS: Final = ("REFERENCES", "CONTAINS", "MENTIONS", "DEPENDS_ON", "RELATED_TO", "SUPERSEDES", "AMENDS")
"""The types that are followed, in both directions."""
_ENTITY: Final = "Entity"
_DOCUMENT: Final = "Document"
LONGEST: Final = 1_500
"""Limit of characters in a returned description or fact."""
LONGEST_NAME: Final = 500
LONGEST_LABEL: Final = 64
"""Limit of characters in a relationship's own type."""
MOST_SCANNED: Final = 200
"""Limit of relationships of a node and type that are read."""
_NODE: Final = ("key", "name", "kind", "description")
"""The columns of a node that are texts."""
_RELATIONSHIP: Final = ("fact", "label")
_SAID: Final = ("said",)
"""What a document says: names in it are looked up, and it is not shown."""
_TEXTS: Final[Mapping[str, tuple[Sequence[str], int]]] = {
    "key": (("id", "uuid", "name"), LONGEST_NAME),
    "name": (("name", "title", "id"), LONGEST_NAME),
    "kind": (("type",), LONGEST_NAME),
    "description": (("description", "summary"), LONGEST),
    "fact": (("fact", "description", "text"), LONGEST),
    "label": (("name",), LONGEST_LABEL + 1),
    "said": (("text", "content"), LONGEST),
}
"""By column: the properties of which the first one with a text counts, and its limit of characters."""
_LONGEST_ID: Final = 512
_SAME: Final = 500
"""Limit of nodes of the same name or id that are sorted."""
_LONGEST_SCOPE: Final = 256

_TOGETHER: Final = "asked"
"""The parameter that holds all others: see ``GraphDialect.one_parameter``."""
_NOW_PATTERN: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
type ConditionValues = tuple[str, ...]
"""The names of the scopes that a query has, in the order of ``SCOPES``."""
type Template = Literal["documents", "names", "neighbours", "between"]
_COLUMNS: Final[Mapping[Template, Sequence[str]]] = {
    "documents": ("found", "said", *NODE_COLUMNS),
    "names": ("found", *NODE_COLUMNS),
    "neighbours": ("source", "link", "type", "out", *_RELATIONSHIP, *NODE_COLUMNS),
    "between": ("source", "target", "link", "type", *_RELATIONSHIP),
}
"""The columns of each query, in their order."""


def _unscoped(variable: str) -> str:
    return f"coalesce({', '.join(f'{variable}.{name}' for name in SCOPES)}) IS NULL"


def _visible(variable: str, given: ConditionValues) -> str:
    """Return the condition that a query with some scopes may see a node or relationship.

    It is shared, or it matches at least one scope of the query and contradicts none. ``coalesce`` plans twice as fast
    as IS NULL.
    """
    if not given:
        return _unscoped(variable)
    fits = " AND ".join(f"coalesce({variable}.{name} = ${name}, true)" for name in given)
    equal = " OR ".join(f"{variable}.{name} = ${name}" for name in given)
    return f"{fits} AND ({_unscoped(variable)} OR {equal})"


_HOLDS: Final = "(r.invalid_at IS NULL OR r.invalid_at > $now) AND (r.valid_at IS NULL OR r.valid_at <= $now)"
"""The condition that a relationship is valid at ``$now``. Times are text in UTC; other values are invalid."""


def _shown(variable: str) -> str:
    return f"{variable}:{_ENTITY} OR {variable}:{_DOCUMENT}"


class _Forms:
    """The queries in one dialect, for some scopes."""

    def __init__(self, dialect: GraphDialect, given: ConditionValues) -> None:
        self._dialect = dialect
        self._given = given

    def visible(self, variable: str) -> str:
        return _visible(variable, self._given)

    def text(self, variable: str, column: str) -> str:
        """Return the whole text of a column."""
        return self._dialect.first_text([f"{variable}.{name}" for name in _TEXTS[column][0]])

    def texts(self, variable: str, *columns: str) -> str:
        """Return the whole texts of columns, as variables: to be cut once they are known, which is quicker."""
        return ", ".join(f"{self.text(variable, column)} AS {column}" for column in columns)

    def cut(self, *columns: str) -> str:
        """Return the columns of ``texts``, cut."""
        return ", ".join(f"{self._dialect.cut_text(column, _TEXTS[column][1])} AS {column}" for column in columns)

    def node(self, variable: str) -> str:
        """Return the columns of a ``rows.Node``; its ``texts`` are variables."""
        return ", ".join(
            (
                f"{self._dialect.node_id(variable)} AS handle",
                f"{variable}:{_ENTITY} AS entity",
                f"{_shown(variable)} AS shown",
                self.cut(*_NODE),
                f"NOT {_unscoped(variable)} AS own",
            )
        )

    def returned(self, template: Template, values: str) -> str:
        """Return the end of a query: the values of its columns, in their order. ``rows_of`` reads the result."""
        if not self._dialect.one_row:
            return f"RETURN {values}"
        return f"WITH {values} RETURN collect([{', '.join(_COLUMNS[template])}]) AS rows"

    def lookup(self, template: Template, places: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> str:
        """Return nodes by parameter, label and property: the value, the node. Up to 10 per value."""
        columns = [self.text("n", column) for column in ("name", "key", "kind", "description")]
        parts: list[str] = []
        for parameter, keys in places:
            found = [f"MATCH (n:{label}) WHERE n.{name} = wanted RETURN n, n.{name} AS found" for label, name in keys]
            best = (
                f"{self._dialect.subquery(found, ['wanted'])} WITH n, found WHERE {self.visible('n')} "
                f"WITH n, found, NOT {_unscoped('n')} AS own ORDER BY own DESC LIMIT {_SAME} "
                f"WITH n, found, own ORDER BY own DESC, {', '.join(columns)} LIMIT {2 * MOST_NAMESAKES} RETURN n, found"
            )
            parts.append(f"UNWIND ${parameter} AS wanted {self._dialect.subquery([best], ['wanted'])} RETURN found, n")
        more = [name for name in _COLUMNS[template] if name in _SAID]
        every = f"CALL {{ {' UNION ALL '.join(parts)} }} WITH found, n, {self.texts('n', *more, *_NODE)}"
        values = ", ".join(["found", *map(self.cut, more), self.node("n")])
        return f"{every} {self.returned(template, values)}"

    def documents(self) -> str:
        """Return nodes with one of ``$ids``: the id, the node."""
        keys = [(_ENTITY, "id"), (_ENTITY, "name"), (_DOCUMENT, "id"), (_DOCUMENT, "name")]
        return self.lookup("documents", [("ids", [*keys, ("Chunk", "id"), (EPISODE, "id"), (MEMORY_LABEL, "id")])])

    def names(self) -> str:
        """Return entities with one of ``$names`` or ``$keys``: the name or key, the node."""
        return self.lookup("names", [("names", [(_ENTITY, "name")]), ("keys", [(_ENTITY, "name_key")])])

    def neighbours(self) -> str:
        """Return up to ``$each`` relationships per type of each of ``$handles``, with their other nodes.

        At most ``$most`` in all, in turns: the first of each node and type, then the second, and so on. So the first
        ``$most`` types of nodes, in the order of the nodes, suffice, and the server reads no node behind them.
        """
        seen = f"{self.visible('b')} AND {self.visible('r')} AND {_HOLDS}"
        of_type = "MATCH (a)-[r:{0}]-(b) WHERE {1} WITH r, b LIMIT $scan RETURN '{0}' AS type, collect({2}) AS found"
        shown = f"CASE WHEN {_shown('b')} THEN [r, b] END"
        each = self._dialect.subquery([of_type.format(kind, seen, shown) for kind in sorted(RELATIONSHIPS)], ["a"])
        return (
            "UNWIND range(0, size($handles) - 1) AS place WITH place, $handles[place] AS source "
            f"MATCH (a) WHERE {self._dialect.node_id('a')} = source AND {self.visible('a')} {each} "
            "WITH place, source, a, type, found WHERE size(found) > 0 WITH place, source, a, type, found LIMIT $most "
            "UNWIND found AS one WITH place, source, a, type, one[0] AS r, one[1] AS b "
            f"WITH place, source, type, r, b, startNode(r) = a AS out, {self.texts('r', 'fact')}, "
            f"{self.texts('b', 'name', 'key')} ORDER BY name, out, fact, key "
            "WITH place, source, type, collect([r, b, out])[0..$each] AS taken "
            "UNWIND range(0, size(taken) - 1) AS turn WITH place, source, type, turn, taken[turn] AS one "
            "ORDER BY turn, place, type LIMIT $most WITH source, type, one[0] AS r, one[1] AS b, one[2] AS out "
            f"WITH source, type, r, b, out, {self.texts('r', *_RELATIONSHIP)}, {self.texts('b', *_NODE)} "
            + self.returned(
                "neighbours",
                f"source, {self._dialect.node_id('r')} AS link, type, out, {self.cut(*_RELATIONSHIP)}, "
                f"{self.node('b')}",
            )
        )

    def between(self) -> str:
        """Return relationships from one of ``$handles`` to another, up to ``$each`` per pair."""
        found = (
            f"MATCH (a)-[r:{'|'.join(RELATIONSHIPS)}]->(b) WHERE {self.visible('r')} AND {_HOLDS} RETURN r LIMIT $each"
        )
        return (
            f"UNWIND $handles AS source MATCH (a) WHERE {self._dialect.node_id('a')} = source AND {self.visible('a')} "
            f"UNWIND $handles AS target WITH a, source, target WHERE source <> target "
            f"MATCH (b) WHERE {self._dialect.node_id('b')} = target AND {self.visible('b')} "
            f"WITH a, b, source, target {self._dialect.subquery([found], ['a', 'b'])} "
            f"WITH source, target, r, {self.texts('r', *_RELATIONSHIP)} "
            + self.returned(
                "between",
                f"source, target, {self._dialect.node_id('r')} AS link, type(r) AS type, {self.cut(*_RELATIONSHIP)}",
            )
        )

    def all(self) -> Mapping[Template, str]:
        texts: dict[Template, str] = {
            "documents": self.documents(),
            "names": self.names(),
            "neighbours": self.neighbours(),
            "between": self.between(),
        }
        if not self._dialect.one_parameter:
            return texts
        return {name: text.replace("$", f"${_TOGETHER}.") for name, text in texts.items()}


@cache
def templates(dialect: GraphDialect, given: ConditionValues = SCOPES) -> Mapping[Template, str]:
    """Return all queries of a dialect, for a retrieval with the scopes ``given``."""
    return _Forms(dialect, given).all()


def rows_of(dialect: GraphDialect, template: Template, table: Table) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a query's result as maps of its columns, in their order."""
    rows = table.rows[0][0] if dialect.one_row and table.rows else table.rows
    return [dict(zip(_COLUMNS[template], row, strict=True)) for row in rows]


def checked(dialect: GraphDialect, template: Template, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a query and its parameters for the server. Raises ``ValueError`` if one is not allowed."""
    known = templates(dialect)
    if template not in known:
        msg = f"unknown query {template!r}: expected one of {', '.join(known)}"
        raise ValueError(msg)
    wanted = _PARAMETERS[template]
    if params.keys() != wanted.keys():
        msg = f"invalid parameters {', '.join(params)} of the query {template!r}: expected {', '.join(wanted)}"
        raise ValueError(msg)
    for name, is_allowed in wanted.items():
        if not is_allowed(params[name], dialect):
            msg = f"the parameter {name!r} of the query {template!r} is outside its limits"
            raise ValueError(msg)
    if dialect.one_parameter:  # such a server plans each text for long, so one text is for all scopes
        return known[template], {_TOGETHER: dict(params)}
    given = tuple(name for name in SCOPES if params[name] is not None)
    values = {name: value for name, value in params.items() if value is not None}
    return templates(dialect, given)[template], values


type _Check = Callable[[Any, GraphDialect], bool]


def _is_number(most: int) -> _Check:
    return lambda value, _: type(value) is int and 1 <= value <= most


def _is_list(most: int, is_member: _Check) -> _Check:
    return lambda value, dialect: (
        type(value) is list and len(value) <= most and all(is_member(each, dialect) for each in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    )


def _is_text(value: Any, _: GraphDialect) -> bool:
    return type(value) is str and 0 < len(value) <= _LONGEST_ID


def _is_id(value: Any, dialect: GraphDialect) -> bool:
    return _is_text(value, dialect) or (type(value) is int and -(2**63) <= value < 2**63)


def _is_handle(value: Any, dialect: GraphDialect) -> bool:
    return dialect.is_node_id(value) and (type(value) is not str or len(value) <= _LONGEST_ID)


def _is_scope(value: Any, _: GraphDialect) -> bool:
    return value is None or (type(value) is str and 0 < len(value) <= _LONGEST_SCOPE)


def _is_time(value: Any, _: GraphDialect) -> bool:
    return type(value) is str and _NOW_PATTERN.fullmatch(value) is not None


_SCOPED: Final[Mapping[str, _Check]] = dict.fromkeys(SCOPES, _is_scope)
_TIMED: Final[Mapping[str, _Check]] = {**_SCOPED, "now": _is_time}
_PARAMETERS: Final[Mapping[Template, Mapping[str, _Check]]] = {
    "documents": {"ids": _is_list(MOST_DOCUMENTS, _is_id), **_SCOPED},
    "names": {"names": _is_list(MOST_NAMES, _is_text), "keys": _is_list(MOST_MENTIONS, _is_text), **_SCOPED},
    "neighbours": {
        "handles": _is_list(LIMIT_CAP, _is_handle),
        "scan": _is_number(MOST_SCANNED),
        "each": _is_number(LIMIT_CAP),
        "most": _is_number(LIMIT_CAP),
        **_TIMED,
    },
    "between": {"handles": _is_list(LIMIT_CAP, _is_handle), "each": _is_number(LIMIT_CAP), **_TIMED},
}

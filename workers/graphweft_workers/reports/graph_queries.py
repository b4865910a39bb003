"""The queries of the page *Graph*. Each reads a bounded number of nodes or relationships, and no large property."""

from __future__ import annotations

from typing import Final

from graphweft_workers.ports.dialect import GraphDialect

CAPTION: Final = 120
"""Characters of the text beside a node."""
_NAMED: Final = ("name", "title", "label", "text", "summary", "id")
_COMPARED: Final = 300
"""Characters of a property in which a text is looked for."""


def _node(dialect: GraphDialect, variable: str) -> str:
    names = ", ".join(dialect.short_text(f"{variable}.{name}", CAPTION) for name in _NAMED)
    return f"{dialect.node_id(variable)}, labels({variable}), coalesce({names})"


def _relationship(dialect: GraphDialect) -> str:
    start, end = dialect.node_id("startNode(r)"), dialect.node_id("endNode(r)")
    return f"{dialect.node_id('r')}, type(r), {start}, {end}"


def count_nodes(dialect: GraphDialect, label: str) -> str:
    """Count the nodes with a label; servers keep this number."""
    return f"MATCH (n:{dialect.quoted(label)}) RETURN count(n)"


def sample(dialect: GraphDialect, label: str) -> str:
    """Return the first ``$limit`` nodes with a label."""
    return f"MATCH (n:{dialect.quoted(label)}) WITH n LIMIT $limit RETURN {_node(dialect, 'n')}"


def neighbours(dialect: GraphDialect) -> str:
    """Return ``$each`` relationships of each node of ``$ids``, with the nodes at their other ends."""
    found = f"{_relationship(dialect)}, {_node(dialect, 'm')}"
    return f"{_of_each(dialect, 'MATCH (n)-[r]-(m) RETURN r, m LIMIT $each')} RETURN {found}"


def outgoing(dialect: GraphDialect) -> str:
    """Return ``$each`` relationships that begin at each node of ``$ids``, without the nodes at their other ends."""
    return f"{_of_each(dialect, 'MATCH (n)-[r]->() RETURN r LIMIT $each')} RETURN {_relationship(dialect)}"


def _of_each(dialect: GraphDialect, part: str) -> str:
    return (
        f"UNWIND $ids AS wanted MATCH (n) WHERE {dialect.node_id('n')} = wanted WITH n "
        f"{dialect.subquery([part], ['n'])}"
    )


def node(dialect: GraphDialect) -> str:
    """Return the node ``$id``."""
    return f"MATCH (n) WHERE {dialect.node_id('n')} = $id RETURN {_node(dialect, 'n')}, n"


def relationship_types(dialect: GraphDialect) -> str:
    """Count the types of the first ``$limit`` relationships of the node ``$id``."""
    return (
        f"MATCH (n)-[r]-() WHERE {dialect.node_id('n')} = $id WITH r LIMIT $limit "
        "RETURN type(r), count(r) ORDER BY count(r) DESC"
    )


def with_key(dialect: GraphDialect, label: str, key: str) -> str:
    """Return nodes whose key property is one of ``$values``; the server has an index of it."""
    where = f"n.{dialect.quoted(key)} IN $values"
    return f"MATCH (n:{dialect.quoted(label)}) WHERE {where} WITH n LIMIT $limit RETURN {_node(dialect, 'n')}"


def with_text(dialect: GraphDialect, label: str) -> str:
    """Return nodes among the first ``$scan`` with a label of which a property contains ``$text``, in lower case."""
    part = dialect.short_text("n[k]", _COMPARED)
    where = f"any(k IN keys(n) WHERE toLower(coalesce({part}, '')) CONTAINS $text)"
    # A server may move a filter in front of the LIMIT before it, and read all nodes: not past an aggregation.
    first = f"MATCH (n:{dialect.quoted(label)}) WITH n LIMIT $scan WITH collect(n) AS first UNWIND first AS n"
    return f"{first} WITH n WHERE {where} WITH n LIMIT $limit RETURN {_node(dialect, 'n')}"

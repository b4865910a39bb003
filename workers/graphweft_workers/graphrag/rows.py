"""What the queries of a retrieval return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graphweft_workers.graph.store import Table

type Handle = str | int
"""What a node or a relationship is known by on its server, within one retrieval."""

_COLUMNS: Final = ("handle", "entity", "shown", "key", "name", "kind", "description", "own")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the graph; texts are empty where it has none, and have not been through the gate."""

    handle: Handle
    entity: bool
    """Whether it has the label ``Entity``."""
    shown: bool
    """Whether it may be named in a context."""
    key: str
    name: str
    kind: str
    description: str
    own: bool = False
    """Whether it belongs to somebody, who is then among those who ask; otherwise it is everybody's."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Node:
        """Return the node that a row of a query ends with."""
        return cls(**{name: row[name] for name in _COLUMNS})

    @property
    def order(self) -> tuple[bool, str, str, str, str]:
        """By what nodes are ordered that nothing else tells apart."""
        return not self.own, self.name, self.key, self.kind, self.description


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A relationship, in its own direction."""

    handle: Handle
    source: Node
    type: str
    target: Node
    fact: str
    label: str = ""
    """The type that whoever wrote it gave it, where that is not among those that are followed; it may be any text."""
    hop: int
    """0 between what is pinned, else the number of the hop that found it."""


def mapped(table: Table) -> Sequence[Mapping[str, Any]]:
    """Return rows as maps."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]

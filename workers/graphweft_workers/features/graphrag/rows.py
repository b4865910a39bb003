"""Rows of the queries of a retrieval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

type Handle = str | int
"""Identifies a node or relationship on its server during one retrieval."""

NODE_COLUMNS: Final = ("handle", "entity", "shown", "key", "name", "kind", "description", "own")
"""The columns of an ``EntityNode``, in the order in which queries return them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityNode:
    """A node of the graph; missing texts are empty, and no text is redacted."""

    handle: Handle
    entity: bool
    """Has the label ``Entity``."""
    shown: bool
    """May be named in a context."""
    key: str
    name: str
    kind: str
    description: str
    own: bool = False
    """Belongs to a scope of the query; otherwise it is shared."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> EntityNode:
        """Return the node in a row of a query."""
        return cls(**{name: row[name] for name in NODE_COLUMNS})

    @property
    def order(self) -> tuple[bool, str, str, str, str]:
        """Sort key of nodes with the same name or id."""
        return not self.own, self.name, self.key, self.kind, self.description


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A relationship, in its own direction."""

    handle: Handle
    source: EntityNode
    type: str
    target: EntityNode
    fact: str
    label: str = ""
    """The type as its writer named it; any text."""
    hop: int
    """0 between pinned entities, else the number of the hop that found it."""

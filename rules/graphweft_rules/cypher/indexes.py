"""Declarations of search indexes; each graph server creates them in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

type IndexKind = Literal["fulltext", "vector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchIndex:
    """A fulltext or vector index on the nodes with one label."""

    kind: IndexKind
    label: str
    properties: tuple[str, ...]
    """For ``vector``, a single one."""
    name: str
    """The name of the index, on servers whose indexes have names."""
    terms: bool = False
    """For ``fulltext``: the properties hold terms of graphweft (``graphweft_workers.text.terms``), so the server must
    only split them at blanks, without stemming and stop words."""
    dimensions: int | None = None
    """For ``vector``, the length of each vector."""

    @classmethod
    def of_rules(cls, kind: IndexKind, label: str, name: str, dimensions: int | None) -> Self:
        """Return the index on a property that rules name as ``Label.property``."""
        return cls(
            kind=kind, label=label, properties=(name,), name=f"graphweft_{kind}_{label}.{name}", dimensions=dimensions
        )

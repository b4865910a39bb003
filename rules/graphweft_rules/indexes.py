"""Indexes for search, as they are declared; each kind of server makes them in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchIndex:
    """A fulltext or vector index on the nodes with one label."""

    kind: Literal["fulltext", "vector"]
    label: str
    properties: tuple[str, ...]
    """vector: a single one."""
    name: str
    """Neo4j's name of the index; FalkorDB knows an index by label and property."""
    terms: bool = False
    """fulltext: the properties hold terms of ours (``graphweft_rules.terms``), which the server is to leave as they
    are: no stemming, no stop words, cut at blanks."""
    dimensions: int | None = None
    """vector: numbers of each vector."""

"""A mutation of a rule, and the same with the parameters for one event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphweft_rules.cypher.query import Cypher
from graphweft_rules.files.model import Place, TextPlace
from graphweft_rules.matching.parameters import ParameterSource


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledMutation:
    """A mutation with parsed Cypher and parameters."""

    rule: str
    id: str
    cypher: Cypher
    sources: tuple[tuple[str, ParameterSource], ...]
    place: Place
    written: TextPlace | None = None
    """The place of the query's text."""


@dataclass(slots=True)  # not frozen: that doubles the cost of making one for every row
class BoundMutation:
    """A mutation and its parameters for one event, ready to run."""

    mutation: CompiledMutation
    params: dict[str, Any]

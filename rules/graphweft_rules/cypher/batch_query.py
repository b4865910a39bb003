"""Batch queries: which rows of a mutation may share one query, and the text of that query.

A row in a batch query costs a tenth of a query of its own. Rows may share a query only if the result equals one query
per row. Each kind of graph server decides that in its own way, so its driver supplies a ``Dialect``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from graphweft_rules.cypher.clauses import Outline
from graphweft_rules.cypher.problems import QueryProblem, Role

Mode = Literal["ordered", "single"]

ROW: Final = "__gw_row"
"""The variable that holds a row: a list of its number, counted from 0, and the values of ``BatchQuery.columns``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuery:
    """How rows of a mutation run on one kind of server."""

    mode: Mode
    """``ordered``: any rows may share a query, with the effect of one query per row in their order. ``single``: each
    row has a query of its own."""
    statement: str
    """The text behind ``UNWIND $rows AS __gw_row``; for ``single``, the query itself with its parameters."""
    columns: tuple[str, ...]
    """The parameters in the order of their values in a row, after the row's number."""
    keys: tuple[str, ...] = ()
    """Columns by which the server looks entities up. Within one query each holds integers only, or strings only.

    For a column with a list, this applies to its items. ``items.id`` is the field ``id`` of the map in the column
    ``items``, or of every map if the column holds a list of maps.
    """
    always: bool = False
    """Whether even a lone row runs as a batch query, because the server runs the author's text in another order."""
    reason: str = ""
    """For the rule's author: why the mode is not ``ordered``."""


class Dialect(Protocol):
    """The Cypher of one kind of graph server. A stateless value: equal arguments always give equal answers."""

    @property
    def name(self) -> str:
        """A short name in lower case, used by settings and ``lint --explain``."""
        ...

    def __hash__(self) -> int:
        """Dialects are cache keys."""
        ...

    def batch_query(self, query: Outline, params: Iterable[str], *, shared: frozenset[str] | None = None) -> BatchQuery:
        """Return how rows of a statement (``Cypher.outline``) with these parameters run. Never raises.

        ``shared`` holds the labels that may be on a node beside another label (``shared_labels``): two nodes with
        different labels outside of it are different nodes. None: any label may be beside any other.
        """
        ...

    def problems(self, query: Outline, role: Role) -> Iterable[QueryProblem]:
        """Return the problems that a rule's query has on this kind of server. Never raises."""
        ...

"""Which rows of a mutation may share one query, and the text of that query.

A row in a query of many costs a tenth of a query, and that is right only where the result is that of one query per row.
What decides that differs from server to server, so each has its rules: see ``falkordb_form`` and ``neo4j_form``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Dialect = Literal["falkordb", "neo4j"]
Mode = Literal["ordered", "disjoint", "single"]

ROW: Final = "__gw_row"
"""The variable that holds a row: a list of its number, counted from 0, and the values of ``BatchForm.columns``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchForm:
    """How rows of a mutation run on one kind of server."""

    mode: Mode
    """``ordered``: any rows may share a query and take effect as one query per row in their order. ``disjoint``: only
    rows that touch nothing in common may. ``single``: one row a query."""
    statement: str
    """What stands behind ``UNWIND $rows AS __gw_row``; for ``single``, the query itself with its parameters."""
    columns: tuple[str, ...]
    """The parameters in the order in which a row has their values, behind the row's number."""
    keys: tuple[str, ...] = ()
    """Columns that servers look entities up by: in one query each must hold integers only, or strings only.

    A list counts by what is in it. ``items.id`` is the field ``id`` of the map in the column ``items``, or of every map
    when the column holds a list of them.
    """
    always: bool = False
    """Whether a row runs by this text even when it is alone, because the server takes the author's in another order."""
    reason: str = ""
    """Why it is not ``ordered``, in words for the rule's author."""


def batch_form(
    statement: str,
    params: Iterable[str],
    dialect: Dialect,
    *,
    shared: frozenset[str] | None = None,
) -> BatchForm:
    """Return how rows of a statement (that of ``Cypher``) with these parameters run; never raises.

    ``shared``: the labels that may stand on a node beside another one (``footprint.shared_labels``), so that two nodes
    with different labels outside of it are not the same. None: any label may stand beside any other.
    """
    # Both build a BatchForm, so they import this module.
    if dialect == "neo4j":
        from graphweft_rules.neo4j_form import neo4j_form

        return neo4j_form(statement, tuple(params))
    from graphweft_rules.falkordb_form import falkordb_form

    return falkordb_form(statement, tuple(params), shared=shared)

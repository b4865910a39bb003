"""The result of one injection query: rows, or the reason why there are none."""

from __future__ import annotations

from dataclasses import dataclass

from graphweft_contracts import ReasonCode
from graphweft_workers.ports.graph_store import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailure:
    """Why a query returned no rows, or not all of them."""

    reason: ReasonCode
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The rows of one query. Requests share the objects and must not change them."""

    table: Table
    incomplete: QueryFailure | None = None
    """Why rows may be missing; such a result is not cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRows(QueryResult):
    """The rows of one query, as one request got them."""

    elapsed_s: float
    cached: bool = False

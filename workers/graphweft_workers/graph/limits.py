"""How much one reading query may return."""

from __future__ import annotations

from typing import Final

from graphweft_contracts import QueryFailed

MOST_ROWS: Final = 10_000
"""More than any agent reads. While a process takes rows apart it does nothing else, for about 10 ms for each 1,000."""
MOST_VALUES: Final = 200_000
"""Cells, and what lists and maps in them hold: few rows can be as much work as many."""


def check_rows(count: int) -> None:
    """Raise ``QueryFailed`` when ``count`` rows are too many."""
    if count > MOST_ROWS:
        raise QueryFailed(f"the query returned more than {MOST_ROWS:,} rows: add a LIMIT")


def check_values(count: int) -> None:
    """Raise ``QueryFailed`` when ``count`` values are too many."""
    if count > MOST_VALUES:
        raise QueryFailed(f"the query returned more than {MOST_VALUES:,} values: return less of each row")

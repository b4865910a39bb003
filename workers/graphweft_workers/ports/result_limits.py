"""Limits of the result of one read-only query."""

from __future__ import annotations

from typing import Final

from graphweft_contracts import QueryFailed

MOST_ROWS: Final = 10_000
"""More rows than any agent reads. Decoding 1,000 rows blocks the event loop for about 10 ms."""
MOST_VALUES: Final = 200_000
"""Cells, and the values in their lists and maps: a few large rows cost as much as many small ones."""


def check_rows(count: int) -> None:
    """Raise ``QueryFailed`` when ``count`` rows are too many."""
    if count > MOST_ROWS:
        raise QueryFailed(f"the query returned more than {MOST_ROWS:,} rows: add a LIMIT")


def check_values(count: int) -> None:
    """Raise ``QueryFailed`` when ``count`` values are too many."""
    if count > MOST_VALUES:
        raise QueryFailed(f"the query returned more than {MOST_VALUES:,} values: return fewer properties of each row")

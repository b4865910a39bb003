"""Texts and values of others as people may read them: short, and as JSON has them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any


def short(text: str, most: int) -> str:
    """Return the first ``most`` characters of a text, with a sign if there are more."""
    return text if len(text) <= most else text[: most - 1] + "…"


def clock(time: datetime) -> str:
    """Return a time in UTC with milliseconds."""
    return time.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def plain(value: Any) -> Any:
    """Return a value that JSON does not have as text or a number."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)

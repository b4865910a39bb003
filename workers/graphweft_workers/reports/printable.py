"""Texts and values of others as people may read them: printable, short, and as JSON has them."""

from __future__ import annotations

import json
import re
import unicodedata
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

_UNPRINTABLE: Final = re.compile(r"[^ -~]+")
"""Characters that may be unprintable."""


def printable(text: str) -> str:
    """Return text on one line in which each character that is not printable is escaped, so a terminal obeys none."""
    return text if text.isprintable() else _UNPRINTABLE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Return text like ``printable``, with its line breaks and tabs."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def short(text: str, most: int) -> str:
    """Return the first ``most`` characters of a text, with a sign if there are more."""
    return text if len(text) <= most else text[: most - 1] + "…"


def clock(time: datetime) -> str:
    """Return a time in UTC with milliseconds."""
    return time.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def _escaped(found: re.Match[str]) -> str:
    return "".join(
        char if char.isprintable() or unicodedata.category(char) == "Zs" else json.dumps(char)[1:-1]
        for char in found[0]
    )


def plain(value: Any) -> Any:
    """Return a value that JSON does not have as text or a number."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)

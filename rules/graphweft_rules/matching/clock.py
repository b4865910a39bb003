"""Values of the clock functions and of ``randomUUID()`` that a replay repeats.

On a graph server these calls give another value at each replay. So rules turn them into parameters, whose values derive
from the event. Not every server has ``datetime()`` and ``time()``, so both become ISO 8601 text of one width, which
sorts by time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

OWN_PREFIX: Final = "__"
"""Prefix of reserved names: parameters here, checkpoints in the graph."""
UUID_PREFIX: Final = "__uuid"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_DATETIME: Final = frozenset({"__datetime"})

CALLS: Final[Mapping[str, tuple[str, str]]] = {
    "datetime": ("__datetime", "$__datetime"),
    "timestamp": ("__timestamp", "$__timestamp"),
    "date": ("__date", "date($__date)"),
    "localdatetime": ("__localdatetime", "localdatetime($__localdatetime)"),
    "localtime": ("__localtime", "localtime($__localtime)"),
    "time": ("__time", "$__time"),
}
"""Function name in lower case -> (parameter, the Cypher that replaces the call)."""


def utc_text(when: datetime) -> str:
    """Return the time in UTC as ``2026-02-01T10:00:00.000000Z``: always 27 characters, so it sorts by time."""
    return f"{_in_utc(when).isoformat(timespec='microseconds')[:26]}Z"


def moments_later(when: datetime, number: int) -> datetime:
    """Return the time ``number`` microseconds later, or the time itself at the end of the calendar."""
    try:
        return when + timedelta(microseconds=number)
    except OverflowError:
        return when


def clock_values(names: frozenset[str], when: datetime) -> dict[str, Any]:
    """Return the values of the clock parameters ``names`` (those of ``Cypher.clock``) at the time ``when``."""
    if not names:
        return {}
    text = utc_text(when)
    if names == _DATETIME:
        return {"__datetime": text}
    values: dict[str, Any] = {
        "__datetime": text,
        # Integer division, because a float would round.
        "__timestamp": (_in_utc(when) - _EPOCH) // _MILLISECOND,
        "__date": text[:10],
        "__localdatetime": text[:-1],
        "__localtime": text[11:-1],
        "__time": text[11:],
    }
    return {name: values[name] for name in names}


def uuid_values(count: int, seed: str) -> dict[str, str]:
    """Return ``__uuid0`` … for ``count`` calls of ``randomUUID()``; equal seeds always give equal values."""
    return {f"{UUID_PREFIX}{number}": str(uuid5(NAMESPACE_URL, f"{seed}\n{number}")) for number in range(count)}


def _in_utc(when: datetime) -> datetime:
    if when.tzinfo is UTC:
        return when
    try:
        return when.astimezone(UTC)
    except OverflowError:  # year 1 or 9999 in a distant zone
        return when.replace(tzinfo=UTC)

"""Time and identity that a replay repeats.

A rule may say ``datetime()`` or ``randomUUID()``. Asked again next week, the server would give another answer and the
rebuilt graph would differ from the first. So these calls become parameters, and their values come from the event.
FalkorDB has neither ``datetime()`` nor ``time()``: both become text in ISO 8601, of one width, so that it sorts.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

OWN_PREFIX: Final = "__"
"""Names that start so are ours: parameters here, progress nodes in the graph."""
UUID_PREFIX: Final = "__uuid"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

CALLS: Final[Mapping[str, tuple[str, str]]] = {
    "datetime": ("__datetime", "$__datetime"),
    "timestamp": ("__timestamp", "$__timestamp"),
    "date": ("__date", "date($__date)"),
    "localdatetime": ("__localdatetime", "localdatetime($__localdatetime)"),
    "localtime": ("__localtime", "localtime($__localtime)"),
    "time": ("__time", "$__time"),
}
"""Function name in lower case -> (parameter, the Cypher that takes the place of the call)."""


def utc_text(when: datetime) -> str:
    """Return the time in UTC as ``2026-02-01T10:00:00.000000Z``: always 27 characters, so text order is time order."""
    return f"{_in_utc(when).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def moments_later(when: datetime, number: int) -> datetime:
    """Return the time ``number`` microseconds later; at the end of the calendar, the time itself."""
    try:
        return when + timedelta(microseconds=number)
    except OverflowError:  # an odd event must not stop the others
        return when


def clock_values(names: frozenset[str], when: datetime) -> dict[str, Any]:
    """Return the values of the clock parameters ``names`` (those of ``Cypher.clock``) at the time ``when``."""
    if not names:
        return {}
    text = utc_text(when)
    values: dict[str, Any] = {
        "__datetime": text,
        # Integer division of the difference: a float of today's microseconds would round.
        "__timestamp": (_in_utc(when) - _EPOCH) // _MILLISECOND,
        "__date": text[:10],
        "__localdatetime": text[:-1],
        "__localtime": text[11:-1],
        "__time": text[11:],
    }
    return {name: values[name] for name in names}


def uuid_values(count: int, seed: str) -> dict[str, str]:
    """Return ``__uuid0`` … for ``count`` calls of ``randomUUID()``; the same seed gives the same values for ever."""
    return {f"{UUID_PREFIX}{number}": str(uuid5(NAMESPACE_URL, f"{seed}\n{number}")) for number in range(count)}


def _in_utc(when: datetime) -> datetime:
    try:
        return when.astimezone(UTC)
    except OverflowError:  # year 1 or 9999 in a far zone: an odd event must not stop the others
        return when.replace(tzinfo=UTC)

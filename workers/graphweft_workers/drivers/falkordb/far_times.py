"""Times of years that Python does not have: the server's are from -999,999,999 to 999,999,999."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import MAXYEAR, MINYEAR, datetime, timedelta
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1)
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
"""After so many years, which have so many days, the calendar begins again."""
_DATE: Final = 14
_DURATION: Final = 16
_KINDS: Final = frozenset({13, _DATE, _DURATION})
"""Types of the compact protocol whose values are seconds since 1970, or as many."""


def numbers_of(seconds: int) -> Sequence[int]:
    """Return year, month, day, hour, minute and second of a time."""
    days, rest = divmod(seconds, 86_400)
    cycle, day = divmod(days, _CYCLE_DAYS)
    moment = _EPOCH + timedelta(days=day, seconds=rest)
    return (moment.year + cycle * _CYCLE_YEARS, *moment.timetuple()[1:6])


def is_far(seconds: int) -> bool:
    """Tell whether Python has no such year."""
    return not MINYEAR <= numbers_of(seconds)[0] <= MAXYEAR


def say_far_times(cells: list[Any]) -> None:
    """Put the text of each such time in its place, in rows of a compact reply."""
    inner: list[list[Any]] = [cells]
    while inner:
        some = inner.pop()
        kind, value = some[-2:] if len(some) > 1 else (None, None)
        if type(kind) is int and kind in _KINDS and type(value) is int and is_far(value):
            some[-2:] = [2, _text(kind, value)]
            continue
        inner += [item for item in some if type(item) is list]


def _text(kind: int, seconds: int) -> str:
    if kind == _DURATION:
        return f"PT{seconds}S"
    year, month, day, hour, minute, second = numbers_of(seconds)
    date = f"{year}-{month:02}-{day:02}"
    return date if kind == _DATE else f"{date}T{hour:02}:{minute:02}:{second:02}"

"""Points in time that come from outside.

A text of digits is no time, though pydantic reads it as seconds since 1970: who writes ``2026`` means a year.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, BeforeValidator, TypeAdapter, ValidationError

EXPECTED: Final = "expected a time such as 2026-02-01T10:00:00Z (RFC 3339), or seconds or milliseconds since 1970"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SECONDS: Final = (1e8, 1e10)
"""From 1973 to 2286. What is smaller is meant as a year or a date: 2026, 20260201."""
_MILLISECONDS: Final = (1e12, 1e13)
"""From 2001 to 2286. What is smaller, or larger, is meant as a date with a time: 202602011000, 20260201100000."""
_DIGITS: Final = re.compile(r"\s*[+-]?[0-9]+([.,][0-9]*)?([eE][+-]?[0-9]+)?\s*", re.ASCII)


def since_1970(value: float) -> datetime:
    """Return the time of a number of seconds or milliseconds since 1970.

    Raises ``ValueError`` for a number that is no time between 1973 and 2286, such as a year.
    """
    if not isinstance(value, bool):  # NaN and infinity are in no range; a number of 400 digits is no float
        if _SECONDS[0] <= value < _SECONDS[1]:
            return _EPOCH + timedelta(seconds=value)
        if _MILLISECONDS[0] <= value < _MILLISECONDS[1]:
            return _EPOCH + timedelta(milliseconds=value)
    raise ValueError(f"the number is no time between 1973 and 2286, a year for example: {EXPECTED}")


def _read(value: Any) -> Any:
    """Return the time of a number or a text, also where a model is strict. Refuses accidental seconds."""
    if isinstance(value, int | float):
        return since_1970(value)
    if not isinstance(value, str | bytes):
        return value
    if _DIGITS.fullmatch(value if isinstance(value, str) else value.decode(errors="replace")):
        raise ValueError(f"it is a number as text: {EXPECTED}")
    try:
        return _lax(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise ValueError(f"{fault}: {EXPECTED}") from None


_lax: Final = TypeAdapter(AwareDatetime).validate_python
Moment = Annotated[AwareDatetime, BeforeValidator(_read)]
"""A time with its zone, as pydantic reads one, but never a year as seconds since 1970."""
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
Time = Annotated[
    Moment,
    BeforeValidator(lambda value: f"{value}T00:00:00Z" if isinstance(value, str) and _DAY.fullmatch(value) else value),
]
"""A time with its zone; a day such as 2026-02-01 begins in UTC."""

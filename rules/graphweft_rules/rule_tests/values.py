"""Comparison and display of the values of graphs and test files."""

from __future__ import annotations

import difflib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, Final, cast

_MOST_CHARACTERS: Final = 400
_LONGEST: Final = _MOST_CHARACTERS + 10
"""Characters of a line of a diff."""
_MOST_LINES: Final = 30
_MOST_COMPARED: Final = 1_000
"""Rows or lines beyond which a diff names those of each side, without a search for the best alignment."""
_PRECISION: Final = 1e-9
"""Graph servers keep 15 digits of a float."""


def is_same(expected: Any, got: Any) -> bool:
    """Compare two values as JSON would: 1 equals 1.0 but not true; a time equals its text. Floats may be rounded."""
    return _is_same(normal(expected), normal(got))


def normal(value: Any) -> Any:
    """Return a value as text, numbers, lists and maps."""
    match value:
        case bool() | str() | None:
            return value
        case float() if value.is_integer():
            return int(value)
        case int() | float():
            return value
        case datetime() | date() | time():
            return value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(key): normal(item) for key, item in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [normal(item) for item in cast("Sequence[Any]", value)]
        case _:
            return str(value)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        if isinstance(one, int) and isinstance(other, int):
            return one == other
        return math.isclose(one, other, rel_tol=_PRECISION)
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        return left.keys() == right.keys() and all(_is_same(left[key], right[key]) for key in left)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))  # pyright: ignore[reportUnknownArgumentType]
    return bool(one == other)


def differences(expected: Sequence[Any], got: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the items of each side that the other side lacks, whatever their order."""
    common = Counter(map(_key, expected)) & Counter(map(_key, got))
    missing, surplus = _without(expected, common), _without(got, common)
    if len(missing) <= _MOST_COMPARED and len(surplus) <= _MOST_COMPARED:  # those left may differ by rounding only
        for item in list(missing):
            same = next((number for number, other in enumerate(surplus) if is_same(item, other)), None)
            if same is not None:
                del surplus[same]
                missing.remove(item)
    return missing, surplus


def _without(items: Sequence[Any], common: Counter[str]) -> list[Any]:
    left = Counter(common)
    kept: list[Any] = []
    for item in items:
        key = _key(item)
        if left[key]:
            left[key] -= 1
        else:
            kept.append(item)
    return kept


def _key(value: Any) -> str:
    return json.dumps(normal(value), sort_keys=True)


def shown(value: Any) -> str:
    """Return a value as JSON on one line; a long one is cut."""
    text = json.dumps(normal(value), ensure_ascii=False)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"


def lines_of(sign: str, items: Sequence[Any]) -> list[str]:
    """Return a line of a diff for each item."""
    return [f"{sign} {shown(item)}" for item in items]


def aligned(expected: Sequence[str], got: Sequence[str]) -> list[str]:
    """Return a diff of lines in which the order counts."""
    if max(len(expected), len(got)) > _MOST_COMPARED:
        return [*(f"- {line}" for line in expected[:_MOST_LINES]), *(f"+ {line}" for line in got[:_MOST_LINES])]
    diff: list[str] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(a=expected, b=got, autojunk=False).get_opcodes():
        if kind == "equal":
            diff += (f"  {line}" for line in expected[a:b])
        else:
            diff += (f"- {line}" for line in expected[a:b])
            diff += (f"+ {line}" for line in got[c:d])
    return diff


def cut(diff: Sequence[str]) -> tuple[str, ...]:
    """Return the first lines of a diff, without characters that steer a terminal."""
    safe = [
        "".join(character if character.isprintable() else repr(character)[1:-1] for character in line[:_LONGEST])
        for line in diff[:_MOST_LINES]
    ]
    if len(diff) > _MOST_LINES:
        safe.append(f"… and {len(diff) - _MOST_LINES} more lines")
    return tuple(safe)

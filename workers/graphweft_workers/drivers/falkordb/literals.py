"""Literals for FalkorDB's parameter header.

The values of a query are part of its text (``CYPHER name=value … query``), so a batch is one long literal, and writing
it is most of a batch's cost. Values that the server would change silently are refused: it clamps integers beyond 64
bits, cuts text at NUL, and cannot escape a backtick.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from graphweft_contracts import QueryFailed

_SAFE: Final = frozenset({str, bool, type(None)})
"""Of their values, JSON is Cypher, except for some escapes."""
_NUMBERS: Final = frozenset({int, float})
_INT64: Final = 2**63
_MANY: Final = 8
"""Items of a list from which one pass is faster."""
_encode: Final = msgspec.json.Encoder().encode


def header(
    params: Mapping[str, Any], rows: Mapping[str, Sequence[Sequence[Any]]] | None = None, *, given: str = ""
) -> str:
    """Return ``CYPHER `name`=value … ``, with a space after it. Raises ``QueryFailed``.

    ``rows`` are parameters too: lists of rows that have the values of the same columns. ``given`` are parameters that
    are text already, each with a space after it.
    """
    try:
        # Names become part of the query, and may come from a caller.
        if any(not name or "`" in name or "\0" in name for name in params):
            raise QueryFailed("has an empty name, or a backtick or NUL character in its name")
        values = "".join([f"`{name}`={literal(value)} " for name, value in params.items()])
        batch = "".join([f"`{name}`={_batch(some)} " for name, some in rows.items()]) if rows else ""
        text = f"CYPHER {given}{values}{batch}"
        text.encode()
    except RecursionError as error:
        raise QueryFailed("a parameter is nested too deeply", of_value=True) from error
    except UnicodeEncodeError as error:
        raise QueryFailed("a parameter contains a lone surrogate, which a graph cannot store", of_value=True) from error
    except QueryFailed as error:
        names = [repr(name) for name, value in params.items() if _refused(value)]
        told = f"the parameter {', '.join(names)} {error}" if names else f"a parameter {error}"
        raise QueryFailed(told, of_value=True) from None
    return text


def _batch(rows: Sequence[Sequence[Any]]) -> str:
    """Return a list of rows, as ``literal`` does; of plain values it takes a tenth of the time."""
    plain = _is_plain(rows[0]) if len(rows) == 1 else all(map(_is_plain, zip(*rows, strict=True)))
    if plain and (text := _encoded(rows)) is not None:
        return text
    return literal(rows)


def _plain_list(values: Sequence[Any]) -> str | None:
    """Return a list of many plain values, such as a vector, as ``literal`` does; None if it is another."""
    return _encoded(values) if len(values) >= _MANY and _is_plain(values) else None


def _encoded(values: Sequence[Any]) -> str | None:
    try:
        text = _encode(values)
    except UnicodeEncodeError:
        return None
    return None if b"\\u" in text else text.decode()  # the server does not know this escape


def _is_plain(values: Sequence[Any]) -> bool:
    """Tell whether the values of a column are text, numbers that a graph can store, and nulls."""
    kinds = set(map(type, values)) - _SAFE
    if not kinds:
        return True
    if not kinds <= _NUMBERS:
        return False
    integers: list[int] = [value for value in values if type(value) is int]
    floats: list[float] = [value for value in values if type(value) is float]
    return all(map(math.isfinite, floats)) and -_INT64 <= min(integers, default=0) <= max(integers, default=0) < _INT64


def literal(value: Any) -> str:
    """Return one value. Raises ``QueryFailed`` with a message that continues after the name of a parameter."""
    # By exact type first: this runs for every value, and nearly all have one of these types.
    kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is str:
        if "\0" in value:
            raise QueryFailed("holds a NUL character, which FalkorDB cannot store")
        text: str = value
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if kind is int:
        if not -_INT64 <= value < _INT64:
            raise QueryFailed("holds an integer beyond 64 bits; send it as a string")
        return str(value)
    if value is None:
        return "null"
    if kind is dict:
        return "{" + ",".join([f"{_key(name)}:{literal(item)}" for name, item in value.items()]) + "}"
    if kind is list or kind is tuple:
        return _plain_list(value) or "[" + ",".join(map(literal, value)) + "]"
    return _rarer(value)


def _rarer(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            if not math.isfinite(value):
                raise QueryFailed("holds NaN or an infinite number; send null or a string")
            return repr(value)
        case str() | int():  # a subclass, such as an enum
            return literal(value + "" if isinstance(value, str) else int(value))
        case Mapping():
            return literal(dict(value))  # pyright: ignore[reportUnknownArgumentType]
        case Sequence():
            return literal(list(value))  # pyright: ignore[reportUnknownArgumentType]
        case _:
            raise QueryFailed(f"holds a {type(value).__name__}, which a graph cannot store")


def _key(name: Any) -> str:
    if not name or "`" in name:
        raise QueryFailed("holds a map with an empty key or one with a backtick, which FalkorDB cannot store")
    if "\0" in name:
        raise QueryFailed("holds a NUL character, which FalkorDB cannot store")
    return f"`{name}`"


def _refused(value: Any) -> bool:
    try:
        literal(value)
    except QueryFailed:
        return True
    return False

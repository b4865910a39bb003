"""Copies of a runtime's values that JSON can represent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from pydantic_core import to_jsonable_python

MAX_DEPTH: Final = 100
"""Levels of nesting that are kept; JSON parsers fail at about 200."""

_MAX_BITS: Final = 14_000
"""Bits of a whole number: parsers refuse 4,300 digits, which are about 14,284 bits."""


def json_copy(
    values: Mapping[str, Any], *, max_values: int | None = None, max_characters: int | None = None
) -> dict[str, Any]:
    """Return a copy that JSON can represent. Other objects are replaced by their type's name, such as ``<Socket>``.

    After ``max_values`` values, containers are replaced in the same way. Texts longer than ``max_characters`` are cut
    and end with an ellipsis. Infinite numbers and NaN become None. Raises only if reading ``values`` itself raises.
    """
    copy = _Copy(max_values, max_characters)
    return {copy.key(name): copy.value(value, ()) for name, value in dict(values).items()}


class _Copy:
    def __init__(self, max_values: int | None, max_characters: int | None) -> None:
        self._left = math.inf if max_values is None else max_values
        self._most_characters = max_characters

    def value(self, value: object, above: tuple[int, ...]) -> Any:
        """``above`` holds the ids of the containers around ``value``, so that a cycle ends."""
        self._left -= 1
        if value is None or type(value) is bool:
            return value
        if type(value) is int:
            return value if value.bit_length() <= _MAX_BITS else _name(value)
        if type(value) is float:
            return value if math.isfinite(value) else None
        if type(value) is str:
            return self._text(value)
        kind, identity = _name(value), id(value)
        if isinstance(value, dict | list | tuple | set | frozenset):
            container = cast("dict[object, object] | list[object]", value)
            if identity in above or len(above) >= MAX_DEPTH or len(container) > self._left:
                return kind
            inside = (*above, identity)
            if isinstance(container, dict):
                return {self.key(name): self.value(item, inside) for name, item in container.items()}
            return [self.value(item, inside) for item in container]
        if isinstance(value, Iterator):  # reading would consume it, and it may be infinite
            return kind
        try:
            return to_jsonable_python(value, fallback=_name, inf_nan_mode="null")
        except Exception:  # noqa: BLE001 - bytes that are not UTF-8, a property that raises
            return kind

    def key(self, name: object) -> str:
        text = self.value(name, ())
        return text if isinstance(text, str) else str(text)

    def _text(self, value: str) -> str:
        if self._most_characters is not None and len(value) > self._most_characters:
            value = value[: self._most_characters] + "…"
        return value if value.isascii() else value.encode(errors="replace").decode()  # unpaired surrogates


def _name(value: object) -> str:
    return f"<{type(value).__name__}>"
